# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Keras masks over capsules."""

import tensorflow as tf


def without_masked(capsules, mask, last=1):
    """Returns capsules, with zeros for those that a Keras mask leaves out.

    A capsule of zeros votes for nothing, so it has no part in what it is routed to.

    Args:
      capsules: A tensor.
      mask: Booleans, False for capsules that are left out; or None. It may lack the
        last axes of capsules, such as their types. Of further axes, as there are in a
        mask over the rows of poses, one True suffices.
      last: How many of the last axes run over a capsule's numbers.
    """
    if mask is None:
        return capsules
    mask = tf.cast(mask, tf.bool)
    further = mask.shape.rank - (capsules.shape.rank - last)
    if further > 0:
        mask = tf.reduce_any(mask, [*range(-further, 0)])
    missing = capsules.shape.rank - mask.shape.rank
    mask = mask[(..., *[tf.newaxis] * missing)]
    return tf.where(mask, capsules, tf.zeros([], capsules.dtype))
