# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""HighOrderConv's derivatives of three orders against finite differences."""

import numpy as np
import pytest
import tensorflow as tf
from finite_differences import assert_gradients_agree

import tf_capsops
from tf_capsops.bench import cases

SUITE = cases.suites()["HighOrderConv"]
WAYS = {"eager": lambda f: f, "graph": lambda f: tf.function(f, autograph=False)}

gradient_cases = pytest.mark.parametrize("case", SUITE.select(cases.GRADIENT), ids=str)
both_ways = pytest.mark.parametrize("way", WAYS)


def _gradient_op(case):
    bare = tf.load_op_library(tf_capsops.library_path())
    return case.bind(bare.high_order_conv_grad)


def _draw(case):
    """Returns (grad, input, filters) in float64."""
    rng = np.random.default_rng(0)
    return rng.uniform(-1, 1, SUITE.output_shape(case)), *SUITE.draw(case, rng)


@gradient_cases
def test_gradients(case, device):
    _, *inputs = _draw(case)
    assert_gradients_agree(case.bind(tf_capsops.high_order_conv2d), inputs)


@gradient_cases
@pytest.mark.parametrize("used", ["grad_input", "grad_filters", "both"])
def test_gradients_of_the_gradient_op(case, used, device):
    """Also where one of its results is not used, and so has no gradient."""

    def gradients(*operands):
        results = _gradient_op(case)(*operands)
        chosen = results if used == "both" else [getattr(results, used)]
        return tf.concat([tf.reshape(result, [-1]) for result in chosen], 0)

    assert_gradients_agree(gradients, _draw(case))


def _all_gradients(function):
    """Returns the gradient of a smooth number made of `function`, as one vector."""

    def gradients(*arguments):
        with tf.GradientTape() as tape:
            tape.watch(arguments)
            loss = tf.reduce_sum(tf.sin(function(*arguments)))
        found = tape.gradient(loss, arguments)
        return tf.concat([tf.reshape(gradient, [-1]) for gradient in found], 0)

    return gradients


@pytest.mark.parametrize("order", [2, 3])
@gradient_cases
def test_higher_derivatives(case, order, device):
    function = case.bind(tf_capsops.high_order_conv2d)
    for _ in range(order - 1):
        function = _all_gradients(function)
    assert_gradients_agree(tf.function(function, autograph=False), _draw(case)[1:])


@both_ways
@pytest.mark.parametrize("source", [0, 1])
def test_gradient_of_one_input_alone(source, way, device):
    (case,) = SUITE.select(cases.SMOKE)
    inputs = [tf.constant(array) for array in _draw(case)[1:]]

    @WAYS[way]
    def gradient(sources):
        with tf.GradientTape() as tape:
            tape.watch(sources)
            output = case.bind(tf_capsops.high_order_conv2d)(*inputs)
        return tape.gradient(output, sources)

    together, alone = gradient(inputs)[source], gradient(inputs[source])
    np.testing.assert_array_equal(alone, together)


@both_ways
def test_an_image_as_its_own_gradient(way, device):
    """One tensor in several places has the sum of its derivatives."""
    (case,) = SUITE.select(cases.SMOKE)
    _, image, filters = map(tf.constant, _draw(case))

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
