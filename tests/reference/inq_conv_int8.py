# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Convolution of 8-bit activations with INQ codes in NumPy, from its definition."""

import numpy as np

from reference import inq_conv


def smallest_exponent(bits):
    """Returns the top exponent of a book whose smallest weight is 1."""
    return 2 ** (bits - 2) - 1


def steps(inputs, scale, zero_point):
    """Returns q - zero_point of each activation, as float64; NaN is the smallest."""
    inputs = np.asarray(inputs)
    wide = np.float64 if inputs.dtype == np.float64 else np.float32
    with np.errstate(all="ignore"):
        rounded = np.rint(inputs.astype(wide) / wide(np.float32(scale)))
    q = np.clip(np.nan_to_num(rounded, nan=-np.inf) + zero_point, 0, 255)
    return q.astype(np.float64) - zero_point


def sums(inputs, codes, scale, zero_point, bits=5, **moved):
    """Returns the integer sums, as float64, which holds them exactly."""
    return inq_conv.forward(
        steps(inputs, scale, zero_point), codes, smallest_exponent(bits), bits, **moved
    )


def forward(inputs, codes, scale, zero_point, multipliers, bits=5, **moved):
    """Returns what the op does, to the bit: the sums are rounded once and multiplied.

    Args:
        inputs: Of any floating type; others as the op takes them.
    """
    inputs = np.asarray(inputs)
    wide = np.float64 if inputs.dtype == np.float64 else np.float32
    whole = sums(inputs, codes, scale, zero_point, bits, **moved)
    multipliers = np.asarray(multipliers, np.float32).astype(wide)
    with np.errstate(over="ignore"):
        return (whole.astype(wide) * multipliers).astype(inputs.dtype)
