# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""CapsuleRouting's values and gradients, against the float64 reference."""

import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf
from descriptions import every_dtype, exact, half_types, rounded_to_tf32
from descriptions.capsule_routing import OP, plain_coefficients
from frames import call, traced
from reference import capsule_routing as reference
from tolerances import assert_close, assert_rounded

import tf_capsops

iteration_counts = pytest.mark.parametrize("iterations", [1, 2, 3, 4, 5])


@iteration_counts
@pytest.mark.parametrize("rival", OP.suite.rivals)
@pytest.mark.parametrize("name", ["primes", "mnist_layer", "in_caps_37"])
def test_gradients_are_those_of_autodiff(name, rival, iterations, device):
    """Compares with plain formulations differentiated in float64."""
    tensors = OP.draw(OP.case(name), tf.float32)
    wide = [tf.cast(tensor, tf.float64) for tensor in tensors]
    compute = functools.partial(OP.suite.rivals[rival], iterations=iterations)
    routing = functools.partial(tf_capsops.capsule_routing, iterations=iterations)
    ours, truth, plain = (
        [result.numpy() for result in results[1:]]
        for results in (
            call(OP.results, routing, *tensors),
            OP.results(compute, *wide),
            OP.results(compute, *tensors),
        )
    )
    magnitude = reference.backward_magnitude(*exact(tensors), iterations)
    for one in zip(ours, truth, plain, magnitude, strict=True):
        assert_close(*one)


@every_dtype
@pytest.mark.parametrize("epsilon", [2.0, 2.0**-10])
def test_another_epsilon(epsilon, dtype, device):
    attributes = {"iterations": 3, "epsilon": epsilon}
    case = dataclasses.replace(OP.case("primes"), attributes=attributes)
    tensors = OP.draw(case, dtype)
    OP.assert_close_to_reference(case, tensors)
    inputs = tensors[1:]
    coefficients = call(tf_capsops.routing_coefficients, *inputs, **attributes)
    truth = reference.coefficients(*exact(inputs), **attributes)
    by_plain = plain_coefficients(*inputs, **attributes)
    assert_close(coefficients.numpy(), truth, by_plain.numpy(), np.ones_like(truth))


@pytest.mark.parametrize("allowed", [False, True])
@pytest.mark.parametrize("name", ["mnist_layer", "tiles_17_37_5_16_16", "batch_33"])
def test_tensor_float_32_follows_the_switch(name, allowed, device):
    """With TF32 allowed, the yardstick is float32 of rounded numbers."""
    case = OP.case(name)
    tensors = OP.draw(case, tf.float32)
    tf.config.experimental.enable_tensor_float_32_execution(allowed)
    results = OP.ours(case, tensors)
    tf.config.experimental.enable_tensor_float_32_execution(False)
    yardstick = rounded_to_tf32(tensors) if allowed else None
    OP.assert_close_to_reference(case, tensors, yardstick, results)


@half_types
@iteration_counts
def test_half_types_accumulate_in_float32(iterations, dtype, device):
    case = OP.case("in_caps_257")
    inputs = [tf.abs(tensor) for tensor in OP.draw(case, dtype)[1:]]
    output = call(tf_capsops.capsule_routing, *inputs, iterations=iterations)
    truth = reference.forward(*exact(inputs), iterations)
    assert_rounded(output.numpy(), truth)


@half_types
def test_half_types_do_not_overflow_inside(dtype, device):
    """Predictions of 460800 are past float16's largest number."""
    inputs = tf.fill((2, 3, 8), tf.constant(240, dtype))
    weights = tf.fill((3, 2, 1, 8), tf.constant(240, dtype))
    output = call(tf_capsops.capsule_routing, inputs, weights)
    np.testing.assert_array_equal(output.numpy(), np.ones((2, 2, 1)))


@every_dtype
@pytest.mark.parametrize("scale", [30, 1000])
def test_large_logits(scale, dtype, device):
    """Their exponentials would overflow; what rounds them is a factor of the result."""

    def magnitude(*arrays, **attributes):
        output, *gradients = OP.magnitude(*arrays, **attributes)
        return output, *(scale * gradient for gradient in gradients)

    case = OP.case("primes")
    *others, logits = OP.draw(case, dtype)
    tensors = [*others, logits * tf.cast(scale, dtype)]
    scaled = dataclasses.replace(OP, magnitude=magnitude)
    scaled.assert_close_to_reference(case, tensors)


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64, tf.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["primes", "mnist_layer"])
def test_logits_that_share_a_huge_offset(name, dtype, device):
    """Nothing that is added to them is left, so that all shares are equal."""
    case = OP.case(name)
    *others, logits = OP.draw(case, dtype)
    OP.assert_close_to_reference(case, [*others, tf.zeros_like(logits) + 1e30])


@every_dtype
def test_no_logits_are_zeros(dtype, device):
    _, inputs, weights, logits = OP.draw(OP.case("primes"), dtype)
    for function in (tf_capsops.capsule_routing, tf_capsops.routing_coefficients):
        zeros = call(function, inputs, weights, tf.zeros_like(logits))
        np.testing.assert_array_equal(call(function, inputs, weights), zeros)
        assert np.any(call(function, inputs, weights, logits) != zeros)


@every_dtype
@iteration_counts
def test_zero_input(iterations, dtype, device):
    """Output and gradients are zero, where the length has no derivative."""
    grad, inputs, weights, logits = OP.draw(OP.case("primes"), dtype)

    def compute(*inputs):
        return tf_capsops.capsule_routing(*inputs, iterations=iterations)

    zeros = tf.zeros_like(inputs)
    for result in call(OP.results, compute, grad, zeros, weights, logits):
        np.testing.assert_array_equal(result.numpy(), np.zeros(result.shape))


@every_dtype
@pytest.mark.parametrize("name", ["primes", "iterations_1", *OP.empty])
def test_unknown_shapes_of_coefficients_and_without_logits(name, dtype, device):
    """Graphs traced without any shape give the very numbers of eager execution."""
    case = OP.case(name)
    _, *inputs = OP.draw(case, dtype)

    def compute(*inputs):
        routing = case.bind(tf_capsops.capsule_routing)
        look = case.bind(tf_capsops.routing_coefficients)
        return look(*inputs), look(*inputs[:2]), routing(*inputs[:2])

    graphs = traced(compute, [tf.TensorSpec(None, dtype)] * 3)(*inputs)
    for eager, graph in zip(call(compute, *inputs), graphs, strict=True):
        np.testing.assert_array_equal(eager.numpy(), graph.numpy())


def test_accepts_what_tensorflow_converts(device):
    """Arrays, nested lists and variables, as any function of TensorFlow does."""
    inputs, weights = np.float64([[[1, 2]]]), [[[[3.0, 4.0]], [[5.0, 6.0]]]]
    expected = tf_capsops.capsule_routing(tf.constant(inputs), np.float64(weights))
    for convert in (tf.Variable, tf.constant, np.float64):
        for logits in (None, [[0, 0]], np.zeros((1, 2))):
            output = tf_capsops.capsule_routing(convert(inputs), weights, logits)
            np.testing.assert_array_equal(output, expected)
    output = tf_capsops.capsule_routing(inputs.tolist(), weights)
    assert output.dtype == tf.float32
    output = tf_capsops.capsule_routing([[[1, 2]]], tf.constant(weights, tf.float64))
    np.testing.assert_array_equal(output, expected)


@every_dtype
@iteration_counts
@pytest.mark.parametrize("name", ["primes", "out_caps_49", "in_caps_1"])
def test_coefficients(name, iterations, dtype, device):
    _, *inputs = OP.draw(OP.case(name), dtype)
    ours = call(tf_capsops.routing_coefficients, *inputs, iterations=iterations)
    assert ours.device.endswith(device)
    truth = reference.coefficients(*exact(inputs), iterations)
    plain = plain_coefficients(*inputs, iterations=iterations)
    assert_close(ours.numpy(), truth, plain.numpy(), np.ones_like(truth))
    totals = [exact([shares])[0].sum(axis=-1) for shares in (ours, plain)]
    total, plain = (total.astype(dtype.as_numpy_dtype) for total in totals)
    assert_close(total, np.ones(total.shape), plain)


def test_coefficients_of_one_iteration_are_those_of_the_logits(device):
    _, inputs, weights, logits = OP.draw(OP.case("primes"), tf.float32)
    inputs = inputs, weights, logits
    ours = call(tf_capsops.routing_coefficients, *inputs, iterations=1)
    shares = tf.nn.softmax(logits)
    truth = np.broadcast_to(tf.nn.softmax(tf.cast(logits, tf.float64)), ours.shape)
    assert_close(ours.numpy(), truth, np.broadcast_to(shares, ours.shape))
