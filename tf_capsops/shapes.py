# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Shapes of tensors, as ops take them."""

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
