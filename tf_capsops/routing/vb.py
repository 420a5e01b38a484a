# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Variational Bayes routing."""

import math

import keras
import tensorflow as tf

from tf_capsops import _portable
from tf_capsops.arguments import positive_int
from tf_capsops.routing.digamma import digamma
from tf_capsops.routing.poses import (
    means_and_scatter,
    moments_about_mean,
    of_poses,
    sums,
    with_flat_maps,
)
from tf_capsops.routing.rule import Rule, type_of_moments

_PRIOR_MASS = 1.0  # The weight of the mean's prior, kappa_0.


@keras.saving.register_keras_serializable("tf_capsops")
class VB(Rule):
    """Variational Bayes routing: Ribeiro, Leontidis and Kollias (2020).

    The rule adds priors to the Gaussians of EM routing, on their means, precisions
    (diagonal here) and shares, so that a parent with few votes does not collapse onto
    them. Each iteration computes the posteriors from the moments (equations 9 to 15 of
    the paper), and the shares from the posteriors. The priors are the paper's: 1 for
    the shares and for the weight of the mean, zero mean, unit scale, and `D + 1`
    degrees of freedom for poses of D numbers.

    Poses are the posterior means. Activations are the sigmoid of
    `beta_a - beta_u - exp(E ln pi) H`, where H is the entropy of the parent. The poses
    and the argument of the sigmoid go through batch normalization for each parent type,
    without learned scale and offset. `beta_a` and `beta_u` are learned, one pair for
    each parent type.

    The priors expect votes with a variance of `1 / (D + 1)`. Weights that give larger
    votes divide children sharply before anything is learned, and training is slow. So
    give the layer `kernel_initializer=keras.initializers.VarianceScaling(0.01)`, for
    votes a tenth as large as poses, as `models.matrix_capsnet` does.

    Args:
      iterations: how often the posteriors are computed, at least 1.

    Raises:
      ValueError: if `iterations` is not as above.

    >>> import tf_capsops
    >>> layer = tf_capsops.layers.ConvCaps2D(
    ...     8, kernel_size=3, routing=tf_capsops.routing.VB())
    """

    def __init__(self, iterations=3):
        self.iterations = positive_int("VB", "iterations", iterations)

    def build(self, layer, weights_shape, output_shape):
        self.beta_a, self.beta_u = (
            layer.add_weight(
                name=name,
                shape=[weights_shape[-3]],
                initializer="zeros",
                autocast=False,
            )
            for name in ("beta_a", "beta_u")
        )
        self._numbers = math.prod(output_shape[-2:])
        dtype, axis = type_of_moments(layer), len(output_shape) - 3
        plain = {"center": False, "scale": False, "momentum": 0.9, "epsilon": 1e-5}
        # As attributes of the layer, their moving statistics are saved with it.
        layer.pose_normalization, layer.activation_normalization = (
            keras.layers.BatchNormalization(axis, dtype=dtype, name=name, **plain)
            for name in ("pose_normalization", "activation_normalization")
        )
        layer.pose_normalization.build(output_shape)
        layer.activation_normalization.build(output_shape[:-2])
        self._normalize_poses = layer.pose_normalization
        self._normalize_activations = layer.activation_normalization

    def route(self, moments, training=False):
        moments, restored = with_flat_maps(moments)
        found = moments_about_mean(moments, _PRIOR_MASS)
        poses, shares, entropy, statistics = self._posterior(*found)
        for _ in range(1, self.iterations):
            found = moments(center=poses, order=2, **statistics)
            poses, shares, entropy, statistics = self._posterior(poses, *found)
        beta_a, beta_u = (
            tf.cast(each, shares.dtype) for each in (self.beta_a, self.beta_u)
        )
        evidence = beta_a - beta_u - shares * entropy
        evidence, poses = (
            _normalized(layer, each, restored, training)
            for layer, each in (
                (self._normalize_activations, evidence),
                (self._normalize_poses, poses),
            )
        )
        return poses, tf.sigmoid(evidence)

    def _posterior(self, center, mass, first, second):
        """Returns means, expected shares, entropies, and statistics for `moments`."""
        numbers = self._numbers
        alpha, kappa = 1.0 + mass, _PRIOR_MASS + mass
        degrees = numbers + 1.0 + mass
        # The scale has the scatter of the votes about the mean, and the square of the
        # distance between the mean and the mean of its prior, 0.
        means, scatter = means_and_scatter(center, mass, first, second, _PRIOR_MASS)
        scale = 1.0 + scatter + tf.square(means)

        total = tf.reduce_sum(alpha, axis=-1, keepdims=True)
        log_shares = digamma(alpha) - digamma(total)
        steps = tf.range(numbers, dtype=mass.dtype)
        log_precision = (
            tf.reduce_sum(digamma((degrees[..., tf.newaxis] - steps) / 2), -1)
            + numbers * math.log(2)
            - sums(tf.math.log(scale))
        )
        entropy = 0.5 * (numbers * math.log(2 * math.pi * math.e) - log_precision)
        statistics = {
            "bias": log_shares + 0.5 * log_precision - 0.5 * numbers / kappa,
            "precision": of_poses(degrees) / scale,
        }
        return means, tf.exp(log_shares), entropy, statistics

    def get_config(self):
        return {"iterations": self.iterations}


def _normalized(layer, parents, restored, training):
    """Returns normalized parents, with all axes of their map.

    Args:
      layer: a batch normalization layer, built for all axes of the map.
      parents: capsules or poses; their map is flat in portable graphs.
      restored: the function of `with_flat_maps` that restores the axes.
      training: as for `Rule.route`.
    """
    if training or not _portable.is_on():
        return layer(restored(parents), training=training)
    # TFLite without XNNPACK would overwrite a reshaped tensor, so the normalization
    # comes before the reshape.
    normalized = keras.ops.batch_normalization(
        parents,
        *(layer.moving_mean, layer.moving_variance),
        axis=1,
        epsilon=layer.epsilon,
    )
    return restored(normalized)
