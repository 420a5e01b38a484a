# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Moments of votes in windows over lines and volumes, as moments over images."""

import math

import tensorflow as tf

from tf_capsops.ops.capsule_conv_nd import (
    LINE,
    VOLUME,
    as_channels,
    as_volume,
    padded,
    padded_depth,
    require_kernel,
    sliced,
    taps_as_channels,
    windows_as_channels,
)
from tf_capsops.ops.capsule_moments_plain import STATISTICS, axes_of
from tf_capsops.ops.conv2d import largest, windows_of_axis
from tf_capsops.shapes import ShapeRule, dimensions

_NO_SHARE = -1e30  # a logit whose share is zero next to any other


def over_line(owner, compute, operands, window):
    """Calls `compute`, of images, with a line as an image of one row.

    Args:
      owner: the name to begin messages with.
      compute: a function of the operands and of the window's attributes by name, which
        returns tensors whose second axis is of the row.
      operands: those of `capsule_moments`, tensors or None.
      window: as `window_attributes` returns it, with one stride and one dilation.

    Returns:
      What `compute` returned, without the row.
    """
    operands = _bound(owner, operands, window, LINE)
    rows = dict.fromkeys(("weights", "prior"), 0)  # the first axis of a kernel
    images = [
        None if each is None else tf.expand_dims(each, rows.get(name, 1))
        for name, each in zip(axes_of(LINE), operands, strict=True)
    ]
    sizes = {name: (1, *window[name]) for name in ("strides", "dilations")}
    outputs = compute(*images, **{**window, **sizes})
    return [tf.squeeze(each, 1) for each in outputs]


def over_volume(owner, compute, operands, window):
    """Calls `compute`, of images, with what windows read along depth as channels.

    Slices of zeros beyond the volume are children that do not exist: their activations
    are zero. A child of several windows becomes several, so shares must not add up
    over these.

    Args:
      owner, compute, operands: As for `over_line`.
      window: as `window_attributes` returns it, with three strides and dilations.

    Returns:
      What `compute` returned, with the axis of depth.
    """
    operands = _bound(owner, operands, window, VOLUME)
    poses, activations, weights, *of_parents, prior = operands
    along, across = _along_depth(window)
    taps, activations = weights.shape[0], _activations(poses, activations, along)
    children, depth = windows_as_channels(poses, taps, **along)
    if activations is not None:
        activations, _ = windows_as_channels(activations, taps, **along)
    outputs = compute(
        children,
        activations,
        taps_as_channels(weights),
        *(None if each is None else _as_images(each) for each in of_parents),
        None if prior is None else taps_as_channels(prior),
        **across,
    )
    return [as_volume(each, dimensions(poses)[0], depth) for each in outputs]


def over_each_tap(owner, compute, operands, window, axis):
    """Calls `compute`, of images, with the parents of all taps along depth as channels.

    Each slice is an image, whose children all windows share: shares may add up over
    all of them. A window that a slice does not belong to has no share.

    Args:
      owner, operands, window: As for `over_volume`.
      compute: As for `over_line`.
      axis: which axis of what it returns is the parents'.

    Returns:
      For each tap, what `compute` returned for the windows' slices there, with the axis
      of depth.
    """
    operands = _bound(owner, operands, window, VOLUME)
    poses, activations, weights, bias, *of_poses, prior = operands
    along, across = _along_depth(window)
    stride, taps, parents = along["stride"], weights.shape[0], dimensions(weights)[4]
    batch, _, *image = dimensions(poses)[:4]
    slices, depth = padded_depth(poses, taps, **along)
    activations = _activations(poses, activations, along)
    if activations is not None:
        activations, _ = padded_depth(activations, taps, **along)
    if bias is None:
        size = [batch, depth, *_sizes(image, dimensions(weights)[1:3], across), parents]
        bias = tf.zeros(size, tf.float64 if poses.dtype == tf.float64 else tf.float32)
    found = {}
    phases = [tap * along["dilation"] % stride for tap in range(taps)]
    for phase in sorted({*phases}):  # slices that belong to the same taps
        of_phase = [tap for tap in range(taps) if phases[tap] == phase]
        shifts = [(tap * along["dilation"] - phase) // stride for tap in of_phase]
        step = stride // math.gcd(stride, along["dilation"])
        own = slice(of_phase[0], None, step)
        of_slices = slice(phase, None, stride)
        children = sliced(slices, of_slices)
        count = dimensions(children)[1]
        front = max(shifts)
        begins = [front - shift for shift in shifts]

        def of_windows(each, value=0, begins=begins, front=front, count=count):
            each = padded(each, front, largest(count - depth, 0), value)
            return as_channels(each, begins, count, 1)

        outputs = compute(
            _as_images(children),
            None if activations is None else _as_images(sliced(activations, of_slices)),
            _taps_as_parents(weights[own]),
            of_windows(bias, _NO_SHARE),
            *(None if each is None else of_windows(each) for each in of_poses),
            None if prior is None else _taps_as_parents(prior[own]),
            **across,
        )
        for place, (tap, shift) in enumerate(zip(of_phase, shifts, strict=True)):
            block = slice(place * parents, (place + 1) * parents)
            parts = (sliced(each, block, axis) for each in outputs)
            volumes = (as_volume(each, batch, count) for each in parts)
            more = largest(shift + depth - count, 0)
            found[tap] = [
                sliced(padded(each, 0, more), slice(shift, shift + depth))
                for each in volumes
            ]
    return [found[tap] for tap in range(taps)]


def _activations(poses, activations, along):
    """Returns ones for None where slices are added, which are no children."""
    if activations is None and along["padding"] == "SAME":
        return tf.ones(dimensions(poses)[:5], poses.dtype)
    return activations


def _sizes(image, kernel, window):
    """Returns how many windows each axis has."""
    names = ("strides", "dilations")
    axes = zip(image, kernel, *(window[name] for name in names), strict=True)
    return [windows_of_axis(*each, window["padding"])[0] for each in axes]


def _along_depth(window):
    """Returns a window's attributes along depth, and those down and across."""
    (stride, *strides), (dilation, *dilations) = window["strides"], window["dilations"]
    padding = window["padding"]
    return {"stride": stride, "dilation": dilation, "padding": padding}, {
        "strides": tuple(strides),
        "padding": padding,
        "dilations": tuple(dilations),
    }


def _taps_as_parents(weights):
    """Returns `[height, width, channels, taps * parents, ...]`."""
    others = range(5, weights.shape.rank)
    weights = tf.transpose(weights, (1, 2, 3, 0, 4, *others))
    height, width, channels, taps, parents, *rest = dimensions(weights)
    return tf.reshape(weights, [height, width, channels, taps * parents, *rest])


def existing_slices(poses, weights, window, dtype):
    """Returns which slices of a volume each window sees: `[depth, taps]`, 0 or 1."""
    taps, size = weights.shape[0], dimensions(poses)[1]
    ones = tf.ones([1, size, 1, 1, 1], dtype)
    seen, depth = windows_as_channels(ones, taps, **_along_depth(window)[0])
    return tf.reshape(seen, [depth, taps])


def _as_images(each):
    batch, depth, *image = dimensions(each)
    return tf.reshape(each, [batch * depth, *image])


def _bound(owner, operands, window, axes):
    """Returns operands that fit each other, with ranks that are known."""
    rule, named = ShapeRule(owner), axes_of(axes)
    poses, activations, weights, *statistics = operands
    poses = rule.bind("poses", poses, named["poses"])
    if activations is not None:
        activations = rule.bind("activations", activations, named["activations"])
    weights = rule.bind("weights", weights, named["weights"])
    require_kernel(rule, poses, weights, axes, window["padding"], window["dilations"])
    image, kernel = poses.shape[1 : 1 + len(axes)], weights.shape[: len(axes)]
    if image.is_fully_defined() and kernel.is_fully_defined():
        sizes = _sizes(image.as_list(), kernel.as_list(), window)
        rule.sizes |= {f"out_{axis}": size for axis, size in zip(axes, sizes)}
    bound = [
        None if each is None else rule.bind(name, each, named[name])
        for name, each in zip(STATISTICS, statistics, strict=True)
    ]
    return poses, activations, weights, *bound
