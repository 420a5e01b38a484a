# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The fully connected capsule layer, whose routing is a rule."""

import math

import tensorflow as tf

from tf_capsops.arguments import boolean, positive_int
from tf_capsops.layers.routed import Routed, pair_of_shapes, pair_of_tensors
from tf_capsops.layers.routing_bits import RoundedRouting
from tf_capsops.layers.weights import require_built
from tf_capsops.ops.capsule_routing import plain_agreement
from tf_capsops.ops.squash import at_least_float32
from tf_capsops.registered import registered
from tf_capsops.routing import Dynamic
from tf_capsops.routing.poses import norms, of_poses
from tf_capsops.shapes import dimensions


@registered
class DenseCaps(RoundedRouting, Routed):
    """Fully connected capsules: each child votes for each parent, and a rule routes.

    Each pair of child and parent has its own matrix. `DigitCaps` is the special case
    with poses of one row and the rule `Dynamic`.

    Input shape: a list of poses `[B, I, P, Q]` and activations `[B, I]`, of which only
    the batch may be unknown. Output shape: poses `[B, num_capsules, P, R]` and
    activations `[B, num_capsules]`. Every rule ignores children whose activation is 0,
    and children that a Keras mask `[B, I]` leaves out.

    With `share_weights`, all children use the same matrix for a parent. The children
    are then a set: their order has no effect, and I may be unknown and vary from call
    to call.

    Weights: `kernel` `[I, num_capsules, Q, R]`, or `[num_capsules, Q, R]` with
    `share_weights`; those of the rule; with `routing_bits` also `routing_ranges`
    `[iterations, 4, 2]`.

    Args:
      num_capsules: the number of parents.
      pose_shape: (P, R), the shape of the parents' poses, with the children's P.
      routing: a rule of `tf_capsops.routing`; None for `EM()`.
      kernel_initializer, kernel_regularizer, kernel_constraint: as for `ConvCaps2D`.
      share_weights: whether all children have the same matrices and priors.
      bits, per_channel: as for `InqConv2D`; None keeps a floating-point kernel.
      routing_bits: as for `DigitCaps`; only for the rule `Dynamic`.

    Raises:
      ValueError: if an argument or the input's shape is not as above.

    >>> import tf_capsops
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
        *,
        bits=None,
        per_channel=False,
        routing_bits=None,
        **kwargs,
    ):
        super().__init__(
            pose_shape,
            routing,
            kernel_initializer,
            kernel_regularizer,
            kernel_constraint,
            bits=bits,
            per_channel=per_channel,
            routing_bits=routing_bits,
            **kwargs,
        )
        if self.routing_bits is not None and type(self.routing) is not Dynamic:
            raise ValueError(
                "DenseCaps: routing_bits needs the rule Dynamic, got "
                f"{type(self.routing).__name__}"
            )
        self.num_capsules = positive_int("DenseCaps", "num_capsules", num_capsules)
        self.share_weights = boolean("DenseCaps", "share_weights", share_weights)

    def build(self, input_shape):
        parents, _ = self.compute_output_shape(input_shape)
        (_, in_caps, _, inner), _ = input_shape
        shape = (self.num_capsules, inner, self.pose_shape[1])
        own = shape if self.share_weights else (in_caps, *shape)
        self.add_kernel(own, input_shape)
        of_pairs = (1, 1, 1 if self.share_weights else in_caps, *shape)
        self.build_routing(of_pairs, (parents[0], 1, 1, *parents[1:]))
        if self.routing_bits is not None:
            self.add_routing_ranges(self.routing.iterations)

    def call(self, inputs, training=None, mask=None):
        if self.routing_bits is None:
            return super().call(inputs, training, mask)
        children = pair_of_tensors(self, inputs, mask)
        poses, _ = self._in_few_bits(*children)
        return tuple(tf.cast(each, children[0].dtype) for each in (poses, norms(poses)))

    def children(self, inputs, mask=None):
        poses, activations = pair_of_tensors(self, inputs, mask)
        weights = tf.cast(self.kernel, poses.dtype)
        if self.share_weights:
            in_caps = dimensions(poses)[1]
            weights = tf.broadcast_to(weights, [in_caps, *weights.shape])
        # The children become the channels of an image of one pixel, under a window of
        # one pixel.
        return (
            _at_one_pixel(poses, 1),
            _at_one_pixel(activations, 1),
            _at_one_pixel(weights, 0),
        ), {}

    def of_parents(self, values):
        return tf.squeeze(values, [1, 2])

    def shares(self, inputs, mask=None):
        if self.routing_bits is None:
            return tf.squeeze(super().shares(inputs, mask), [1, 2])
        require_built(self)
        _, found = self._in_few_bits(*pair_of_tensors(self, inputs, mask))
        return tf.stop_gradient(found)

    def _in_few_bits(self, poses, activations):
        """Returns the parents' poses, and the shares `[B, I, num_capsules]`.

        They are float32, or float64 if the children are.
        """
        poses = at_least_float32(poses)
        exist = tf.cast(tf.not_equal(activations, 0), poses.dtype)
        poses *= of_poses(exist)
        kernel = tf.cast(self.kernel, poses.dtype)
        pairs = "jqr" if self.share_weights else "ijqr"
        votes = tf.einsum(f"bipq,{pairs}->bjipr", poses, kernel)
        batch, parents, children, *pose = dimensions(votes)
        votes = tf.reshape(votes, [batch, parents, children, math.prod(pose)])
        found, shares = plain_agreement(
            votes,
            tf.zeros([1, parents, 1, children], votes.dtype),
            self.routing.iterations,
            self.routing.epsilon,
            rounded=self.rounded,
        )
        found = tf.reshape(found, [batch, parents, *pose])
        shares = tf.transpose(tf.squeeze(shares, 2), [0, 2, 1])
        return found, shares * exist[..., tf.newaxis]

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
    """Inserts two axes of size 1, height and width, before an axis."""
    return tf.expand_dims(tf.expand_dims(tensor, axis), axis)
