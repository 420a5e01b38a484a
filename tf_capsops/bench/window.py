# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Counts the pixels that a window reads, for convolutions' suites."""

from __future__ import annotations


def pair(value):
    """Returns a number twice, and a tuple as it is."""
    return tuple(value) if isinstance(value, tuple) else (value, value)


def reads(axes):
    """Returns how many pixels inside the image all outputs together read.

    Args:
        axes: The result of `tf_capsops.ops.conv2d.steps_of_axes`.
    """
    down, across = (sum(count for _, count, _ in steps) for _, steps in axes)
    return down * across
