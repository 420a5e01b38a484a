# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Losses of capsule networks."""

import keras
import tensorflow as tf


@keras.saving.register_keras_serializable("tf_capsops")
class MarginLoss(keras.losses.Loss):
    """Computes the margin loss on the lengths of the class capsules.

    `T_k max(0, m_plus - |v_k|)^2 + down_weight (1 - T_k) max(0, |v_k| - m_minus)^2`,
    summed over the classes k: equation 4 of Sabour et al. (2017). Batches are averaged,
    unless `reduction` says otherwise.

    Call arguments: `y_pred`, lengths `[..., classes]`; `y_true`, one-hot labels of the
    same shape, or integer labels `[...]` or `[..., 1]`. With one class, `[..., 1]` is
    read as one-hot.

    Args:
      m_plus: the length to exceed for the class that is there.
      m_minus: the length to stay below for the others.
      down_weight: the weight of the others.
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
        if not 0 <= m_minus < m_plus <= 1:
            raise ValueError(
                "MarginLoss: the margins must be 0 <= m_minus < m_plus <= 1, got "
                f"m_minus={m_minus}, m_plus={m_plus}"
            )
        if down_weight < 0:
            raise ValueError(
                f"MarginLoss: down_weight must not be negative, got {down_weight}"
            )
        self.m_plus = m_plus
        self.m_minus = m_minus
        self.down_weight = down_weight

    def call(self, y_true, y_pred):
        lengths = tf.convert_to_tensor(y_pred)
        labels = one_hot_labels(y_true, lengths)
        present = tf.square(tf.maximum(0.0, self.m_plus - lengths))
        absent = tf.square(tf.maximum(0.0, lengths - self.m_minus))
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
class ReconstructionLoss(keras.losses.Loss):
    """Sums squared errors over a sample, as the decoder's loss of Sabour et al. (2017).

    Section 4.1 there adds 0.0005 of it to the margin loss. Batches are averaged,
    unless `reduction` says otherwise.

    Call arguments: `y_true` and `y_pred`, `[B, ...]` of one shape.

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
        squares = tf.square(tf.cast(y_true, y_pred.dtype) - y_pred)
        return tf.reduce_sum(squares, axis=list(range(1, squares.shape.rank)))


def one_hot_labels(labels, lengths):
    """Returns labels in the form of `lengths`: one entry a class, of its dtype.

    Args:
      labels: one-hot, `[..., classes]`; or integers, `[...]` or `[..., 1]`.
      lengths: a tensor `[..., classes]`.

    Raises:
      ValueError: if `labels` has none of these shapes.

    >>> import tensorflow as tf
    >>> from tf_capsops.losses import one_hot_labels
    >>> one_hot_labels([2, 0], tf.zeros([2, 3])).numpy().tolist()
    [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]
    """
    labels = tf.convert_to_tensor(labels)
    classes = lengths.shape[-1]
    rank = lengths.shape.rank
    if labels.shape.rank == rank and labels.shape[-1] == classes:
        return tf.cast(labels, lengths.dtype)
    if labels.shape.rank == rank and labels.shape[-1] == 1:
        labels = tf.squeeze(labels, axis=-1)
    if labels.shape.rank != rank - 1:
        raise ValueError(
            f"labels must be one-hot of shape {tuple(lengths.shape)} or integers of "
            f"shape {tuple(lengths.shape[:-1])}, got shape {tuple(labels.shape)}"
        )
    return tf.one_hot(tf.cast(labels, tf.int64), classes, dtype=lengths.dtype)
