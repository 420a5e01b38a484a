# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The layer that routes the capsules at all positions to one capsule per class."""

import numpy as np
import tensorflow as tf

from tf_capsops.arguments import boolean, positive_int
from tf_capsops.layers.routed import Routed, pair_of_shapes, pair_of_tensors
from tf_capsops.registered import registered
from tf_capsops.shapes import dimensions

_AXES = ("batch", "height", "width", "channels")


@registered
class ClassCaps(Routed):
    """Routes the capsules of a whole map to one capsule for each class.

    This is the last layer of Hinton, Sabour and Frosst (2018). All positions share the
    weights, so a vote alone does not tell where its child is. "Coordinate addition"
    tells it: the row and the column of the child's center, scaled to the range from 0
    to 1, are added to the first two numbers of the last column of each of its votes.

    Input shape: a list of poses `[B, H, W, C, P, Q]` and activations `[B, H, W, C]`, of
    which only the batch may be unknown. Output shape: poses `[B, num_classes, P, R]`
    and activations `[B, num_classes]`. Activations of 0 and masks work as in
    `ConvCaps2D`.

    Weights: `kernel` `[C, num_classes, Q, R]`, and those of the rule.

    Args:
      num_classes: the number of classes.
      routing: a rule of `tf_capsops.routing`; None for `EM()`.
      coordinates: whether to add positions to votes; P must then be at least 2.
      pose_shape: (P, R), the shape of the parents' poses, with the children's P. None
        for the children's (P, Q).
      kernel_initializer, kernel_regularizer, kernel_constraint: as for `ConvCaps2D`.
      bits, per_channel: as for `InqConv2D`; None keeps a floating-point kernel.

    Raises:
      ValueError: if an argument or the input's shape is not as above.

    >>> import tf_capsops
    >>> layer = tf_capsops.layers.ClassCaps(10)
    >>> layer.compute_output_shape([(None, 5, 5, 32, 4, 4), (None, 5, 5, 32)])
    ((None, 10, 4, 4), (None, 10))
    """

    def __init__(
        self,
        num_classes,
        routing=None,
        coordinates=True,
        pose_shape=None,
        kernel_initializer="lecun_normal",
        kernel_regularizer=None,
        kernel_constraint=None,
        *,
        bits=None,
        per_channel=False,
        **kwargs,
    ):
        super().__init__(
            (2, 1) if pose_shape is None else pose_shape,
            routing,
            kernel_initializer,
            kernel_regularizer,
            kernel_constraint,
            bits=bits,
            per_channel=per_channel,
            **kwargs,
        )
        self.num_classes = positive_int("ClassCaps", "num_classes", num_classes)
        self.coordinates = boolean("ClassCaps", "coordinates", coordinates)
        self._require_rows(self.pose_shape)
        if pose_shape is None:
            self.pose_shape = None

    def build(self, input_shape):
        parents, _ = self.compute_output_shape(input_shape)
        (_, height, width, channels, _, inner), _ = input_shape
        columns = parents[-1]
        shape = (channels, self.num_classes, inner, columns)
        self.add_kernel(shape, input_shape)
        inner += self.coordinates
        shape = (height, width, channels, self.num_classes, inner, columns)
        self.build_routing(shape, (parents[0], 1, 1, *parents[1:]))

    def children(self, inputs, mask=None):
        poses, activations = pair_of_tensors(self, inputs, mask)
        weights = tf.cast(self.kernel, poses.dtype)
        if self.coordinates:
            poses, weights = _with_coordinates(poses, weights)
        weights = tf.broadcast_to(weights, [*dimensions(poses)[1:3], *weights.shape])
        return (poses, activations, weights), {}

    def of_parents(self, values):
        return tf.squeeze(values, [1, 2])

    def compute_output_shape(self, input_shape):
        poses, _ = pair_of_shapes(self, input_shape, _AXES)
        capsules = (poses[0], self.num_classes)
        pose_shape = self.pose_shape or poses[-2:]
        self._require_rows(pose_shape)
        return (*capsules, *pose_shape), capsules

    def _require_rows(self, pose_shape):
        if self.coordinates and pose_shape[0] < 2:
            raise ValueError(
                "ClassCaps: with coordinates a pose must have at least two rows, got "
                f"pose_shape {tuple(pose_shape)}"
            )

    def get_config(self):
        return {
            **super().get_config(),
            "num_classes": self.num_classes,
            "coordinates": self.coordinates,
        }


def _middles(count):
    """Returns the centers of `count` equal parts of the interval from 0 to 1."""
    if isinstance(count, int):
        return (np.arange(count) + 0.5) / count
    return (tf.range(tf.cast(count, "float64")) + 0.5) / tf.cast(count, "float64")


def _with_coordinates(poses, weights):
    """Appends positions to poses as a column, and to weights the row that adds it."""
    batch, height, width, channels, rows, _ = dimensions(poses)
    is_known = isinstance(height, int) and isinstance(width, int)
    ops = np if is_known else tf
    axes = _middles(height)[:, np.newaxis], _middles(width)[np.newaxis]
    column = [ops.broadcast_to(each, [height, width]) for each in axes]
    column += [ops.zeros_like(column[0])] * (rows - 2)
    column = ops.reshape(ops.stack(column, -1), [1, height, width, 1, rows, 1])
    column = (tf.constant if is_known else tf.cast)(column, poses.dtype)
    column = tf.broadcast_to(column, [batch, height, width, channels, rows, 1])
    *pairs, _, columns = weights.shape
    row = tf.one_hot([columns - 1], columns, dtype=weights.dtype)
    row = tf.broadcast_to(row, [*pairs, 1, columns])
    return tf.concat([poses, column], -1), tf.concat([weights, row], -2)
