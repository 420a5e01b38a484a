# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Incremental network quantization in NumPy, from its definitions."""

import itertools
import math

import numpy as np


def top_exponent(weights):
    """n1 = floor(log2(4 max|w| / 3)), in exact arithmetic; 0 where all are zero."""
    largest = float(np.max(np.abs(weights), initial=0))
    if largest == 0:
        return 0
    mantissa, exponent = math.frexp(largest)  # largest = mantissa * 2^exponent
    return exponent if mantissa >= 0.75 else exponent - 1


def code_book(bits, n1):
    """The weights of all codes, in the codes' order."""
    book = [0.0]
    for k in range(2 ** (bits - 2)):
        book += [math.ldexp(1, n1 - k), -math.ldexp(1, n1 - k)]
    return np.array(book)


def quantize(weights, bits, n1=None):
    """sgn(w) beta where (alpha + beta)/2 <= |w| < 3 beta/2, by comparing with all."""
    weights = np.asarray(weights, np.float64)
    if not np.any(weights):
        return np.zeros_like(weights)
    n1 = top_exponent(weights) if n1 is None else n1
    book = np.unique(np.abs(code_book(bits, n1)))
    size = np.abs(weights)
    result = np.zeros_like(size)
    for alpha, beta in itertools.pairwise(book):
        result[(alpha + beta) / 2 <= size] = beta
    return np.copysign(result, weights) * (result > 0)


def decode(codes, bits, n1):
    return code_book(bits, n1)[codes]
