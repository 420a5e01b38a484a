# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""CapsuleConvRouting, as the tests that all ops share see it."""

import numpy as np
from reference import capsule_conv_routing as reference

from descriptions import Description
from tf_capsops._portable import widened
from tf_capsops.bench import cases


def _reference(grad, *inputs, **attributes):
    if not grad.size:
        return grad, *map(np.zeros_like, inputs)
    return (
        reference.forward(*inputs, **attributes),
        *reference.backward(grad, *inputs, **attributes),
    )


def _magnitude(grad, *inputs, **attributes):
    """Parents are shorter than one, which is their magnitude."""
    if not grad.size:
        return grad, *map(np.zeros_like, inputs)
    return np.ones_like(grad), *reference.backward_magnitude(
        grad, *inputs, **attributes
    )


_SUITE = cases.suites()["CapsuleConvRouting"]
_FRAMES = {
    "unknown_shapes": ("primes", "image_up", "iterations_1"),
    "tensor_float_32": ("rows_up", "windows", "windows_whole"),
}
_PLAIN = widened(_SUITE.rivals["votes"])
OP = Description(_SUITE, _PLAIN, _reference, _magnitude, _FRAMES)
