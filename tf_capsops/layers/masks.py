# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Keras masks that leave capsules out."""

import tensorflow as tf

from tf_capsops.arguments import dense_tensor


def seen_capsules(owner, capsules, mask, last=1):
    """Returns a Keras mask as one boolean for each capsule, or None without a mask.

    The mask may lack the axis of types. Extra axes, such as the rows of poses, are
    reduced with `any`.

    Args:
      owner: The name to begin messages with.
      capsules: A tensor `[batch, positions..., types, ...]`, or `[batch, positions,
        ...]` if it has one axis of capsules.
      mask: Booleans, False for capsules to leave out; or None.
      last: How many of the last axes run over a capsule's numbers.

    Returns:
      Booleans, with the axes of the capsules except the last `last`. The axis of types
      has size 1 if the mask lacks it.

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
    """Returns values with zeros in place of capsules that the mask leaves out.

    The votes of a zero capsule are zero, so it does not affect its parents.

    Args:
      values: A tensor whose first axes are those of `seen`.
      seen: The result of `seen_capsules`; None leaves nothing out.
    """
    if seen is None:
        return values
    missing = values.shape.rank - seen.shape.rank
    seen = seen[(..., *[tf.newaxis] * missing)]
    return tf.where(seen, values, tf.zeros([], values.dtype))
