# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The squashing non-linearity of capsule networks."""

import tensorflow as tf

from tf_capsops.arguments import dense_tensor, positive_float32


def at_least_float32(tensor):
    """Returns a half-precision tensor in float32, and any other as it is."""
    if tensor.dtype in (tf.float16, tf.bfloat16):
        return tf.cast(tensor, tf.float32)
    return tensor


def require_axis(owner, vectors, axis=-1):
    """Raises a ValueError if a tensor of known rank does not have an axis."""
    rank = vectors.shape.rank
    if rank is not None and isinstance(axis, int) and not -rank <= axis < rank:
        raise ValueError(
            f"{owner}: vectors must have axis {axis}, got shape {vectors.shape}"
        )


def squash(vectors, axis=-1, epsilon=1e-7, name=None):
    """Shrinks vectors to a length below one and keeps their direction.

    `v = s |s|^2 / (1 + |s|^2) / sqrt(|s|^2 + epsilon)`: equation 1 of Sabour, Frosst
    and Hinton, "Dynamic Routing Between Capsules" (2017). Without `epsilon`, value and
    gradient would not be finite at zero; with it, both are zero there.

    Half precision (float16, bfloat16) is computed in float32 and rounded once. Vectors
    whose squared length overflows become unit vectors.

    Args:
      vectors: a floating-point tensor of any shape with at least one axis.
      axis: the axis that runs along a vector.
      epsilon: a positive number (a float32), added to the squared length under the
        root.
      name: a name for the operations.

    Returns:
      A tensor of the shape and dtype of `vectors`.

    Raises:
      ValueError: if `epsilon` is not as above, or `vectors` has no such axis, is not
        floating-point or not dense.

    >>> import tf_capsops
    >>> tf_capsops.squash([3.0, 4.0]).numpy() * 26 / 25
    array([0.6, 0.8], dtype=float32)
    """
    epsilon = positive_float32("squash", "epsilon", epsilon)
    with tf.name_scope(name or "squash"):
        vectors = dense_tensor("squash", "vectors", vectors)
        dtype = vectors.dtype
        if not dtype.is_floating:
            raise ValueError(
                f"squash: vectors must be floating-point, got {dtype.name}"
            )
        require_axis("squash", vectors, axis)
        vectors = at_least_float32(vectors)
        # Huge vectors are divided by `scale`, so that neither their squared length nor
        # its powers in the gradient overflow. For others `scale` is 1, which is exact.
        # The result does not depend on `scale`, so no gradient flows through it.
        largest = tf.reduce_max(tf.abs(vectors), axis=axis, keepdims=True)
        scale = tf.stop_gradient(tf.maximum(largest * 2.0**-30, 1.0))
        vectors /= scale
        one = tf.square(1.0 / scale)
        squared = tf.reduce_sum(tf.square(vectors), axis=axis, keepdims=True)
        # This divides by the root, instead of multiplying by `rsqrt`: the derivative of
        # `rsqrt` is proportional to its cube, which overflows for a small epsilon.
        factor = squared / ((one + squared) * tf.sqrt(squared + one * epsilon))
        return tf.cast(vectors * factor, dtype)
