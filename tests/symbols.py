# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tensors of which only so much is known, for tests of shape functions."""

import tensorflow as tf

UNKNOWN = None  # as a shape: not even the rank is known


def placeholder(shape, dtype=tf.float32):
    return tf.compat.v1.placeholder(dtype, shape)


def symbolic_sizes(known):
    """Returns sizes of which as much is known; UNKNOWN is not even their number."""
    if known is UNKNOWN:
        return placeholder(UNKNOWN, tf.int32)
    if all(size is not None for size in known):
        return tf.constant(known)
    return tf.shape(placeholder(known))
