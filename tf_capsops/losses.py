# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Losses of capsule networks."""

import math
import warnings

import keras
import numpy as np
import tensorflow as tf

from tf_capsops import arguments, shapes


@keras.saving.register_keras_serializable("tf_capsops")
class MarginLoss(keras.losses.Loss):
    """Computes the margin loss on the lengths of the class capsules.

    `T_k max(0, m_plus - |v_k|)^2 + down_weight (1 - T_k) max(0, |v_k| - m_minus)^2`,
    summed over the classes k: equation 4 of Sabour et al. (2017). The loss is the mean
    over the batch, unless `reduction` says otherwise.

    Call arguments: `y_pred`, lengths `[..., classes]`; `y_true`, one-hot labels of the
    same shape, or integer labels `[..., 1]`; for lengths `[B, classes]` also `[B]`.
    With one class, `[..., 1]` is read as one-hot. An integer that is not a class raises
    an `InvalidArgumentError`; compiled by XLA, it makes the loss NaN instead.

    Args:
      m_plus: the length that the capsule of a present class should exceed.
      m_minus: the length below which the capsules of absent classes should stay.
      down_weight: the weight of absent classes.
      reduction, name, dtype: as for every Keras loss.

    Raises:
      ValueError: if the margins are not `0 <= m_minus < m_plus <= 1`, `down_weight` is
        negative, or the labels have none of these shapes.

    >>> from tf_capsops.losses import MarginLoss
    >>> round(float(MarginLoss()([[0.0, 1.0]], [[0.3, 0.7]])), 4)
    0.06
    >>> round(float(MarginLoss()([1], [[0.3, 0.7]])), 4)
    0.06
    """

    def __init__(
        self,
        m_plus=0.9,
        m_minus=0.1,
        down_weight=0.5,
        reduction="sum_over_batch_size",
        name="margin_loss",
        dtype=None,
    ):
        super().__init__(name=name, reduction=reduction, dtype=dtype)
        arguments.number("MarginLoss", "m_minus", m_minus)
        arguments.number("MarginLoss", "m_plus", m_plus)
        if not 0 <= m_minus < m_plus <= 1:
            raise ValueError(
                "MarginLoss: the margins must be 0 <= m_minus < m_plus <= 1, got "
                f"m_minus={m_minus}, m_plus={m_plus}"
            )
        self.m_plus = m_plus
        self.m_minus = m_minus
        self.down_weight = arguments.not_negative(
            "MarginLoss", "down_weight", down_weight
        )

    def call(self, y_true, y_pred):
        lengths = tf.convert_to_tensor(y_pred)
        labels = one_hot_labels(y_true, lengths)
        present = tf.square(tf.maximum(self.m_plus - lengths, 0.0))
        absent = tf.square(tf.maximum(lengths - self.m_minus, 0.0))
        losses = labels * present + self.down_weight * (1.0 - labels) * absent
        return tf.reduce_sum(losses, axis=-1)

    def get_config(self):
        return {
            **super().get_config(),
            "m_plus": self.m_plus,
            "m_minus": self.m_minus,
            "down_weight": self.down_weight,
        }


@keras.saving.register_keras_serializable("tf_capsops")
class SpreadLoss(keras.losses.Loss):
    """Computes the spread loss on the activations of the class capsules.

    `max(0, m - (a_t - a_i))^2`, summed over the classes i other than the true class t:
    equation 3 of Hinton, Sabour and Frosst, "Matrix Capsules" (2018). The margin m
    grows linearly, from `start` to `end` over the first `steps` steps of training, so
    that capsules do not die early. The loss is the mean over the batch, unless
    `reduction` says otherwise.

    Each pair of classes t and i has the weight `y_t (1 - y_i)`, where y are the labels.
    So if a sample has several true classes, their sums are added, and true classes are
    not compared with each other. Smoothed labels weight the pairs. The loss of a sample
    without a label, all zeros, is 0.

    The loss reads the number of steps from an optimizer, so that a resumed run
    continues where it stopped. `tf_capsops.models.matrix_capsnet` arranges this. For
    any other model, call `loss.follow(model.optimizer)` after `compile`, and again
    after loading the model from a file. Otherwise the margin stays at `start`, or at
    its value in the file, and the loss warns about it.

    Call arguments: `y_pred`, activations `[..., classes]`; `y_true` as for
    `MarginLoss`.

    Args:
      steps: the number of steps over which the margin grows.
      start: the margin at the first step.
      end: the margin after `steps` steps.
      reduction, name, dtype: as for every Keras loss.

    Raises:
      ValueError: if `steps` is not a positive integer, or the margins are not `0 <
        start <= end <= 1`.

    >>> import keras
    >>> import tf_capsops
    >>> loss = tf_capsops.losses.SpreadLoss(steps=1000, start=0.5)
    >>> loss.follow(keras.optimizers.Adam())     # whose first step is to come
    >>> float(loss([1], [[0.25, 0.5, 0.75]]))    # 0.25^2 + 0.75^2
    0.625
    >>> float(loss([[1, 1, 0]], [[0.25, 0.5, 0.75]]))    # 1.0^2 + 0.75^2
    1.5625
    """

    def __init__(
        self,
        steps,
        start=0.2,
        end=0.9,
        reduction="sum_over_batch_size",
        name="spread_loss",
        dtype=None,
    ):
        super().__init__(name=name, reduction=reduction, dtype=dtype)
        self.steps = arguments.positive_int("SpreadLoss", "steps", steps)
        arguments.number("SpreadLoss", "start", start)
        arguments.number("SpreadLoss", "end", end)
        if not 0 < start <= end <= 1:
            raise ValueError(
                "SpreadLoss: the margins must be 0 < start <= end <= 1, got "
                f"start={start}, end={end}"
            )
        self.start = start
        self.end = end
        self._steps_in_file = 0
        self._followed = None
        self._optimizer = None  # Set when a file of an earlier release is loaded.

    def follow(self, optimizer):
        """Makes the margin grow with the steps of a Keras optimizer."""
        # A function hides the optimizer from Keras, which would save it as a part of
        # the loss. A loaded model looks for its optimizer elsewhere.
        self._followed = lambda: optimizer

    def call(self, y_true, y_pred):
        activations = tf.convert_to_tensor(y_pred)
        labels = one_hot_labels(y_true, activations)
        margin = tf.cast(self._margin(), activations.dtype)
        ahead = activations[..., :, tf.newaxis] - activations[..., tf.newaxis, :]
        excess = tf.square(tf.maximum(margin - ahead, 0.0))
        pairs = labels[..., :, tf.newaxis] * (1.0 - labels)[..., tf.newaxis, :]
        others = 1.0 - tf.eye(labels.shape[-1], dtype=labels.dtype)
        return tf.reduce_sum(pairs * others * excess, axis=[-2, -1])

    def _margin(self):
        if self._followed is None:
            # Rounded to float32 as below, except that 0 gives exactly `start`.
            grown = np.float32(min(self._steps_in_file, self.steps)) / self.steps
            grown = grown if self._steps_in_file else 0.0
        else:
            steps = tf.convert_to_tensor(self._followed().iterations)
            grown = tf.minimum(tf.cast(steps, tf.float32) / self.steps, 1.0)
        margin = self.start + (self.end - self.start) * grown
        if self._followed is None and self.start < self.end:
            warnings.warn(
                f"SpreadLoss: the margin stays at {margin:.3g}: call "
                "loss.follow(model.optimizer) after compile and before training",
                stacklevel=2,
            )
        return margin

    def save_own_variables(self, store):
        self._optimizer = None
        followed = self._followed
        store["steps"] = followed().iterations if followed else self._steps_in_file

    def load_own_variables(self, store):
        if "steps" in store:
            self._optimizer = None
            self._steps_in_file = int(np.asarray(store["steps"]))
        elif self._followed is not None:
            # Files of earlier releases hold the optimizer as a part of the loss.
            self._optimizer = self._followed()

    def get_config(self):
        return {
            **super().get_config(),
            "steps": self.steps,
            "start": self.start,
            "end": self.end,
        }


@keras.saving.register_keras_serializable("tf_capsops")
class ReconstructionLoss(keras.losses.Loss):
    """Computes the sum of squared errors over a sample, the loss of decoders.

    Sabour et al. (2017), section 4.1, add 0.0005 of it to the margin loss. The loss is
    the mean over the batch, unless `reduction` says otherwise.

    Call arguments: `y_true` and `y_pred`, `[B, ...]` of one shape. Nothing broadcasts.

    Raises:
      ValueError: if the shapes differ.
      tf.errors.InvalidArgumentError: if shapes unknown in a graph differ when it runs.

    >>> from tf_capsops.losses import ReconstructionLoss
    >>> float(ReconstructionLoss()([[0.0, 0.0]], [[1.0, 2.0]]))
    5.0
    """

    def __init__(
        self, reduction="sum_over_batch_size", name="reconstruction_loss", dtype=None
    ):
        super().__init__(name=name, reduction=reduction, dtype=dtype)

    def call(self, y_true, y_pred):
        y_pred = tf.convert_to_tensor(y_pred)
        y_true = tf.cast(y_true, y_pred.dtype)
        text = "ReconstructionLoss: y_true and y_pred must be of one shape"
        if not y_true.shape.is_compatible_with(y_pred.shape):
            raise ValueError(f"{text}, got {y_true.shape} and {y_pred.shape}")
        check = tf.debugging.assert_equal(tf.shape(y_true), tf.shape(y_pred), text)
        with tf.control_dependencies([check]):
            squares = tf.square(y_true - y_pred)
        return tf.reduce_sum(squares, axis=list(range(1, y_pred.shape.rank)))


@keras.saving.register_keras_serializable("tf_capsops")
class WeightedBinaryCrossentropy(keras.losses.Loss):
    """Computes the binary cross-entropy of every class, with a weight for positives.

    `-(positive_weight y log p + (1 - y) log(1 - p))`, averaged over the classes. This
    is the segmentation loss of LaLonde and Bagci, "Capsules for Object Segmentation"
    (2018), with `positive_weight = (1 - q) / q` for an object that covers the fraction
    q of all pixels. With a weight of 1, it is `keras.losses.BinaryCrossentropy`. The
    loss is the mean over the batch, unless `reduction` says otherwise.

    Call arguments: `y_pred`, probabilities or lengths `[..., classes]` from 0 to 1;
    `y_true` as for `MarginLoss`.

    Args:
      positive_weight: the weight of positive labels, above 0.
      reduction, name, dtype: as for every Keras loss.

    Raises:
      ValueError: if the weight is not a positive number, or the labels have none of
        these shapes.

    >>> import tf_capsops
    >>> loss = tf_capsops.losses.WeightedBinaryCrossentropy(positive_weight=3)
    >>> round(float(loss([[1.0], [0.0]], [[0.5], [0.5]])), 4)    # (3 + 1) / 2 * log 2
    1.3863
    """

    def __init__(
        self,
        positive_weight,
        reduction="sum_over_batch_size",
        name="weighted_binary_crossentropy",
        dtype=None,
    ):
        super().__init__(name=name, reduction=reduction, dtype=dtype)
        self.positive_weight = arguments.positive_number(
            "WeightedBinaryCrossentropy", "positive_weight", positive_weight
        )

    def call(self, y_true, y_pred):
        scores = tf.convert_to_tensor(y_pred)
        labels = one_hot_labels(y_true, scores)
        epsilon = keras.config.epsilon()
        scores = tf.clip_by_value(scores, epsilon, 1.0 - epsilon)
        present = self.positive_weight * labels * tf.math.log(scores)
        absent = (1.0 - labels) * tf.math.log1p(-scores)
        return -tf.reduce_mean(present + absent, axis=-1)

    def get_config(self):
        return {**super().get_config(), "positive_weight": self.positive_weight}


def one_hot_labels(labels, lengths):
    """Returns labels in the shape and dtype of `lengths`, with one entry per class.

    Args:
      labels: one-hot, `[..., classes]`; or integers, `[..., 1]`, or `[B]` for lengths
        `[B, classes]`.
      lengths: a tensor `[..., classes]`.

    Raises:
      ValueError: if `labels` has none of these shapes.
      tf.errors.InvalidArgumentError: if an integer is not a class. Compiled by XLA,
        there is no error, and the entries of the sample are NaN.

    >>> import tensorflow as tf
    >>> from tf_capsops.losses import one_hot_labels
    >>> one_hot_labels([2, 0], tf.zeros([2, 3])).numpy().tolist()
    [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]
    """
    labels = tf.convert_to_tensor(labels)
    if labels.shape.rank is None:
        return _one_hot_labels_of_unknown_rank(labels, lengths)
    outer, classes = lengths.shape[:-1], lengths.shape[-1]

    def has_shape(*last):
        return (
            labels.shape.rank == len(outer) + len(last)
            and labels.shape[len(outer) :] == last
            and labels.shape[: len(outer)].is_compatible_with(outer)
        )

    if has_shape(classes):
        return tf.cast(labels, lengths.dtype)
    # If `lengths` are capsules, because the model lacks a Length layer, [batch, caps]
    # may well be one-hot labels. So integers without a last axis need [batch, classes].
    last = (1,) if len(outer) > 1 else ()
    if has_shape(1):
        labels = tf.squeeze(labels, axis=-1)
    elif last or not has_shape():
        text = (
            f"labels must be one-hot of shape {tuple(lengths.shape)} or integers of "
            f"shape {(*outer, *last)}, got shape {tuple(labels.shape)}"
        )
        if last:
            text += "; capsules need a Length layer before the loss"
        raise ValueError(text)
    return _one_hot_integers(labels, classes, lengths.dtype)


def _one_hot_labels_of_unknown_rank(labels, lengths):
    """Finds out at run time whether labels are one-hot or integers.

    A function that has been called with several ranks does not know the rank. Both
    forms are computed, because XLA compiles every branch for every rank.
    """
    *outer, classes = shapes.dimensions(lengths)
    is_one_hot = _has_shape(labels, [*outer, classes])
    is_integers = _has_shape(labels, [*outer, 1])
    if len(outer) == 1:
        is_integers |= _has_shape(labels, outer)
    fits = is_one_hot | is_integers
    text = "labels must be one-hot or integers, one entry for each of the lengths'"
    check = tf.debugging.Assert(
        fits, [text, outer, "samples, got shape", tf.shape(labels)]
    )
    with tf.control_dependencies([check]):
        flat = tf.reshape(labels, [-1])

    def taken(condition, shape):
        places = tf.where(condition, tf.range(tf.reduce_prod(shape)), 0)
        numbers = tf.reshape(tf.gather(flat, places), shape)
        return tf.where(condition, numbers, tf.zeros([], numbers.dtype))

    integers = _one_hot_integers(taken(~is_one_hot, outer), classes, lengths.dtype)
    given = tf.cast(taken(is_one_hot, [*outer, classes]), lengths.dtype)
    # XLA drops assertions. There, NaN reports the error.
    return tf.where(fits, tf.where(is_one_hot, given, integers), math.nan)


def _has_shape(tensor, shape):
    """Returns whether a tensor has a shape, as a boolean tensor."""
    found = tf.concat([tf.shape(tensor), tf.ones_like(shape)], 0)[: len(shape)]
    is_same = tf.reduce_all(tf.equal(found, shape))
    return is_same & tf.equal(tf.rank(tensor), len(shape))


def _one_hot_integers(labels, classes, dtype):
    labels = tf.cast(labels, tf.float64)
    known = (labels >= 0) & (labels < classes) & (tf.floor(labels) == labels)
    wrong = tf.reduce_max(tf.where(known, labels.dtype.min, labels))
    text = f"labels of {classes} classes must be integers from 0 to {classes - 1}, got"
    check = tf.raw_ops.Assert(condition=tf.reduce_all(known), data=[text, wrong])
    with tf.control_dependencies([check]):
        one_hot = tf.one_hot(tf.cast(labels, tf.int32), classes, dtype=dtype)
    # XLA drops assertions. There, NaN reports the error.
    return tf.where(known[..., tf.newaxis], one_hot, math.nan)
