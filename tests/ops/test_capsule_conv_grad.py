# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""CapsuleConv's derivatives of three orders against finite differences."""

import numpy as np
import pytest
import tensorflow as tf
from finite_differences import assert_gradients_agree

import tf_capsops
from tf_capsops.bench import cases

SUITE = cases.suites()["CapsuleConv"]
WAYS = {"eager": lambda f: f, "graph": lambda f: tf.function(f, autograph=False)}

gradient_cases = pytest.mark.parametrize("case", SUITE.select(cases.GRADIENT), ids=str)
both_ways = pytest.mark.parametrize("way", WAYS)


def _bare():
    return tf.load_op_library(tf_capsops.library_path())


def _draw(case):
    """Returns (grad, input, weights) in float64."""
    rng = np.random.default_rng(0)
    return rng.uniform(-1, 1, SUITE.output_shape(case)), *SUITE.draw(case, rng)


@gradient_cases
def test_gradients(case, device):
    _, *inputs = _draw(case)
    assert_gradients_agree(case.bind(tf_capsops.capsule_conv2d), inputs)


@gradient_cases
def test_gradients_of_the_gradient_ops(case, device):
    grad, inputs, weights = _draw(case)

    def by_input(weights, grad):
        op = case.bind(_bare().capsule_conv_backprop_input)
        return op(inputs.shape, weights, grad)

    def by_weights(inputs, grad):
        op = case.bind(_bare().capsule_conv_backprop_weights)
        return op(inputs, weights.shape, grad)

    assert_gradients_agree(by_input, [weights, grad])
    assert_gradients_agree(by_weights, [inputs, grad])


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
@pytest.mark.parametrize("name", ["ones", "gradient_rank_3"])
def test_higher_derivatives(name, order, device):
    (case,) = (case for case in SUITE.cases if case.name == name)
    function = case.bind(tf_capsops.capsule_conv2d)
    for _ in range(order - 1):
        function = _all_gradients(function)
    assert_gradients_agree(tf.function(function, autograph=False), _draw(case)[1:])


@both_ways
@pytest.mark.parametrize("source", [0, 1])
def test_gradient_of_one_input_alone(source, way, device):
    (case, *_) = SUITE.select(cases.SMOKE)
    inputs = [tf.constant(array) for array in _draw(case)[1:]]

    @WAYS[way]
    def gradient(sources):
        with tf.GradientTape() as tape:
            tape.watch(sources)
            output = tf_capsops.capsule_conv2d(*inputs)
        return tape.gradient(output, sources)

    together, alone = gradient(inputs)[source], gradient(inputs[source])
    np.testing.assert_array_equal(alone, together)


@both_ways
def test_sizes_have_no_gradient(way, device):
    (case, *_) = SUITE.select(cases.SMOKE)
    grad, inputs, weights = map(tf.constant, _draw(case))

    @WAYS[way]
    def gradients():
        sizes = tf.shape(inputs), tf.shape(weights)
        with tf.GradientTape() as tape:
            tape.watch([*sizes, grad])
            results = (
                _bare().capsule_conv_backprop_input(sizes[0], weights, grad),
                _bare().capsule_conv_backprop_weights(inputs, sizes[1], grad),
            )
        return [g is None for g in tape.gradient(results, [*sizes, grad])]

    assert gradients() == [True, True, False]
