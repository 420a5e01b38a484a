# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The moments of votes in TensorFlow's own ops, which store all votes."""

import functools
import math

import tensorflow as tf

from tf_capsops.ops.conv2d import (
    IMAGE,
    patches,
    require_window,
    windows_of_axes,
)
from tf_capsops.ops.squash import at_least_float32
from tf_capsops.shapes import ShapeRule, dimensions

STATISTICS = ("bias", "linear", "precision", "center", "prior")


@functools.cache
def axes_of(axes=IMAGE):
    """Returns the names of each operand's axes, by the operand's name.

    Args:
      axes: the names of the axes that windows slide along.
    """
    children = ("batch", *(f"in_{axis}" for axis in axes), "in_channels")
    parents = ("batch", *(f"out_{axis}" for axis in axes), "out_channels")
    pairs = (*(f"kernel_{axis}" for axis in axes), "in_channels", "out_channels")
    of_poses = (*parents, "pose_rows", "pose_columns")
    return {
        "poses": (*children, "pose_rows", "pose_inner"),
        "activations": children,
        "weights": (*pairs, "pose_inner", "pose_columns"),
        "bias": parents,
        **dict.fromkeys(("linear", "precision", "center"), of_poses),
        "prior": pairs,
    }


AXES = axes_of()


def plain(
    poses,
    activations,
    weights,
    bias=None,
    linear=None,
    precision=None,
    center=None,
    prior=None,
    *,
    order,
    normalize,
    strides,
    dilations,
    padding,
):
    """The definition of `capsule_moments` in TensorFlow's own ops.

    It stores all votes.

    Args:
      poses, activations, weights, bias, linear, precision, center, prior: As for
        `capsule_moments`: tensors, or None except for poses and weights.
      order, normalize: As for `capsule_moments`.
      strides, padding, dilations: As `window_attributes` returns them.
    """
    operands = (poses, activations, weights, bias, linear, precision, center, prior)
    window = {"strides": strides, "padding": padding, "dilations": dilations}
    operands = _bound("CapsuleMoments", operands, window)
    shares, votes, map_shape = _shares_and_votes(operands, normalize, window)
    kernel = operands[2].shape[:2].as_list()
    seen = patches(operands[1], kernel, **window)
    *_, rows, _ = dimensions(operands[0])
    *_, parents, _, columns = dimensions(operands[2])
    windows, _, children, _ = dimensions(votes)
    divided = shares * tf.reshape(seen, [windows, 1, children])
    mass = tf.reshape(tf.reduce_sum(divided, axis=2), [*map_shape, parents])
    moments = [mass]
    for power in range(1, order + 1):
        powers = votes if power == 1 else tf.square(votes)
        sums = tf.matmul(divided[:, :, tf.newaxis], powers)
        moments.append(tf.reshape(sums, [*map_shape, parents, rows, columns]))
    return tuple(moments)


def plain_shares(
    poses,
    activations,
    weights,
    bias=None,
    linear=None,
    precision=None,
    center=None,
    prior=None,
    *,
    normalize,
    strides,
    dilations,
    padding,
):
    """The definition of `moment_shares` in TensorFlow's own ops."""
    operands = (poses, activations, weights, bias, linear, precision, center, prior)
    window = {"strides": strides, "padding": padding, "dilations": dilations}
    operands = _bound("CapsuleMomentShares", operands, window)
    shares, _, map_shape = _shares_and_votes(operands, normalize, window)
    pairs = dimensions(operands[2])[:4]
    shares = tf.transpose(shares, (0, 2, 1))
    return tf.reshape(shares, [*map_shape, *pairs])


def _bound(op, operands, window):
    """Checks shapes, and returns the operands with known ranks, half types as float32.

    Activations that are None become ones.
    """
    poses, activations, weights, *statistics = operands
    rule = ShapeRule(op)
    poses = rule.bind("poses", poses, AXES["poses"])
    if activations is not None:
        activations = rule.bind("activations", activations, AXES["activations"])
    weights = rule.bind("weights", weights, AXES["weights"])
    kernel = weights.shape[:2].as_list()
    require_window(
        rule, "weights", weights, poses, window["padding"], window["dilations"]
    )
    for name, known in zip(IMAGE, kernel):
        rule.require(known is not None, f"kernel_{name} must be known under portable()")
    sizes = windows_of_axes(dimensions(poses)[1:3], kernel, **window)
    for name, size in zip(IMAGE, sizes):
        rule.define(f"out_{name}", size)
    statistics = [
        None if each is None else at_least_float32(rule.bind(name, each, AXES[name]))
        for name, each in zip(STATISTICS, statistics, strict=True)
    ]
    (poses,) = rule.checked(poses)
    poses, weights = at_least_float32(poses), at_least_float32(weights)
    if activations is None:
        activations = tf.ones(dimensions(poses)[:4], poses.dtype)
    return poses, at_least_float32(activations), weights, *statistics


def _shares_and_votes(operands, normalize, window):
    """Returns shares, votes about the center, and the shape of the map.

    Their shapes are `[B, O, K]`, `[B, O, K, P R]` and `[N, H', W']`, for B = N H' W'
    windows of K children. No rank exceeds 5, because some converters allow no more.
    """
    poses, _, weights, bias, linear, precision, center, prior = operands
    batch, height, width, channels, rows, inner = dimensions(poses)
    *kernel, _, parents, _, columns = dimensions(weights)
    images = tf.reshape(poses, [batch, height, width, channels * rows * inner])
    gathered = patches(images, kernel, **window)
    children = kernel[0] * kernel[1] * channels
    map_shape = dimensions(gathered)[:3]
    windows, numbers = math.prod(map_shape), rows * columns
    votes = _votes(
        tf.reshape(gathered, [windows, children, rows, inner]),
        tf.reshape(weights, [children, parents, inner, columns]),
    )

    def by_window(statistic, *last):
        return tf.reshape(statistic, [windows, parents, *last])

    logits = tf.zeros([windows, parents, children], votes.dtype)
    if prior is not None:
        logits += tf.transpose(tf.reshape(prior, [children, parents]))
    if bias is not None:
        logits += by_window(bias, 1)
    if linear is not None:
        logits += tf.squeeze(tf.matmul(votes, by_window(linear, numbers, 1)), 3)
    if center is not None:
        votes -= by_window(center, 1, numbers)
    if precision is not None:
        products = tf.matmul(tf.square(votes), by_window(precision, numbers, 1))
        logits -= 0.5 * tf.squeeze(products, 3)

    exist = None
    if window["padding"] == "SAME":
        exist = tf.ones([1, height, width, channels], tf.int32)
        exist = patches(exist, kernel, **window)
        exist = tf.broadcast_to(exist, [*map_shape, children])
        exist = tf.reshape(exist, [windows, 1, children]) > 0
        # The logits of children that do not exist could be infinite.
        logits = tf.where(exist, logits, 0.0)
    if normalize == "parents":
        logits = tf.nn.softmax(logits, axis=1)
    elif normalize == "all":
        logits = _over_all_that_see(
            logits, map_shape, [height, width, channels], kernel, window
        )
    if exist is not None:
        logits = tf.where(exist, logits, 0.0)
    return logits, votes, map_shape


def _votes(poses, weights):
    """Returns `[B, O, K, P R]` for poses `[B, K, P, Q]` and weights `[K, O, Q, R]`."""
    windows, children, rows, inner = dimensions(poses)
    _, parents, _, columns = dimensions(weights)
    # One matrix product per child, with the matrices of all parents side by side.
    poses = tf.reshape(
        tf.transpose(poses, (1, 0, 2, 3)), [children, windows * rows, inner]
    )
    weights = tf.reshape(
        tf.transpose(weights, (0, 2, 1, 3)), [children, inner, parents * columns]
    )
    votes = tf.matmul(poses, weights)
    votes = tf.reshape(votes, [children, windows, rows, parents, columns])
    votes = tf.transpose(votes, (1, 3, 0, 2, 4))
    return tf.reshape(votes, [windows, parents, children, rows * columns])


def _over_all_that_see(logits, map_shape, image, kernel, window):
    """Returns each child's softmax over the parents of all windows that contain it."""
    height, width, channels = image
    batch, down, across = map_shape
    pixels = tf.range(1, height * width + 1)
    pixels = patches(tf.reshape(pixels, [1, height, width, 1]), kernel, **window)
    # The pixel, counted from 1, at each place of each window; 0 is outside the image.
    pixels = tf.reshape(pixels, [-1])
    windows, _, children = dimensions(logits)
    taps = math.prod(kernel)

    def by_child(reduce, values):
        """Reduces the values at all places of a child, and repeats the result there."""
        values = tf.reshape(values, [batch, down * across * taps, channels])
        values = tf.transpose(values, (1, 0, 2))
        combined = reduce(values, pixels, height * width + 1)[1:]
        combined = tf.transpose(combined, (1, 0, 2))
        combined = tf.reshape(combined, [batch, height, width, channels])
        combined = patches(combined, kernel, **window)
        return tf.reshape(combined, [windows, 1, children])

    # The shares do not depend on the largest logit, so no gradient flows through it.
    largest = tf.reduce_max(tf.stop_gradient(logits), axis=1)
    weighed = tf.exp(logits - by_child(tf.math.unsorted_segment_max, largest))
    total = by_child(tf.math.unsorted_segment_sum, tf.reduce_sum(weighed, axis=1))
    # Only children outside of the image have a total of 0. NaN stays NaN.
    return weighed / tf.where(tf.not_equal(total, 0), total, 1.0)
