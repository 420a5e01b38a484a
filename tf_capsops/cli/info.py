# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Prints versions, the library and the devices, or which kernels can run an op."""

import platform
import sys

from tf_capsops.cli import candidates


def add_arguments(parser):
    """Adds the options that describe a call of an op."""
    candidates.add_arguments(parser)


def check(args):
    """Raises a CommandError if the options do not describe a call of an op."""
    candidates.check(args)


def run(args):
    """Prints what was asked for. Returns 1 if the library cannot be used, else 0."""
    return candidates.run(args) if args.op else _run()


def _run():
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
