# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Numbers rounded to integers and back, in float64 (Jacob et al., 2018)."""

import numpy as np


def scale_and_zero_point(lo, hi, bits):
    lo, hi = min(lo, 0.0), max(hi, 0.0)
    scale = (hi - lo) / (2**bits - 1)
    return scale, np.floor(-lo / scale + 0.5)


def integers(numbers, lo, hi, bits):
    scale, zero_point = scale_and_zero_point(lo, hi, bits)
    rounded = np.floor(np.asarray(numbers, np.float64) / scale + 0.5)
    return np.clip(rounded + zero_point, 0, 2**bits - 1)


def fake_quant(numbers, lo, hi, bits):
    scale, zero_point = scale_and_zero_point(lo, hi, bits)
    return (integers(numbers, lo, hi, bits) - zero_point) * scale
