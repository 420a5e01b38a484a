# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Arithmetic on poses, matrices `[..., P, R]`, that several routing rules share."""

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

    This is the squashing of Mazzia, Salvetti and Chiaberge, "Efficient-CapsNet" (2021).
    It is steeper near zero than `tf_capsops.squash`: short vectors almost keep their
    length. Half types are computed in float32 and rounded once.

    Args:
      vectors: A floating-point tensor `[..., D]`.

    >>> import tensorflow as tf
    >>> import tf_capsops
    >>> tf_capsops.routing.exponential_squash(tf.constant([0.0, 2.0])).numpy().round(3)
    array([0.   , 0.865], dtype=float32)
    """
    wide = at_least_float32(vectors)
    squashed, _ = squashed_and_lengths(wide, axes=(-1,))
    return tf.cast(squashed, vectors.dtype)


def squashed_and_lengths(poses, axes):
    """Returns poses squashed as by `exponential_squash`, and their new lengths.

    Args:
      poses: A float32 or float64 tensor.
      axes: The last axes, which run over a pose.
    """
    norm = norms(poses, axes)
    if 0 in (poses.shape.dims or ()):
        return poses, norm  # TensorFlow's graph optimizer crashes on the product below.
    zero, one = norm == 0, tf.ones([], norm.dtype)
    # `length` is 1 - exp(-norm) to full precision. ONNX has no expm1.
    tangent = tf.tanh(0.5 * norm)
    length = 2.0 * tangent / (1.0 + tangent)
    factor = tf.where(zero, one, length / tf.where(zero, one, norm))
    for _ in axes:
        factor = tf.expand_dims(factor, -1)
    return poses * factor, length


def norms(poses, axes=(-2, -1)):
    """Returns the lengths of poses. The gradient of a zero pose is zero."""
    squared = tf.reduce_sum(tf.square(poses), axis=axes)
    # The derivative of the root is infinite at zero, so zeros must not reach it. The
    # one is a tensor, because a graph would take a Python number for a float32.
    zero, one = squared == 0, tf.ones([], squared.dtype)
    return tf.where(zero, 0 * one, tf.sqrt(tf.where(zero, one, squared)))


def of_poses(values):
    """Adds two axes to `[...]`, so that a number per capsule broadcasts over poses."""
    # Indexing with None is no option: TFLite's strided slices have at most 5 axes.
    return tf.expand_dims(tf.expand_dims(values, -1), -1)


def sums(poses):
    """Returns the sum of each pose's numbers."""
    return tf.reduce_sum(poses, axis=(-2, -1))


def with_flat_maps(moments):
    """Flattens batch and map into one axis in portable graphs.

    TFLite cannot divide tensors of more than five axes, nor sum over those of more than
    six. In a portable graph, masses are therefore `[M, O]` and poses `[M, O, P, R]`,
    where M runs over the batch and all positions. Elsewhere nothing changes.

    Args:
      moments: As for `Rule.route`. The first call must have no `bias`, `linear`,
        `precision` or `center`, because its results set the shape of the map.

    Returns:
      A version of `moments` that takes and returns flat maps, and a function that
      restores the axes of capsules or poses of a flat map.
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
    """Returns means, and mass, first and second moment about the means.

    This is for the first iteration of rules that measure distances from a mean, when
    there is no mean yet. If the mean is large, second moments about zero would lose the
    variance to rounding. So one pass finds the means, and a second pass the moments
    about them.

    Args:
      moments: As for `Rule.route`.
      prior_mass: As for `means_and_scatter`.
      **statistics: Other arguments of `moments`.
    """
    mass, first = moments(order=1, **statistics)
    means = first / of_poses(mass + prior_mass)
    return means, *moments(order=2, center=means, **statistics)


def means_and_scatter(center, mass, first, second, prior_mass):
    """Returns the means of votes, and the weighted sums of squared distances from them.

    Apart from rounding, the results do not depend on the center.

    Args:
      center: The point that the moments are about, near the means.
      mass, first, second: The moments.
      prior_mass: A positive number, the weight of one additional vote of zero for each
        parent. It keeps means finite even if no child has any mass.
    """
    means = (of_poses(mass) * center + first) / of_poses(mass + prior_mass)
    shift = means - center
    scatter = second - 2.0 * shift * first + of_poses(mass) * tf.square(shift)
    return means, tf.maximum(scatter, 0.0)
