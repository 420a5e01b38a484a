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
from tf_capsops.ops.conv2d import largest, windows_of_axes
from tf_capsops.shapes import ShapeRule, dimensions

_NO_SHARE = -1e30  # A logit so low that its share is zero.


def over_line(owner, compute, operands, window):
    """Calls `compute`, which takes images, with a line as an image of one row.

    Args:
      owner: the name to begin messages with.
      compute: a function of the operands and, by name, the window's attributes. It
        returns tensors whose second axis is the height.
      operands: the operands of `capsule_moments`, tensors or None.
      window: as `window_attributes` returns it, with one stride and one dilation.

    Returns:
      The results of `compute` without the height.
    """
    operands = _bound(owner, operands, window, LINE)
    rows = dict.fromkeys(("weights", "prior"), 0)  # A kernel's height comes first.
    images = [
        None if each is None else tf.expand_dims(each, rows.get(name, 1))
        for name, each in zip(axes_of(LINE), operands, strict=True)
    ]
    sizes = {name: (1, *window[name]) for name in ("strides", "dilations")}
    outputs = compute(*images, **{**window, **sizes})
    return [tf.squeeze(each, 1) for each in outputs]


def over_volume(owner, compute, operands, window):
    """Calls `compute`, which takes images, with a window's slices as channels.

    Slices that padding adds are children that do not exist: their activations are zero.
    A child that several windows read becomes several children, so this is wrong for
    shares that add up to one over windows.

    Args:
      owner, compute, operands: as for `over_line`.
      window: as `window_attributes` returns it, with three strides and dilations.

    Returns:
      The results of `compute`, with an axis for the depth.
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
    """Calls `compute`, which takes images, with each slice of a volume as an image.

    The parents of all windows that read a slice, one window for each tap along the
    depth, become the image's parents. Shares can therefore add up to one over all
    windows. Windows that do not exist get no share.

    Args:
      owner, operands, window: as for `over_volume`.
      compute: as for `over_line`.
      axis: the axis of the parents in the results of `compute`.

    Returns:
      For each tap, the results of `compute` for the slices that windows read there,
      with an axis for the depth of the windows.
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
        size = [
            batch,
            depth,
            *windows_of_axes(image, dimensions(weights)[1:3], **across),
            parents,
        ]
        bias = tf.zeros(size, tf.float64 if poses.dtype == tf.float64 else tf.float32)
    found = {}
    phases = [tap * along["dilation"] % stride for tap in range(taps)]
    for phase in sorted({*phases}):  # The slices of a phase are read by the same taps.
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
    """Returns activations, as ones if they are None and padding adds slices.

    The added slices get activations of zero, because they are not children.
    """
    if activations is None and along["padding"] == "SAME":
        return tf.ones(dimensions(poses)[:5], poses.dtype)
    return activations


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
    """Returns `[depth, taps]`: 1 if a window's tap reads inside the volume, else 0."""
    taps, size = weights.shape[0], dimensions(poses)[1]
    ones = tf.ones([1, size, 1, 1, 1], dtype)
    seen, depth = windows_as_channels(ones, taps, **_along_depth(window)[0])
    return tf.reshape(seen, [depth, taps])


def _as_images(each):
    batch, depth, *image = dimensions(each)
    return tf.reshape(each, [batch * depth, *image])


def _bound(owner, operands, window, axes):
    """Checks that operands fit each other, and returns them with known ranks."""
    rule, named = ShapeRule(owner), axes_of(axes)
    poses, activations, weights, *statistics = operands
    poses = rule.bind("poses", poses, named["poses"])
    if activations is not None:
        activations = rule.bind("activations", activations, named["activations"])
    weights = rule.bind("weights", weights, named["weights"])
    require_kernel(rule, poses, weights, axes, window["padding"], window["dilations"])
    image, kernel = dimensions(poses)[1 : 1 + len(axes)], dimensions(weights)
    for axis, size in zip(axes, windows_of_axes(image, kernel[: len(axes)], **window)):
        rule.define(f"out_{axis}", size)
    bound = [
        None if each is None else rule.bind(name, each, named[name])
        for name, each in zip(STATISTICS, statistics, strict=True)
    ]
    return rule.checked(poses, activations, weights, *bound)
