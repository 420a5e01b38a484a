# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Metrics of capsule networks."""

import keras
import tensorflow as tf

from tf_capsops import arguments
from tf_capsops.losses import one_hot_labels


@keras.saving.register_keras_serializable("tf_capsops")
class ExactMatch(keras.metrics.Mean):
    """The fraction of samples whose highest-scoring classes are exactly the true ones.

    Sabour et al. (2017), section 6, count in this way on MultiMNIST, where images show
    two digits: a sample counts if its two longest capsules are those of both digits.

    `update_state` takes `y_true`, `[B, classes]` with a 1 for each class that is
    present, and `y_pred`, scores `[B, classes]`. With smoothed labels, a class is
    present if its label is above 0.5. Integer labels, `[B]` or `[B, 1]`, mean samples
    of one class.

    Args:
      objects: the number of classes in a sample. With 1, the metric is the accuracy.
      name, dtype: as for every Keras metric.

    Raises:
      ValueError: if `objects` is not a positive integer, there are fewer classes than
        `objects`, or the labels have none of these shapes.

    >>> import tf_capsops
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
        if (scores.shape[-1] or self.objects) < self.objects:
            raise ValueError(
                f"ExactMatch: y_pred must be scores of {self.objects} classes or more, "
                f"got shape {scores.shape}"
            )
        highest = tf.math.top_k(scores, self.objects).indices
        read = tf.reduce_sum(tf.one_hot(highest, scores.shape[-1]), axis=-2)
        shown = one_hot_labels(y_true, scores) > 0.5
        right = tf.reduce_all((read > 0) == shown, axis=-1)
        super().update_state(tf.cast(right, self.dtype), sample_weight)

    def get_config(self):
        return {**super().get_config(), "objects": self.objects}


def classes_read(scores):
    """Returns the predicted class of each pixel.

    Args:
      scores: `[..., classes]`.

    Returns:
      Integers `[...]`: the class with the highest score. With a single score per pixel,
      1 (an object) if the score is 0.5 or more, and else 0.

    >>> from tf_capsops.metrics import classes_read
    >>> classes_read([[0.2, 0.8], [0.7, 0.3]]).numpy()
    array([1, 0])
    >>> classes_read([[0.2], [0.5]]).numpy()
    array([0, 1])
    """
    scores = tf.convert_to_tensor(scores)
    if scores.shape[-1] == 1:
        return tf.cast(scores[..., 0] >= 0.5, tf.int64)
    return tf.argmax(scores, axis=-1)


@keras.saving.register_keras_serializable("tf_capsops")
class Dice(keras.metrics.Metric):
    """The Dice coefficient of a class, or its mean over the classes.

    The coefficient is `2 TP / (2 TP + FP + FN)`, where pixels of all samples are
    counted together. `keras.metrics.OneHotIoU` gives it for a single class as
    `2 IoU / (1 + IoU)`.

    `update_state` takes `y_pred`, scores `[..., classes]`, and `y_true`, one-hot of the
    same shape or integers `[..., 1]`. The predicted class is the one with the highest
    score; with one class, pixels with a score of 0.5 or more are predicted.
    `sample_weight` is `[B]`, or has one weight for each pixel.

    Args:
      num_classes: the number of classes, including the background.
      class_id: the class whose coefficient is computed; None for the mean over the
        classes that were present or predicted.
      name, dtype: as for every Keras metric.

    Raises:
      ValueError: if an argument is not as above, or the labels have none of these
        shapes.

    >>> import tf_capsops
    >>> metric = tf_capsops.metrics.Dice(num_classes=2, class_id=1)
    >>> scores = [[[0.9, 0.1], [0.2, 0.8], [0.3, 0.7]]]
    >>> metric.update_state([[[0], [1], [0]]], scores)
    >>> round(float(metric.result()), 4)    # one pixel is right, of one and two
    0.6667
    """

    def __init__(self, num_classes, class_id=None, name="dice", dtype=None):
        super().__init__(name=name, dtype=dtype)
        self.num_classes = arguments.positive_int("Dice", "num_classes", num_classes)
        if class_id is not None:
            last = self.num_classes - 1
            class_id = arguments.int_between("Dice", "class_id", class_id, 0, last)
        self.class_id = class_id
        self.right, self.shown, self.read = (
            self.add_variable([self.num_classes], "zeros", name=each)
            for each in ("right", "shown", "read")
        )

    def update_state(self, y_true, y_pred, sample_weight=None):
        scores = tf.convert_to_tensor(y_pred)
        if scores.shape[-1] != self.num_classes:
            raise ValueError(
                f"Dice: y_pred must be scores of {self.num_classes} classes, got shape "
                f"{scores.shape}"
            )
        read = classes_read(scores)
        if self.num_classes == 1:
            read = tf.cast(read, self.dtype)[..., tf.newaxis]
        else:
            read = tf.one_hot(read, self.num_classes, dtype=self.dtype)
        shown = tf.cast(one_hot_labels(y_true, scores), self.dtype)
        weights = tf.ones([1], self.dtype)
        if sample_weight is not None:
            weights = tf.cast(sample_weight, self.dtype)
            while weights.shape.rank < scores.shape.rank:
                weights = weights[..., tf.newaxis]
        axes = list(range(scores.shape.rank - 1))
        for total, each in (
            (self.right, shown * read),
            (self.shown, shown),
            (self.read, read),
        ):
            total.assign_add(tf.reduce_sum(each * weights, axis=axes))

    def result(self):
        right, pixels = 2 * self.right.value, self.shown.value + self.read.value
        coefficients = tf.math.divide_no_nan(right, pixels)
        if self.class_id is not None:
            return coefficients[self.class_id]
        seen = tf.reduce_sum(tf.cast(pixels > 0, self.dtype))
        return tf.math.divide_no_nan(tf.reduce_sum(coefficients), seen)

    def get_config(self):
        return {
            **super().get_config(),
            "num_classes": self.num_classes,
            "class_id": self.class_id,
        }
