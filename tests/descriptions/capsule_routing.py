# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""CapsuleRouting, as the tests that all ops share see it."""

import numpy as np
from reference import capsule_routing as reference

from descriptions import Description
from tf_capsops._portable import widened
from tf_capsops.bench import cases
from tf_capsops.ops import capsule_routing


def _reference(grad, *inputs, **attributes):
    return (
        reference.forward(*inputs, **attributes),
        *reference.backward(grad, *inputs, **attributes),
    )


def _magnitude(grad, *inputs, **attributes):
    """Output capsules are shorter than one, which is their magnitude."""
    return (
        np.ones_like(reference.forward(*inputs, **attributes)),
        *reference.backward_magnitude(grad, *inputs, **attributes),
    )


_SUITE = cases.suites()["CapsuleRouting"]
_FRAMES = {"unknown_shapes": ("primes", "iterations_1")}
_PLAIN = widened(capsule_routing.plain)
OP = Description(_SUITE, _PLAIN, _reference, _magnitude, _FRAMES)
plain_coefficients = widened(capsule_routing.plain_coefficients)
