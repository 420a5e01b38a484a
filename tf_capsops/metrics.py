# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Metrics of capsule networks."""

import keras
import tensorflow as tf

from tf_capsops import arguments
from tf_capsops.losses import one_hot_labels


@keras.saving.register_keras_serializable("tf_capsops")
class ExactMatch(keras.metrics.Mean):
    """The share of the samples whose classes with the highest scores are all right.

    How Sabour et al. (2017), section 6, count on MultiMNIST, where images show two
    digits: a pair counts if the two longest capsules are those of both.

    `update_state` takes `y_true`, `[B, classes]` with a 1 for each class that is there,
    and `y_pred`, scores `[B, classes]`. A class of a smoothed label counts as there
    above 0.5. Integer labels, `[B]` or `[B, 1]`, are samples of one class.

    Args:
      objects: how many classes a sample shows. With 1 this is the accuracy.
      name, dtype: as for every Keras metric.

    Raises:
      ValueError: if `objects` is not a positive integer, or the labels have none of
        these shapes.

    >>> metric = tf_capsops.metrics.ExactMatch(objects=2)
    >>> metric.update_state([[1, 0, 1], [0, 1, 1]], [[0.6, 0.1, 0.4], [0.9, 0.8, 0.1]])
    >>> float(metric.result())
    0.5
    """

    def __init__(self, objects, name="exact_match", dtype=None):
        super().__init__(name=name, dtype=dtype)
        self.objects = arguments.positive_int("ExactMatch", "objects", objects)

    def update_state(self, y_true, y_pred, sample_weight=None):
        scores = tf.convert_to_tensor(y_pred)
        highest = tf.math.top_k(scores, self.objects).indices
        read = tf.reduce_sum(tf.one_hot(highest, scores.shape[-1]), axis=-2)
        shown = one_hot_labels(y_true, scores) > 0.5
        right = tf.reduce_all((read > 0) == shown, axis=-1)
        super().update_state(tf.cast(right, self.dtype), sample_weight)

    def get_config(self):
        return {**super().get_config(), "objects": self.objects}
