# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""CapsulePrediction, as the tests that all ops share see it."""

from reference import capsule_prediction as reference

from descriptions import Description
from tf_capsops._portable import widened
from tf_capsops.bench import cases


def _reference(grad, inputs, weights):
    return (
        reference.forward(inputs, weights),
        *reference.backward(grad, inputs, weights),
    )


_SUITE = cases.suites()["CapsulePrediction"]
_FRAMES = {
    "second_derivatives": ("ones", "primes", "mnist_layer"),
    "long_sums": ("long_rows", "columns_513", "batch_129"),
    "unknown_shapes": ("primes",),
}
OP = Description(_SUITE, widened(_SUITE.rivals["einsum"]), _reference, frames=_FRAMES)
