# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Counts and gathers the pixels that a window reads, for convolutions' suites."""

from __future__ import annotations

import itertools

import tensorflow as tf


def pair(value):
    """Returns a number twice, and a tuple as it is."""
    return tuple(value) if isinstance(value, tuple) else (value, value)


def _steps(size, kernel, stride, dilation, padding):
    """Returns the output's size and, for each row of a kernel, the outputs it serves.

    These are given as the first output whose pixel is inside the image, the number of
    outputs, and the first one's pixel.
    """
    span = (kernel - 1) * dilation + 1
    if padding == "SAME":
        out = -(-size // stride)
        before = max((out - 1) * stride + span - size, 0) // 2
    else:
        out, before = max(0, -(-(size - span + 1) // stride)), 0
    steps = []
    for offset in range(-before, -before + span, dilation):
        first = min(out, max(0, -(offset // stride)))
        end = max(first, min(out, -((offset - size) // stride)))
        steps.append((first, end - first, first * stride + offset))
    return out, steps


def steps_of_axes(image, kernel, strides, padding, dilations):
    """Returns `(output size, steps)` down and across; a step is a row of the kernel.

    A step holds the first output whose pixel is inside the image, the number of
    outputs, and the first one's pixel.
    """
    return [
        _steps(image[a], kernel[a], strides[a], dilations[a], padding) for a in (0, 1)
    ]


def reads(axes):
    """Returns how many pixels inside the image all outputs together read."""
    down, across = (sum(count for _, count, _ in steps) for _, steps in axes)
    return down * across


def _span(first, count, stride):
    """Returns a slice of `count` pixels; without any, the first may not exist."""
    return slice(first, first + (count - 1) * stride + 1, stride) if count else slice(0)


def patches(inputs, kernel, strides=(1, 1), padding="VALID", dilations=(1, 1)):
    """Gathers the pixels that each output reads, side by side along the channels.

    Args:
        inputs: `[batch, height, width, channels, ...]`.
        kernel: Its height and width.
    """
    axes = steps_of_axes(inputs.shape[1:3], kernel, strides, padding, dilations)
    (height, down), (width, across) = axes
    after = [[0, 0]] * (inputs.shape.rank - 3)
    taps = []
    for (y, rows, top), (x, columns, left) in itertools.product(down, across):
        read = inputs[:, _span(top, rows, strides[0]), _span(left, columns, strides[1])]
        outside = [y, height - y - rows], [x, width - x - columns]
        taps.append(tf.pad(read, [[0, 0], *outside, *after]))
    return tf.concat(taps, axis=3)
