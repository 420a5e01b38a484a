# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The layer that masks all capsules but one."""

import keras
import tensorflow as tf

from tf_capsops.arguments import dense_tensor, known_shape
from tf_capsops.ops.squash import at_least_float32
from tf_capsops.registered import registered
from tf_capsops.shapes import dimensions


@registered
class Mask(keras.layers.Layer):
    """Zeroes all capsules but one and flattens the result, for a decoder.

    Section 4.1 of Sabour et al. (2017): in training the capsule of the label is kept,
    otherwise the longest one.

    Call arguments: `Mask()(capsules)` keeps each sample's longest capsule;
    `Mask()([capsules, one_hot])` multiplies each capsule by its entry of `one_hot`.

    Input shape: `[B, J, D]`, or a list of `[B, J, D]` and `[B, J]`.
    Output shape: `[B, J * D]`.

    Raises:
      ValueError: if the shapes are not these.

    >>> from tf_capsops.layers import Mask
    >>> import numpy as np
    >>> capsules = np.array([[[1.0, 2.0], [3.0, 4.0]]])
    >>> Mask()(capsules).numpy().tolist()
    [[0.0, 0.0, 3.0, 4.0]]
    >>> Mask()([capsules, np.array([[1, 0]])]).numpy().tolist()
    [[1.0, 2.0, 0.0, 0.0]]
    """

    def call(self, inputs):
        if isinstance(inputs, (list, tuple)):
            capsules, kept = _pair(inputs)
            capsules = dense_tensor("Mask", "capsules", capsules)
            kept = tf.cast(dense_tensor("Mask", "one_hot", kept), capsules.dtype)
            if kept.shape.rank is not None:
                self.compute_output_shape([tuple(capsules.shape), tuple(kept.shape)])
        else:
            capsules = dense_tensor("Mask", "capsules", inputs)
            self.compute_output_shape(tuple(capsules.shape))
            if capsules.shape[1] == 0:
                return tf.zeros([dimensions(capsules)[0], 0], capsules.dtype)
            squared = tf.reduce_sum(tf.square(at_least_float32(capsules)), axis=-1)
            kept = tf.one_hot(
                tf.argmax(squared, axis=-1), capsules.shape[1], dtype=capsules.dtype
            )
        masked = capsules * kept[..., tf.newaxis]
        return tf.reshape(masked, [-1, capsules.shape[1] * capsules.shape[2]])

    def compute_output_shape(self, input_shape):
        capsules, kept = _split(input_shape)
        known_shape("Mask", capsules, "[batch, caps, dim]")
        if not tf.TensorShape(kept).is_compatible_with(capsules[:2]):
            raise ValueError(
                f"Mask: one_hot must be [batch, {capsules[1]}], got shape {kept} for "
                f"capsules of shape {capsules}"
            )
        return (capsules[0], capsules[1] * capsules[2])

    def build(self, input_shape):
        self.compute_output_shape(input_shape)

    def get_config(self):
        # Keras raises an error for a layer that was given a dtype policy, unless the
        # layer overrides this method and so declares that the base config is complete.
        return super().get_config()


def _pair(inputs):
    if len(inputs) != 2:
        raise ValueError(
            "Mask: the input must be capsules or [capsules, one_hot], got "
            f"{len(inputs)} tensors"
        )
    return inputs


def _split(input_shape):
    """Returns the shapes of the capsules and of the one-hot labels, None without."""
    if input_shape and isinstance(input_shape[0], (list, tuple, tf.TensorShape)):
        capsules, kept = _pair(input_shape)
        return tuple(capsules), tuple(kept)
    return tuple(input_shape), None
