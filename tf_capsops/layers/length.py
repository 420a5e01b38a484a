# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The layer that computes the lengths of capsules."""

import keras
import tensorflow as tf

from tf_capsops.ops.squash import at_least_float32, require_axis
from tf_capsops.registered import registered


@registered
class Length(keras.layers.Layer):
    """Computes the Euclidean length of each capsule, along the last axis.

    The length of a class capsule says how likely its class is present: section 3 of
    Sabour et al. (2017). The gradient of a zero capsule is zero; NaN stays NaN. Half
    precision is computed in float32 and rounded once.

    Input shape: `[..., D]`. Output shape: `[...]`.

    Raises:
      ValueError: if capsules are not floating-point, or have no axis.

    >>> from tf_capsops.layers import Length
    >>> import numpy as np
    >>> Length()(np.array([[[3.0, 4.0], [0.0, 0.0]]])).numpy().tolist()
    [[5.0, 0.0]]
    """

    def call(self, capsules):
        dtype = capsules.dtype
        if not dtype.is_floating:
            raise ValueError(
                f"Length: capsules must be floating-point, got {dtype.name}"
            )
        require_axis("Length", capsules)
        squared = tf.reduce_sum(tf.square(at_least_float32(capsules)), axis=-1)
        # The derivative of the root is infinite at zero, so zeros must not reach it.
        zero = squared == 0
        root = tf.sqrt(tf.where(zero, tf.ones_like(squared), squared))
        return tf.cast(tf.where(zero, tf.zeros_like(root), root), dtype)

    def compute_output_shape(self, input_shape):
        return tuple(input_shape[:-1])
