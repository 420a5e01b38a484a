# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Keras masks over capsules."""

import tensorflow as tf

from tf_capsops.arguments import dense_tensor


def seen_capsules(owner, capsules, mask, last=1):
    """Returns a Keras mask with one boolean for each capsule, or None if there is none.

    The mask may lack the axis of types. Extra axes, such as the rows of poses, are
    reduced with `any`.

    Args:
      owner: The name to begin messages with.
      capsules: A tensor `[batch, positions..., types, ...]`, or `[batch, positions,
        ...]` if it has one axis of capsules.
      mask: Booleans, False for capsules that are left out; or None.
      last: How many of the last axes run over a capsule's numbers.

    Returns:
      Booleans, of the rank of capsules less `last`; the types may be a 1.

    Raises:
      ValueError: The mask does not fit the capsules; the message names owner and shape.
    """
    if mask is None:
        return None
    mask = tf.cast(dense_tensor(owner, "mask", mask), tf.bool)
    rank = capsules.shape.rank
    axes = rank - last
    least, given = max(2, axes - 1), mask.shape.rank or 0
    fits = least <= given <= rank and mask.shape.is_compatible_with(
        capsules.shape[:given]
    )
    if not fits:
        raise ValueError(
            f"{owner}: mask must have the first {least} to {rank} dimensions of the "
            f"capsules, {capsules.shape}, got shape {mask.shape}"
        )
    if given < axes:
        return mask[..., tf.newaxis]
    return tf.reduce_any(mask, [*range(axes, given)])


def without_masked(values, seen):
    """Returns values, with zeros for capsules that are left out.

    A capsule of zeros votes for nothing, so it has no part in what it is routed to.

    Args:
      values: A tensor whose first axes are those of `seen`.
      seen: What `seen_capsules` returned.
    """
    if seen is None:
        return values
    missing = values.shape.rank - seen.shape.rank
    seen = seen[(..., *[tf.newaxis] * missing)]
    return tf.where(seen, values, tf.zeros([], values.dtype))
