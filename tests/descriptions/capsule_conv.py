# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""CapsuleConv, as the tests that all ops share see it."""

from reference import capsule_conv as reference

from descriptions import Description, widened
from tf_capsops.bench import cases


def _reference(grad, inputs, weights, **attributes):
    return (
        reference.forward(inputs, weights, **attributes),
        reference.backprop_input(inputs.shape, weights, grad, **attributes),
        reference.backprop_weights(inputs, weights.shape, grad, **attributes),
    )


_SUITE = cases.suites()["CapsuleConv"]
OP = Description(_SUITE, widened(_SUITE.rivals["patches"]), _reference)
