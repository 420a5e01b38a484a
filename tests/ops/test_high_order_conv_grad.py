# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The gradients of HighOrderConv's gradient op."""

import numpy as np
import pytest
import tensorflow as tf
from descriptions.high_order_conv import OP
from finite_differences import assert_gradients_agree
from frames import both_ways
from registrations import bare

from tf_capsops.bench import cases


def _gradient_op(case):
    return case.bind(bare().high_order_conv_grad)


@OP.cases(cases.GRADIENT)
@pytest.mark.parametrize("used", ["grad_input", "grad_filters", "both"])
def test_gradients_of_the_gradient_op(case, used, device):
    """Also where one of its results is not used, and so has no gradient."""

    def gradients(*operands):
        results = _gradient_op(case)(*operands)
        chosen = results if used == "both" else [getattr(results, used)]
        return tf.concat([tf.reshape(result, [-1]) for result in chosen], 0)

    assert_gradients_agree(gradients, OP.draw(case, tf.float64))


@both_ways
def test_an_image_as_its_own_gradient(way, device):
    """One tensor in several places has the sum of its derivatives."""
    (case,) = OP.suite.select(cases.SMOKE)
    _, image, filters = OP.draw(case, tf.float64)

    @way
    def gradients():
        with tf.GradientTape(persistent=True) as tape:
            others = tf.identity(image), tf.identity(image)
            tape.watch([image, *others])
            twice = _gradient_op(case)(image, image, filters)
            apart = _gradient_op(case)(*others, filters)
        return tape.gradient(twice, image), tape.gradient(apart, others)

    one, (first, second) = gradients()
    np.testing.assert_allclose(one, first + second, rtol=0, atol=1e-12)
