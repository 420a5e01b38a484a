# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Finds, checks and loads libtf_capsops.so, once."""

import functools
import json
import mmap
import os
import pathlib

import tensorflow as tf

from tf_capsops._version import __version__

_MARKER = b"tf_capsops-build-info:"
_ENTRIES = {"version", "tensorflow", "cuda", "cuda_archs", "compiler"}
_REBUILD = (
    "Run `make build` in the source tree with this TensorFlow, or reinstall "
    "tf-capsops for it; TF_CAPSOPS_LIBRARY may name another library file."
)


def library_path():
    """Returns the path of the operator library, for `tf.load_op_library`.

    The environment variable `TF_CAPSOPS_LIBRARY` takes precedence over the file
    that was built into this package.

    Python registers the gradients of the ops. In a process that loads the library by
    its path and does not import `tf_capsops`, the ops have no gradients, and asking for
    one raises a `LookupError`.

    Returns:
      An absolute path, as a string.

    Raises:
      ImportError: There is no such file; the text says what to do.

    Example:

    >>> import tensorflow as tf
    >>> import tf_capsops
    >>> bare = tf.load_op_library(tf_capsops.library_path())
    >>> bare.capsule_prediction(tf.ones([1, 2, 3]), tf.ones([2, 1, 1, 3])).shape
    TensorShape([1, 2, 1, 1])
    """
    named = os.environ.get("TF_CAPSOPS_LIBRARY")
    path = pathlib.Path(named or pathlib.Path(__file__).parent / "libtf_capsops.so")
    if not path.is_file():
        source = "named by TF_CAPSOPS_LIBRARY" if named else "of this package"
        raise ImportError(
            f"tf_capsops: the operator library {path} ({source}) does not exist. "
            + _REBUILD
        )
    return str(path.resolve())


def build_info():
    """Returns what the library file says it was built for, without loading it.

    Returns:
      A dict of strings: `version`, `tensorflow`, `cuda` and `cuda_archs` (both
      empty for a CPU-only library), `compiler`.

    Raises:
      ImportError: The file is missing, is not a tf_capsops library, or its
        information cannot be read.
    """
    path = library_path()
    if not os.access(path, os.R_OK):
        raise ImportError(f"tf_capsops: {path} cannot be read. " + _REBUILD)
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            raise ImportError(f"tf_capsops: {path} is empty. " + _REBUILD)
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            begin = data.find(_MARKER)
            end = data.find(b"\0", begin)
            if begin < 0 or end < 0:
                raise ImportError(
                    f"tf_capsops: {path} is not a tf_capsops library. " + _REBUILD
                )
            return _parsed(path, data[begin + len(_MARKER) : end])


def _parsed(path, text):
    try:
        information = json.loads(text)
    except (ValueError, RecursionError):  # UnicodeDecodeError included
        information = None
    if (
        not isinstance(information, dict)
        or not information.keys() >= _ENTRIES
        or not all(isinstance(value, str) for value in information.values())
    ):
        raise ImportError(
            f"tf_capsops: {path} is damaged: its build information cannot be read. "
            + _REBUILD
        )
    return information


@functools.cache
def load():
    """Loads the library and returns the module of its operators.

    Raises:
      ImportError: The library is missing or damaged, or was built for another
        tf_capsops or TensorFlow.
    """
    path, information = library_path(), build_info()
    built_for = information["tensorflow"]
    if information["version"] != __version__:
        raise _of_another(path, "tf_capsops", information["version"], __version__)
    if built_for.split(".")[:2] != tf.__version__.split(".")[:2]:
        raise _of_another(path, "TensorFlow", built_for, tf.__version__)
    try:
        return tf.load_op_library(path)
    except tf.errors.NotFoundError as error:
        raise ImportError(
            f"tf_capsops: {path}, built for TensorFlow {built_for}, does not load on "
            f"TensorFlow {tf.__version__}: {error.message}. " + _REBUILD
        ) from error


def _of_another(path, name, built_for, installed):
    return ImportError(
        f"tf_capsops: {path} was built for {name} {built_for}, but {name} {installed} "
        "is installed. " + _REBUILD
    )
