# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""HighOrderConv's derivatives of three orders against finite differences."""

import frames
import numpy as np
import pytest
import tensorflow as tf
from descriptions.high_order_conv import OP
from finite_differences import assert_gradients_agree
from frames import WAYS, both_ways
from registrations import bare

from tf_capsops.bench import cases


def _gradient_op(case):
    return case.bind(bare().high_order_conv_grad)


@OP.gradient_cases
def test_gradients(case, device):
    frames.derivatives(OP, case, 1)


@OP.gradient_cases
@pytest.mark.parametrize("used", ["grad_input", "grad_filters", "both"])
def test_gradients_of_the_gradient_op(case, used, device):
    """Also where one of its results is not used, and so has no gradient."""

    def gradients(*operands):
        results = _gradient_op(case)(*operands)
        chosen = results if used == "both" else [getattr(results, used)]
        return tf.concat([tf.reshape(result, [-1]) for result in chosen], 0)

    assert_gradients_agree(gradients, OP.draw(case, tf.float64))


@pytest.mark.parametrize("order", [2, 3])
@OP.gradient_cases
def test_higher_derivatives(case, order, device):
    frames.derivatives(OP, case, order)


@both_ways
@pytest.mark.parametrize("source", [0, 1])
def test_gradient_of_one_input_alone(source, way, device):
    (case,) = OP.suite.select(cases.SMOKE)
    frames.gradient_of_one_input_alone(OP, case, source, way)


@both_ways
def test_an_image_as_its_own_gradient(way, device):
    """One tensor in several places has the sum of its derivatives."""
    (case,) = OP.suite.select(cases.SMOKE)
    _, image, filters = OP.draw(case, tf.float64)

    @WAYS[way]
    def gradients():
        with tf.GradientTape(persistent=True) as tape:
            others = tf.identity(image), tf.identity(image)
            tape.watch([image, *others])
            twice = _gradient_op(case)(image, image, filters)
            apart = _gradient_op(case)(*others, filters)
        return tape.gradient(twice, image), tape.gradient(apart, others)

    one, (first, second) = gradients()
    np.testing.assert_allclose(one, first + second, rtol=0, atol=1e-12)
