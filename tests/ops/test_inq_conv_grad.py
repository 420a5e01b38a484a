# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""InqConv's derivatives of three orders against finite differences."""

import numpy as np
import pytest
import tensorflow as tf
from finite_differences import assert_gradients_agree
from registrations import bare

import tf_capsops
from tf_capsops.bench import cases

SUITE = cases.suites()["InqConv"]
WAYS = {"eager": lambda f: f, "graph": lambda f: tf.function(f, autograph=False)}

gradient_cases = pytest.mark.parametrize("case", SUITE.select(cases.GRADIENT), ids=str)
both_ways = pytest.mark.parametrize("way", WAYS)


def _draw(case):
    """Returns (grad, input, codes, top exponent), in float64."""
    rng = np.random.default_rng(0)
    return rng.uniform(-1, 1, SUITE.output_shape(case)), *SUITE.draw(case, rng)


def _convolve(case):
    """Returns the op as a function of its input alone."""
    _, _, *others = _draw(case)
    return lambda inputs: case.bind(tf_capsops.inq_conv2d)(inputs, *others)


@gradient_cases
def test_gradients(case, device):
    _, inputs, *_ = _draw(case)
    assert_gradients_agree(_convolve(case), [inputs])


@gradient_cases
def test_gradients_of_the_gradient_op(case, device):
    grad, inputs, *others = _draw(case)

    def by_input(grad):
        op = case.bind(bare().inq_conv_backprop_input)
        return op(inputs.shape, *others, grad)

    assert_gradients_agree(by_input, [grad])


def _gradient(function):
    """Returns the gradient of a smooth number made of `function`."""

    def gradient(inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            loss = tf.reduce_sum(tf.sin(function(inputs)))
        return tape.gradient(loss, inputs)

    return gradient


@pytest.mark.parametrize("order", [2, 3])
@gradient_cases
def test_higher_derivatives(case, order, device):
    function = _convolve(case)
    for _ in range(order - 1):
        function = _gradient(function)
    _, inputs, *_ = _draw(case)
    assert_gradients_agree(tf.function(function, autograph=False), [inputs])


@both_ways
def test_only_images_have_gradients(way, device):
    (case, *_) = SUITE.select(cases.SMOKE)
    grad, inputs, codes, top_exponent = map(tf.constant, _draw(case))

    @WAYS[way]
    def missing():
        sizes = tf.shape(inputs)
        discrete = [sizes, codes, top_exponent]
        with tf.GradientTape(persistent=True) as tape:
            tape.watch([*discrete, inputs, grad])
            output = tf_capsops.inq_conv2d(inputs, codes, top_exponent)
            by_input = bare().inq_conv_backprop_input(sizes, codes, top_exponent, grad)
        return [
            [gradient is None for gradient in tape.gradient(result, sources)]
            for result, sources in (
                (output, [inputs, *discrete]),
                (by_input, [grad, *discrete]),
            )
        ]

    assert missing() == [[False, True, True, True]] * 2
