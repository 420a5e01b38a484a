# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""HighOrderConv, as the tests that all ops share see it."""

import numpy as np
from reference import high_order_conv as reference

from descriptions import Description
from tf_capsops._portable import widened
from tf_capsops.bench import cases


def _reference(grad, inputs, filters, data_format, **attributes):
    """Returns the results in the order of axes that the arrays have."""
    first = data_format == "NCHW"
    if first:
        grad, inputs, filters = (np.moveaxis(t, 1, 3) for t in (grad, inputs, filters))
    results = (
        reference.forward(inputs, filters, **attributes),
        *reference.backward(grad, inputs, filters, **attributes),
    )
    return [np.moveaxis(t, 3, 1) if first else t for t in results]


_SUITE = cases.suites()["HighOrderConv"]
_FRAMES = {
    "second_derivatives": (
        *("ones", "primes", "primes_NCHW", "channels_12_groups_3", "kernel_9_3"),
        *("channels_12_groups_3_NCHW", "dilations_1_3", "image_3_4_kernel_9_9"),
    ),
    "higher_derivatives": [case.name for case in _SUITE.select(cases.GRADIENT)],
    "rivals": (
        *("primes", "primes_NCHW", "channels_12_groups_3", "dilations_3_1"),
        *("channels_12_groups_3_NCHW", "image_3_4_kernel_9_9", "dilations_7_of_7"),
    ),
    "long_sums": (
        *("long_sums_of_channels", "long_sums_of_taps", "channels_130_groups_2"),
        *("long_sums_of_channels_NCHW", "long_sums_of_taps_NCHW"),
    ),
    "unknown_shapes": (
        *("primes", "channels_12_groups_3_NCHW", "dilations_1_3", "kernel_9_3"),
    ),
}
OP = Description(_SUITE, widened(_SUITE.rivals["slices"]), _reference, frames=_FRAMES)
