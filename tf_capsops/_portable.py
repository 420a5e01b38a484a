# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Chooses between the ops of our library and their equivalents in TensorFlow's ops."""

import contextlib
import contextvars
import functools

import tensorflow as tf

from tf_capsops.ops.squash import at_least_float32

_IS_ON = contextvars.ContextVar("tf_capsops.portable", default=False)


@contextlib.contextmanager
def portable():
    """Builds every function and layer from TensorFlow's own ops within a `with` block.

    A model that is exported or traced in the block runs without our library: in
    TensorFlow Serving, TFLite or ONNX, and on systems that the library was not built
    for. Arguments, checkpoints, gradients and results are the same, but for rounding.
    It takes more time and memory, because TensorFlow's ops store what our kernels never
    store (docs/export.md).

    The block takes effect when a function is called, eagerly or while a `tf.function`
    is traced: a graph that exists already does not change, neither inside of the block
    nor after it. So a Keras model that has already predicted goes on predicting by our
    ops, until `model.make_predict_function(force=True)`. `model.export` always traces.

    Blocks may be nested. A block applies to its own thread and `asyncio` task only.

    >>> from tensorflow import ones
    >>> import tf_capsops
    >>> with tf_capsops.portable():
    ...     tf_capsops.capsule_prediction(ones([1, 2, 3]), ones([2, 4, 5, 3])).shape
    TensorShape([1, 2, 4, 5])
    """
    token = _IS_ON.set(True)
    try:
        yield
    finally:
        _IS_ON.reset(token)


def is_on():
    """Whether this call is within a block of `portable`."""
    return _IS_ON.get()


def compute(plain, *operands, name, **attributes):
    """Calls the definition of an op in TensorFlow's own ops.

    Args:
      plain: The definition, a function of operands and attributes.
      *operands: Tensors.
      name: Name of the scope of the operations in a graph.
      **attributes: Keyword arguments for `plain`.
    """
    with tf.name_scope(name):
        return widened(plain)(*operands, **attributes)


def widened(compute):
    """Lets a function compute 16-bit types in float32 and round once, as ours do."""

    @functools.wraps(compute)
    def rounded_once(*operands, **attributes):
        wide = map(at_least_float32, operands)
        return tf.cast(compute(*wide, **attributes), operands[0].dtype)

    return rounded_once
