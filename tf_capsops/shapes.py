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
    ops would broadcast an operand that does not fit. Sizes that are unknown while a
    graph is built are left to TensorFlow's ops.

    Attributes:
      sizes: What is known of the named sizes: ints and Nones.
    """

    def __init__(self, op):
        self._op = op
        self.sizes = {}

    def bind(self, operand, tensor, axes):
        """Returns the tensor, which has all these axes, and a rank that is known.

        Raises:
          tf.errors.InvalidArgumentError: Its rank or a size does not fit (a
            `ValueError` while a graph is built).
        """
        shape = tensor.shape
        if shape.rank is None:
            return tf.ensure_shape(tensor, [self.sizes.get(axis) for axis in axes])
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
        return tensor

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
