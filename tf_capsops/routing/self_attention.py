# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Self-attention routing."""

import functools
import math

import keras
import tensorflow as tf

from tf_capsops.routing.poses import squashed_and_lengths, with_flat_maps
from tf_capsops.routing.rule import Rule


@keras.saving.register_keras_serializable("tf_capsops")
class SelfAttention(Rule):
    """Self-attention routing: Mazzia, Salvetti and Chiaberge (2021), not iterative.

    A child's shares say how well its votes agree with the votes of all children: they
    are the softmax over the parents of `<vote, sum of votes> / sqrt(D)`, for poses of D
    numbers. A learned prior for each pair of child and parent, initially zero, is added
    to the share. The votes weighted in this way add up to the parent's pose, which
    `exponential_squash` shrinks; its length is the activation. Children whose
    activation is 0 are ignored; all others count equally.

    >>> import tf_capsops
    >>> layer = tf_capsops.layers.DenseCaps(
    ...     10, pose_shape=(1, 16), routing=tf_capsops.routing.SelfAttention())
    """

    def build(self, layer, weights_shape, output_shape):
        self._numbers = math.prod(output_shape[-2:])
        self.priors = layer.add_weight(
            name="priors", shape=weights_shape[:-2], initializer="zeros", autocast=False
        )

    def route(self, moments, training=False):
        moments, restored = with_flat_maps(moments)
        moments = functools.partial(moments, order=1, use_activations=False)
        _, total = moments(prior=tf.ones_like(self.priors), normalize="none")
        _, attended = moments(linear=total / math.sqrt(self._numbers))
        _, expected = moments(prior=self.priors, normalize="none")
        parents = squashed_and_lengths(attended + expected, axes=(-2, -1))
        return tuple(map(restored, parents))
