# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""CapsuleRouting's gradients against finite differences, and where they end."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from descriptions.capsule_routing import OP
from finite_differences import assert_gradients_agree
from frames import both_ways, traced
from registrations import bare

import tf_capsops
from tf_capsops.bench import cases


def _draw():
    shapes = (2, 3, 4), (3, 5, 2, 4), (3, 5)
    rng = np.random.default_rng(0)
    return [tf.constant(rng.uniform(-1, 1, shape)) for shape in shapes]


@OP.cases(cases.GRADIENT)
def test_gradients_of_the_bare_op(case, device):
    """It returns no sums, so its gradient makes them again."""
    compute = case.bind(bare().capsule_routing)
    assert_gradients_agree(compute, OP.draw(case, tf.float64)[1:])


@pytest.mark.parametrize("epsilon", [0.5, 1e-3])
def test_gradients_with_another_epsilon(epsilon, device):
    for function in (tf_capsops.capsule_routing, bare().capsule_routing):
        assert_gradients_agree(functools.partial(function, epsilon=epsilon), _draw())


def _gradients(compute, *inputs):
    return OP.results(compute, None, *inputs)[1:]


@both_ways
def test_nothing_reaches_the_inputs_through_the_sums(way, device):
    def sums(*inputs):
        return bare().capsule_routing_with_sums(*inputs, U=tf.float64).sums

    for gradient in way(_gradients)(sums, *_draw()):
        assert gradient is None or not gradient.numpy().any()


def _first_derivative(inputs):
    """A traced function's output, its gradient and the coefficients."""

    @traced
    def compute():
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            output = tf_capsops.capsule_routing(*inputs)
        coefficients = tf_capsops.routing_coefficients(*inputs)
        return output, tape.gradient(output, inputs), coefficients

    return compute


@pytest.mark.parametrize("persistent", [False, True])
def test_an_outer_tape_may_watch_a_traced_training_step(persistent, device):
    inputs = _draw()
    step = _first_derivative(inputs)
    _, expected, _ = step()
    with tf.GradientTape(persistent=persistent) as outer:
        outer.watch(inputs)
        output, _, _ = step()
    for gradient, truth in zip(outer.gradient(output, inputs), expected, strict=True):
        np.testing.assert_array_equal(gradient, truth)


@both_ways
def test_no_gradient_flows_through_coefficients(way, device):
    gradients = way(_gradients)(tf_capsops.routing_coefficients, *_draw())
    assert [*gradients] == [None, None, None]


def test_coefficients_beside_the_output_leave_its_gradient_alone(device):
    inputs = _draw()

    @traced
    def together():
        output = tf_capsops.capsule_routing(*inputs)
        return output, tf_capsops.routing_coefficients(*inputs)

    with tf.GradientTape(persistent=True) as tape:
        tape.watch(inputs)
        output, _ = together()
        expected = tf_capsops.capsule_routing(*inputs)
    for gradient, truth in zip(
        tape.gradient(output, inputs), tape.gradient(expected, inputs), strict=True
    ):
        np.testing.assert_array_equal(gradient, truth)
