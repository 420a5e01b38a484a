# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Routing by agreement (dynamic routing), as a rule."""

import keras
import tensorflow as tf

from tf_capsops.arguments import positive_float32, positive_int
from tf_capsops.ops.squash import squash
from tf_capsops.routing.poses import norms, with_flat_maps
from tf_capsops.routing.rule import Rule
from tf_capsops.shapes import dimensions


@keras.saving.register_keras_serializable("tf_capsops")
class Dynamic(Rule):
    """Routing by agreement: Sabour, Frosst and Hinton (2017), procedure 1.

    Each iteration computes the parents `v = squash(sum of share * vote)`, and adds the
    inner product of vote and parent to each logit. The logits are therefore the inner
    products of the votes with the sum of all parents so far. Children whose activation
    is 0 are ignored; all others count equally. A parent's activation is the length of
    its pose.

    Args:
      iterations: how often the parents are computed, at least 1.
      epsilon: as for `tf_capsops.squash`, which squashes a whole pose as one vector.

    Raises:
      ValueError: if an argument is not as above.

    >>> import tf_capsops
    >>> layer = tf_capsops.layers.ConvCaps2D(
    ...     8, kernel_size=3, routing=tf_capsops.routing.Dynamic(iterations=2))
    """

    def __init__(self, iterations=3, epsilon=1e-7):
        self.iterations = positive_int("Dynamic", "iterations", iterations)
        self.epsilon = positive_float32("Dynamic", "epsilon", epsilon)

    def route(self, moments, training=False):
        moments, restored = with_flat_maps(moments)
        total = None
        for _ in range(self.iterations):
            _, sums = moments(linear=total, order=1, use_activations=False)
            *capsules, rows, columns = dimensions(sums)
            flat = tf.reshape(sums, [*capsules, rows * columns])
            flat = squash(flat, epsilon=self.epsilon)
            poses = tf.reshape(flat, [*capsules, rows, columns])
            total = poses if total is None else total + poses
        return restored(poses), restored(norms(poses))

    def get_config(self):
        return {"iterations": self.iterations, "epsilon": self.epsilon}
