# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""EM routing."""

import math

import keras
import tensorflow as tf

from tf_capsops.arguments import positive_float32, positive_int
from tf_capsops.routing.poses import (
    moments_about_mean,
    of_poses,
    sums,
    with_flat_maps,
)
from tf_capsops.routing.rule import Rule

_LEAST_MASS = 1e-7
_DECAY = 0.95  # Each iteration multiplies `final_lambda - lambda` by this factor.


@keras.saving.register_keras_serializable("tf_capsops")
class EM(Rule):
    """EM routing: Hinton, Sabour and Frosst, "Matrix Capsules" (2018), procedure 1.

    A parent is a Gaussian over votes. Its mean `mu` is the parent's pose, and each
    number of the pose has its own variance `sigma_h^2`. The M-step fits the Gaussian to
    the votes, weighted by their shares. The narrower it is, the more active the parent:

        cost_h = (beta_u + ln sigma_h) mass
        lambda = final_lambda (1 - 0.95^(t + 1)) in iteration t = 0, 1, ...
        a      = sigmoid(lambda (beta_a - activation_scale * sum of cost_h))

    The E-step divides each child among the parents in proportion to `a` times the
    likelihood of its vote.

    `beta_a` and `beta_u` are learned, one pair for each parent type.

    Args:
      iterations: how often the Gaussians are fitted, at least 1.
      normalize: the parents over which a child's shares add up to one. "all": all that
        see the child, at all positions, as in the paper. "parents": those of each
        position by itself, a shortcut of much public code, with which a child that nine
        windows see counts nine times.
      first_share: the shares of the first iteration. "uniform": one over the number of
        parent types. "normalize": equal shares that add up to one as `normalize` says.
      final_lambda: the limit of the inverse temperature after many iterations.
      epsilon: added to variances, to keep them away from zero.
      activation_scale: factor of the sum of the costs. Public code scales other than
        the paper does: one multiplies beta_a by 5000, another the masses by 100 O / I,
        with O parents and I children.
      gradient: "all": gradients flow through every iteration, as in the paper. "last":
        each iteration takes the Gaussians of the one before as constants, so gradients
        flow through the last iteration only. Training is then faster, but the paper's
        network did not learn images of 40 x 40 pixels (docs/notebook/results.md).

    Raises:
      ValueError: if an argument is not as above.

    >>> import tf_capsops
    >>> layer = tf_capsops.layers.ConvCaps2D(
    ...     8, kernel_size=3, routing=tf_capsops.routing.EM(iterations=2))
    """

    def __init__(
        self,
        iterations=3,
        normalize="all",
        first_share="uniform",
        final_lambda=0.01,
        epsilon=1e-4,
        activation_scale=1.0,
        gradient="all",
    ):
        self.iterations = positive_int("EM", "iterations", iterations)
        if normalize not in ("all", "parents"):
            raise ValueError(
                f"EM: normalize must be 'all' or 'parents', got {normalize!r}"
            )
        if first_share not in ("uniform", "normalize"):
            raise ValueError(
                f"EM: first_share must be 'uniform' or 'normalize', got {first_share!r}"
            )
        if gradient not in ("all", "last"):
            raise ValueError(f"EM: gradient must be 'all' or 'last', got {gradient!r}")
        self.normalize = normalize
        self.first_share = first_share
        self.final_lambda = positive_float32("EM", "final_lambda", final_lambda)
        self.epsilon = positive_float32("EM", "epsilon", epsilon)
        self.activation_scale = positive_float32(
            "EM", "activation_scale", activation_scale
        )
        self.gradient = gradient

    def build(self, layer, weights_shape, output_shape):
        self._numbers = math.prod(output_shape[-2:])
        self.beta_a, self.beta_u = (
            layer.add_weight(
                name=name,
                shape=[weights_shape[-3]],
                initializer="zeros",
                autocast=False,
            )
            for name in ("beta_a", "beta_u")
        )

    def route(self, moments, training=False):
        moments, restored = with_flat_maps(moments)
        uniform = self.first_share == "uniform"
        first_normalize = "parents" if uniform else self.normalize
        fitted = moments_about_mean(moments, _LEAST_MASS, normalize=first_normalize)
        gaussians = self._fit(*fitted, 0)
        for iteration in range(1, self.iterations):
            if self.gradient == "last":
                gaussians = [tf.stop_gradient(each) for each in gaussians]
            poses, variances, logits = gaussians
            logarithms = sums(tf.math.log(variances))
            found = moments(
                bias=tf.math.log_sigmoid(logits) - 0.5 * logarithms,
                precision=1.0 / variances,
                center=poses,
                order=2,
                normalize=self.normalize,
            )
            gaussians = self._fit(poses, *found, iteration)
        poses, _, logits = gaussians
        return restored(poses), restored(tf.sigmoid(logits))

    def _fit(self, center, mass, first, second, iteration):
        """The M-step: returns means, variances, and the logits of activations."""
        means = center + first / of_poses(mass + _LEAST_MASS)
        # The moments are about the center. A parent without any mass keeps its center.
        mass_or_one = of_poses(tf.where(mass > 0, mass, 1.0))
        shift = first / mass_or_one
        variances = tf.maximum(second / mass_or_one - tf.square(shift), 0.0)
        variances += self.epsilon
        beta_a, beta_u = (
            tf.cast(each, mass.dtype) for each in (self.beta_a, self.beta_u)
        )
        costs = self._numbers * beta_u + 0.5 * sums(tf.math.log(variances))
        inverse_temperature = self.final_lambda * (1 - _DECAY ** (iteration + 1))
        logits = beta_a - self.activation_scale * costs * mass
        return means, variances, inverse_temperature * logits

    def get_config(self):
        return {
            "iterations": self.iterations,
            "normalize": self.normalize,
            "first_share": self.first_share,
            "final_lambda": self.final_lambda,
            "epsilon": self.epsilon,
            "activation_scale": self.activation_scale,
            "gradient": self.gradient,
        }
