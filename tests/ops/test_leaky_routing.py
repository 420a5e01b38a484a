# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""CapsuleRouting with an extra entry of the softmax, whose share is discarded."""

import contextlib
import functools

import numpy as np
import pytest
import tensorflow as tf
from descriptions import assert_all_close, every_dtype, exact
from descriptions.capsule_routing import OP
from frames import call
from reference import capsule_conv_routing as reference
from tolerances import assert_close

import tf_capsops
from tf_capsops import capsule_routing, routing_coefficients

iteration_counts = pytest.mark.parametrize("iterations", [1, 2, 3])
both = pytest.mark.parametrize("portable", [False, True])


def _way(portable):
    return tf_capsops.portable() if portable else contextlib.nullcontext()


def _as_pixel(inputs, weights, logits):
    """Returns operands of the reference, types of capsules at a line of one pixel."""
    bias = np.zeros(weights.shape[1:3])
    return inputs[:, None], weights.transpose(0, 3, 1, 2)[None], bias, logits


@every_dtype
@iteration_counts
@pytest.mark.parametrize("name", ["ones", "primes", "in_caps_37"])
def test_values_and_gradients(name, iterations, dtype, device):
    tensors = OP.draw(OP.case(name), dtype)
    routing = functools.partial(capsule_routing, iterations=iterations, leaky=True)
    ours = call(OP.results, routing, *tensors)
    grad, *operands = exact(tensors)
    given = {"iterations": iterations, "strides": [1], "leaky": True}
    pixel = _as_pixel(*operands)
    truth = [
        reference.forward(*pixel, **given),
        *reference.backward(grad[:, None], *pixel, **given),
    ]
    magnitude = [
        np.ones_like(truth[0]),
        *reference.backward_magnitude(grad[:, None], *pixel, **given),
    ]

    def as_routing(results):
        outputs, inputs, weights, _, logits = results
        return [outputs[:, 0], inputs[:, 0], weights[0].transpose(0, 2, 3, 1), logits]

    def plain():
        with tf_capsops.portable():
            return OP.results(routing, *tensors)

    assert_all_close(ours, plain, as_routing(truth), as_routing(magnitude))
    if dtype == tf.float64:
        for result, expected in zip(plain(), as_routing(truth), strict=True):
            np.testing.assert_allclose(result, expected, rtol=0, atol=1e-12)


@every_dtype
@iteration_counts
@pytest.mark.parametrize("name", ["ones", "primes"])
def test_coefficients(name, iterations, dtype, device):
    """They add up to less than 1."""
    _, *tensors = OP.draw(OP.case(name), dtype)
    look = functools.partial(routing_coefficients, iterations=iterations, leaky=True)
    ours = call(look, *tensors)
    given = {"iterations": iterations, "strides": [1], "leaky": True}
    truth = reference.shares(*_as_pixel(*exact(tensors)), **given)[:, 0]
    with tf_capsops.portable():
        plain = look(*tensors)
    assert_close(ours.numpy(), truth, plain.numpy(), np.ones_like(truth))
    assert truth.sum(axis=-1).max() < 1
    if dtype == tf.float64:
        np.testing.assert_allclose(plain, truth, rtol=0, atol=1e-12)


@both
def test_second_derivatives(portable, device):
    """Of the sum of squares, against central differences of its gradient."""
    random = np.random.default_rng(3)
    shapes = (2, 3, 2), (3, 4, 5, 2), (3, 4)
    operands = [tf.constant(random.uniform(-1, 1, shape)) for shape in shapes]
    ways = [tf.constant(random.uniform(-1, 1, shape)) for shape in shapes]

    def gradient(*operands):
        with tf.GradientTape() as tape:
            tape.watch(operands)
            outputs = capsule_routing(*operands, leaky=True)
            loss = tf.reduce_sum(outputs * outputs)
        return tape.gradient(loss, operands)

    def moved(step):
        return gradient(*(e + step * way for e, way in zip(operands, ways)))

    with _way(portable):
        with tf.GradientTape() as tape:
            tape.watch(operands)
            slope = sum(
                tf.reduce_sum(each * way)
                for each, way in zip(gradient(*operands), ways, strict=True)
            )
        found = tape.gradient(slope, operands)
        for second, ahead, behind in zip(found, moved(1e-5), moved(-1e-5), strict=True):
            expected = (ahead - behind) / 2e-5
            np.testing.assert_allclose(second, expected, rtol=0, atol=1e-8)


@every_dtype
@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("name", ["primes", *OP.empty])
def test_graphs_and_unknown_shapes(name, jit, dtype, device):
    case = OP.case(name)
    _, *operands = OP.draw(case, dtype)

    def compute(*operands):
        with tf.GradientTape() as tape:
            tape.watch(operands)
            outputs = case.bind(capsule_routing)(*operands, leaky=True)
        shares = case.bind(routing_coefficients)(*operands, leaky=True)
        return outputs, shares, *tape.gradient(outputs, operands)

    signature = [tf.TensorSpec([None] * each.shape.rank, dtype) for each in operands]
    if not jit:
        signature = [tf.TensorSpec(None, dtype)] * 3
    graph = tf.function(compute, signature, autograph=False, jit_compile=jit)
    eager = compute(*operands)
    assert eager[0].shape == (len(operands[0]), *operands[1].shape[1:3])
    assert eager[1].shape == (len(operands[0]), *operands[2].shape)
    for found, expected in zip(graph(*operands), eager, strict=True):
        np.testing.assert_array_equal(found, expected)


@both
@pytest.mark.parametrize("function", [capsule_routing, routing_coefficients])
def test_what_does_not_fit(function, portable, device):
    error = pytest.raises(
        tf.errors.InvalidArgumentError,
        match=r"CapsuleRouting: weights dim 0 \(in_caps\) must be 3",
    )
    with _way(portable), error:
        function(tf.ones([1, 3, 2]), tf.ones([4, 5, 6, 2]), leaky=True)
    text = f"{function.__name__}: leaky must be True or False, got 'false'"
    with _way(portable), pytest.raises(ValueError, match=text):
        function(tf.ones([1, 3, 2]), tf.ones([3, 5, 6, 2]), leaky="false")
