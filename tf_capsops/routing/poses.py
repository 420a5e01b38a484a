# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Arithmetic on poses, matrices `[..., P, R]`, that several rules share."""

import math

import keras
import tensorflow as tf

from tf_capsops import _portable
from tf_capsops.ops.squash import at_least_float32
from tf_capsops.shapes import dimensions

_OF_PARENTS = ("bias", "linear", "precision", "center")


@keras.saving.register_keras_serializable("tf_capsops")
def exponential_squash(vectors):
    """Shrinks vectors to a length below one: `(1 - exp(-|s|)) s / |s|`.

    The squashing of Mazzia, Salvetti and Chiaberge, "Efficient-CapsNet" (2021), which
    is steeper near zero than `tf_capsops.squash`: short vectors keep their length. Half
    types are computed in float32 and rounded once.

    Args:
      vectors: A floating-point tensor `[..., D]`.

    >>> tf_capsops.routing.exponential_squash(tf.constant([0.0, 2.0])).numpy().round(3)
    array([0.   , 0.865], dtype=float32)
    """
    wide = at_least_float32(vectors)
    squashed, _ = squashed_and_lengths(wide, axes=(-1,))
    return tf.cast(squashed, vectors.dtype)


def squashed_and_lengths(poses, axes):
    """Returns what `exponential_squash` makes of poses, and its lengths.

    Args:
      poses: A tensor of float32 or float64.
      axes: The last axes, which run over a pose.
    """
    norm = norms(poses, axes)
    if 0 in (poses.shape.dims or ()):
        return poses, norm  # TensorFlow's graph optimizer crashes on the product below.
    zero, one = norm == 0, tf.ones([], norm.dtype)
    # 1 - exp(-norm) to full precision, and of ops that ONNX has, unlike expm1.
    tangent = tf.tanh(0.5 * norm)
    length = 2.0 * tangent / (1.0 + tangent)
    factor = tf.where(zero, one, length / tf.where(zero, one, norm))
    for _ in axes:
        factor = tf.expand_dims(factor, -1)
    return poses * factor, length


def norms(poses, axes=(-2, -1)):
    """Returns the lengths of poses; the gradient of one that is zero is zero."""
    squared = tf.reduce_sum(tf.square(poses), axis=axes)
    # The root's derivative is infinite at zero: keep zeros away from it.
    # A graph would take a Python number that comes before a tensor for float32.
    zero, one = squared == 0, tf.ones([], squared.dtype)
    return tf.where(zero, 0 * one, tf.sqrt(tf.where(zero, one, squared)))


def of_poses(values):
    """Returns numbers of each capsule, `[...]`, so that they broadcast over poses."""
    # Not by indexing: TFLite's strided slices have at most 5 axes.
    return tf.expand_dims(tf.expand_dims(values, -1), -1)


def sums(poses):
    """Returns sums over each pose."""
    return tf.reduce_sum(poses, axis=(-2, -1))


def with_flat_maps(moments):
    """Returns moments whose maps are flat in portable graphs, and what undoes that.

    TFLite divides tensors of at most five axes, and adds up over axes of at most six.
    So a portable graph has one axis for the batch and the map: masses are `[M, O]` and
    poses `[M, O, P, R]`. Elsewhere nothing changes.

    Args:
      moments: As for `Rule.route`. The first call must not be given anything for each
        parent.

    Returns:
      A function that takes and returns flat maps, where `moments` has others, and a
      function that gives the axes back to capsules or poses of a flat map.
    """
    if not _portable.is_on():
        return moments, lambda parents: parents
    positions = []

    def restored(parents):
        return tf.reshape(parents, [*positions, *dimensions(parents)[1:]])

    def flat_moments(**arguments):
        for name in _OF_PARENTS:
            if arguments.get(name) is not None:
                arguments[name] = restored(arguments[name])
        found = moments(**arguments)
        positions[:] = dimensions(found[0])[:-1]
        flat, axes = math.prod(positions), len(positions)
        return [tf.reshape(each, [flat, *dimensions(each)[axes:]]) for each in found]

    return flat_moments, restored


def moments_about_mean(moments, prior_mass, **statistics):
    """Returns means, mass, first and second of shares that need no means.

    Rules whose logits are distances from a mean have none in their first iteration.
    Second moments about zero would lose the variance to rounding where the mean is
    large, so one pass finds the means, and another the moments about them.

    Args:
      moments: As for `Rule.route`.
      prior_mass: As for `means_and_scatter`.
      **statistics: For `moments`.
    """
    mass, first = moments(order=1, **statistics)
    means = first / of_poses(mass + prior_mass)
    return means, *moments(order=2, center=means, **statistics)


def means_and_scatter(center, mass, first, second, prior_mass):
    """Returns the means of votes, and sums of squared distances from them.

    They do not depend on the center, but for rounding.

    Args:
      center: What the moments are about, near the means.
      mass, first, second: Moments.
      prior_mass: A positive number: what a vote of zero for each parent weighs, which
        also keeps means finite where no child has any mass.
    """
    means = (of_poses(mass) * center + first) / of_poses(mass + prior_mass)
    shift = means - center
    scatter = second - 2.0 * shift * first + of_poses(mass) * tf.square(shift)
    return means, tf.maximum(scatter, 0.0)
