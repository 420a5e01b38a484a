# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Inverted dot-product attention routing."""

import math

import keras
import tensorflow as tf

from tf_capsops.arguments import number, positive_int
from tf_capsops.routing.poses import with_flat_maps
from tf_capsops.routing.rule import Rule, type_of_moments
from tf_capsops.shapes import dimensions

_EPSILON = 1e-5  # Added to variances in the layer normalization.


@keras.saving.register_keras_serializable("tf_capsops")
class InvertedAttention(Rule):
    """Inverted dot-product attention: Tsai, Srivastava, Goh and Salakhutdinov (2020).

    Parents attend to children, but the attention is normalized over the parents, which
    compete for each child. A parent's pose is the sum of votes weighted by their
    shares, after layer normalization over the pose. Children whose activation is 0 are
    ignored; all others count equally. The parents' activations are ones, so a
    classifier must read the poses.

    This is the paper's sequential schedule. The concurrent schedule, which iterates
    over all layers at once, is not implemented.

    Args:
      iterations: how often the parents are computed, at least 1. The first iteration
        has equal shares.
      dropout: the fraction of a pose's numbers that training drops before the
        normalization, at least 0 and below 1.

    Raises:
      ValueError: if an argument is not as above.

    >>> import tf_capsops
    >>> layer = tf_capsops.layers.ConvCaps2D(
    ...     8, kernel_size=3, routing=tf_capsops.routing.InvertedAttention())
    """

    def __init__(self, iterations=2, dropout=0.0):
        self.iterations = positive_int("InvertedAttention", "iterations", iterations)
        number("InvertedAttention", "dropout", dropout)
        if not 0 <= dropout < 1:
            raise ValueError(
                "InvertedAttention: dropout must be at least 0 and below 1, got "
                f"{dropout!r}"
            )
        self.dropout = float(dropout)

    def build(self, layer, weights_shape, output_shape):
        shape = output_shape[-2:]
        self._numbers = math.prod(shape)
        self.scale, self.offset = (
            layer.add_weight(
                name=name, shape=shape, initializer=initializer, autocast=False
            )
            for name, initializer in (("scale", "ones"), ("offset", "zeros"))
        )
        if self.dropout:
            # As an attribute of the layer, the state of the random numbers is saved.
            layer.routing_dropout = keras.layers.Dropout(
                self.dropout, dtype=type_of_moments(layer)
            )
            self._drop = layer.routing_dropout

    def route(self, moments, training=False):
        moments, restored = with_flat_maps(moments)
        linear = None
        for _ in range(self.iterations):
            _, poses = moments(linear=linear, order=1, use_activations=False)
            if self.dropout:
                poses = self._drop(poses, training=training)
            poses = self._normalized(poses)
            linear = poses / math.sqrt(self._numbers)
        poses = restored(poses)
        return poses, tf.ones(dimensions(poses)[:-2], poses.dtype)

    def _normalized(self, poses):
        mean, variance = tf.nn.moments(poses, axes=(-2, -1), keepdims=True)
        scaled = (poses - mean) * tf.math.rsqrt(variance + _EPSILON)
        scale, offset = (
            tf.cast(each, poses.dtype) for each in (self.scale, self.offset)
        )
        return scaled * scale + offset

    def get_config(self):
        return {"iterations": self.iterations, "dropout": self.dropout}
