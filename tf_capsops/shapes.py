# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Shapes of tensors, as ops take them, and the rule that operands fit each other."""

import tensorflow as tf


def sizes(tensor):
    """Returns the shape of a tensor: a list of ints where it is known, else a tensor.

    In eager calls it is known, which saves a call of TensorFlow's op Shape. That op is
    also unsafe there: among threads that use a GPU at the same time, one may be given
    the shape of another's tensor (seen with TensorFlow 2.21; its issue 123980).
    """
    if tensor.shape.is_fully_defined():
        return tensor.shape.as_list()
    return tf.shape(tensor)


def joined(*parts):
    """Joins parts of shapes, each in the form that `sizes` returns."""
    if all(isinstance(part, list) for part in parts):
        return [size for part in parts for size in part]
    return tf.concat(parts, axis=0)


def dimensions(tensor):
    """Returns the sizes of a tensor of known rank: ints, and scalars where unknown."""
    unknown = None if tensor.shape.is_fully_defined() else tf.shape(tensor)
    return [
        unknown[axis] if size is None else size
        for axis, size in enumerate(tensor.shape.as_list())
    ]


class ShapeRule:
    """Binds the axes of operands to named sizes, as the C++ class of this name does.

    Portable definitions use it to check what the library's ops check: TensorFlow's own
    ops would broadcast an operand that does not fit. What is unknown while a graph is
    built is left to `checked`.

    Args:
      op: The name that messages begin with.

    Attributes:
      sizes: What is known of the named sizes: ints and Nones.
    """

    def __init__(self, op):
        self._op = op
        self._first = {}  # The first operand's size of each axis, or a scalar tensor.
        self._checks = []
        self.sizes = {}

    def define(self, axis, size):
        """Gives an axis a size, an int or a scalar tensor, before operands have it."""
        self._first[axis] = size
        self.sizes[axis] = None if tf.is_tensor(size) else size

    def bind(self, operand, tensor, axes):
        """Returns the tensor, which has all these axes, and a rank that is known.

        Raises:
          tf.errors.InvalidArgumentError: Its rank or a size does not fit (a
            `ValueError` while a graph is built).
        """
        if tensor.shape.rank is None:
            tensor = tf.ensure_shape(tensor, [self.sizes.get(axis) for axis in axes])
        shape = tensor.shape
        self.require(
            shape.rank == len(axes),
            f"{operand} must have rank {len(axes)} [{', '.join(axes)}], got "
            f"{shape_text(shape)}",
        )
        for index, (axis, size) in enumerate(zip(axes, shape.as_list())):
            bound = size if self.sizes.get(axis) is None else self.sizes[axis]
            self.sizes[axis] = bound
            self.require(
                size in (None, bound),
                f"{operand} dim {index} ({axis}) must be {bound}, got "
                f"{shape_text(shape)}",
            )
        self._bind_unknown(operand, tensor, axes)
        return tensor

    def _bind_unknown(self, operand, tensor, axes):
        for index, (axis, size) in enumerate(zip(axes, dimensions(tensor))):
            first = self._first.setdefault(axis, size)
            if first is not size and (tf.is_tensor(first) or tf.is_tensor(size)):
                text = f"{operand} dim {index} ({axis}) must be"
                got = "got", tf.shape(tensor)
                self.require_at_run_time(tf.equal(first, size), text, first, *got)

    def require_at_run_time(self, holds, *texts):
        """Lets the results of `checked` fail unless a scalar tensor is true.

        Args:
          holds: The tensor.
          *texts: The message: text and tensors of integers.
        """
        texts = (f"{self._op}: {texts[0]}", *texts[1:])
        self._checks.append(tf.debugging.Assert(holds, texts, summarize=10))

    def checked(self, *tensors):
        """Returns tensors, or Nones, that need all checks at run time to succeed."""
        if not self._checks:
            return tensors
        with tf.control_dependencies(self._checks):
            return [None if each is None else tf.identity(each) for each in tensors]

    def require(self, holds, text):
        """Raises the error of `bind` unless a condition holds."""
        if not holds and tf.executing_eagerly():
            raise tf.errors.InvalidArgumentError(None, None, f"{self._op}: {text}")
        if not holds:
            raise ValueError(f"{self._op}: {text}")


def shape_text(shape):
    """Returns a shape as messages of C++ show it, such as "[2,?]"."""
    if shape.rank is None:
        return "<unknown>"
    return (
        f"[{','.join('?' if size is None else str(size) for size in shape.as_list())}]"
    )
