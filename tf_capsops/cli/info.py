# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Prints versions, the operator library and the devices TensorFlow sees."""

import platform
import sys


def add_arguments(parser):
    """`tf-capsops info` has no options."""


def check(args):
    """There is nothing to check: without options, there are no mistakes."""


def run(args):
    """Prints versions and devices. Returns 1 if the library cannot be used, else 0."""
    import keras
    import tensorflow as tf

    from tf_capsops import _library
    from tf_capsops._version import __version__

    _row("tf_capsops", __version__)
    _row("TensorFlow", tf.__version__)
    _row("Keras", keras.__version__)
    _row("Python", platform.python_version())
    status = 0
    try:
        _row("library", _library.library_path())
        built = _library.build_info()
        _row("built for", f"TensorFlow {built['tensorflow']}, by {built['compiler']}")
        if built["cuda"]:
            _row("CUDA", f"{built['cuda']}, architectures {built['cuda_archs']}")
        else:
            _row("CUDA", "none: this library is CPU-only")
        _library.load()
    except ImportError as error:
        print(error, file=sys.stderr)
        status = 1
    for device in tf.config.list_physical_devices():
        details = tf.config.experimental.get_device_details(device)
        name = device.name.removeprefix("/physical_device:")
        extra = f" ({details['device_name']})" if "device_name" in details else ""
        _row("device", name + extra)
    return status


def _row(name, value):
    print(f"{name:<12}{value}")
