# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""HighOrderConv, as the tests that all ops share see it."""

import numpy as np
from reference import high_order_conv as reference

from descriptions import Description, widened
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
OP = Description(_SUITE, widened(_SUITE.rivals["slices"]), _reference)
