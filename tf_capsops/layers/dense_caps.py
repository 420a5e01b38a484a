# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Fully connected capsules, routed by a rule."""

import tensorflow as tf

from tf_capsops.arguments import boolean, positive_int
from tf_capsops.layers.routed import Routed, pair_of_shapes, pair_of_tensors
from tf_capsops.registered import registered
from tf_capsops.shapes import dimensions


@registered
class DenseCaps(Routed):
    """Fully connected capsules: a matrix for each pair of child and parent, and a rule.

    `DigitCaps` is the case of poses of one row and the rule `Dynamic`.

    Input: a list of poses `[B, I, P, Q]` and activations `[B, I]`, of which only the
    batch may be unknown. Output: poses `[B, num_capsules, P, R]` and activations
    `[B, num_capsules]`. A child of an activation of 0, or that a Keras mask `[B, I]`
    leaves out, has no share in anything, whatever the rule.

    With `share_weights`, a matrix for each parent is that of all children, which are
    then a set: their order has no effect, and how many there are may be unknown and
    vary from call to call.

    Weights: `kernel` `[I, num_capsules, Q, R]`, or `[num_capsules, Q, R]` with
    `share_weights`; and those of the rule.

    Args:
      num_capsules: how many parents.
      pose_shape: (P, R) of the parents' poses; P is the children's.
      routing: a rule of `tf_capsops.routing`; None for `EM()`.
      share_weights: whether all children have the same matrices and priors.
      kernel_initializer, kernel_regularizer, kernel_constraint: as for `ConvCaps2D`.
      bits, per_channel: as for `InqConv2D`; without bits the kernel holds numbers.

    Raises:
      ValueError: if an argument or the input's shape is not as above.

    >>> layer = tf_capsops.layers.DenseCaps(
    ...     10, pose_shape=(1, 16), routing=tf_capsops.routing.Dynamic())
    >>> layer.compute_output_shape([(None, 1152, 1, 8), (None, 1152)])
    ((None, 10, 1, 16), (None, 10))
    """

    def __init__(
        self,
        num_capsules,
        pose_shape,
        routing=None,
        kernel_initializer="lecun_normal",
        kernel_regularizer=None,
        kernel_constraint=None,
        share_weights=False,
        **kwargs,
    ):
        super().__init__(
            pose_shape,
            routing,
            kernel_initializer,
            kernel_regularizer,
            kernel_constraint,
            **kwargs,
        )
        self.num_capsules = positive_int("DenseCaps", "num_capsules", num_capsules)
        self.share_weights = boolean("DenseCaps", "share_weights", share_weights)

    def build(self, input_shape):
        parents, _ = self.compute_output_shape(input_shape)
        (_, in_caps, _, inner), _ = input_shape
        shape = (self.num_capsules, inner, self.pose_shape[1])
        self.add_kernel(shape if self.share_weights else (in_caps, *shape))
        of_pairs = (1, 1, 1 if self.share_weights else in_caps, *shape)
        self.build_routing(of_pairs, (parents[0], 1, 1, *parents[1:]))

    def children(self, inputs, mask=None):
        poses, activations = pair_of_tensors(self, inputs, mask)
        weights = tf.cast(self.kernel, poses.dtype)
        if self.share_weights:
            in_caps = dimensions(poses)[1]
            weights = tf.broadcast_to(weights, [in_caps, *weights.shape])
        # A window of one pixel at one position.
        return (
            _at_one_pixel(poses, 1),
            _at_one_pixel(activations, 1),
            _at_one_pixel(weights, 0),
        ), {}

    def of_parents(self, values):
        return tf.squeeze(values, [1, 2])

    def shares(self, inputs, mask=None):
        return tf.squeeze(super().shares(inputs, mask), [1, 2])

    def compute_output_shape(self, input_shape):
        axes = ("batch", "capsules")
        unknown = 2 if self.share_weights else 1
        poses, _ = pair_of_shapes(self, input_shape, axes, may_be_unknown=unknown)
        capsules = (poses[0], self.num_capsules)
        return (*capsules, *self.pose_shape), capsules

    def get_config(self):
        return {
            **super().get_config(),
            "num_capsules": self.num_capsules,
            "share_weights": self.share_weights,
        }


def _at_one_pixel(tensor, axis):
    """Adds a height and a width of 1 before an axis."""
    return tf.expand_dims(tf.expand_dims(tensor, axis), axis)
