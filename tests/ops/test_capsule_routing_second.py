# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""CapsuleRouting's second derivatives, against autodiff through the plain formula."""

import functools

import numpy as np
import pytest
import tensorflow as tf
import tolerances
from frames import both_ways, switched, traced
from registrations import bare

import tf_capsops
from tf_capsops.ops import capsule_routing_second

EPSILON = float(np.float32(1e-3))
SHAPES = (2, 7, 4), (7, 5, 3, 4), (7, 5)
NARROW = tf.float32, tf.float16, tf.bfloat16  # all other tests take float64


def _draw(shapes, dtype):
    """Returns inputs, weights, logits and the output's gradient; then tangents."""
    (batch, *_), (_, *out, _), _ = shapes
    rng = np.random.default_rng(0)
    drawn = [
        tf.constant(rng.uniform(-1, 1, shape), dtype)
        for shape in [*shapes, (batch, *out), *shapes]
    ]
    return drawn[:4], drawn[4:]


def _plain(inputs, weights, logits, iterations=2):
    predictions = tf.einsum("ijdk,bik->bijd", weights, inputs)
    logits = tf.broadcast_to(logits, tf.shape(predictions)[:3])
    for _ in range(iterations):
        shares = tf.nn.softmax(logits)
        sums = tf.einsum("bij,bijd->bjd", shares, predictions)
        output = tf_capsops.squash(sums, epsilon=EPSILON)
        logits += tf.einsum("bijd,bjd->bij", predictions, output)
    return output


def _ours(*inputs, function=tf_capsops.capsule_routing, iterations=2):
    return function(*inputs, iterations=iterations, epsilon=EPSILON)


def _second(routing, operands, tangents):
    """Backpropagates tangents through the gradients of routing."""
    *inputs, grad = operands
    with tf.GradientTape() as outer:
        outer.watch(operands)
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            output = routing(*inputs)
        gradients = tape.gradient(output, inputs, grad)
    # A sum that rests on no weight has zeros, not None.
    zero = tf.UnconnectedGradients.ZERO
    return outer.gradient(gradients, operands, tangents, unconnected_gradients=zero)


def _backwards(tensors):
    """Returns tensors with the input capsules in the opposite order."""
    axes = ([1], [0], [0], []) if len(tensors) == 4 else ([1], [0], [0])
    return [tf.reverse(each, axis) for each, axis in zip(tensors, axes, strict=True)]


@functools.cache
def _plain_second(shapes, dtype, iterations, device):
    """Returns what a device makes of the draw in plain TensorFlow, and the truth."""

    def plain(*drawn):
        return _second(lambda *inputs: _plain(*inputs, iterations), *drawn)

    def cast(dtype):
        return [[tf.cast(each, dtype) for each in group] for group in drawn]

    drawn = _draw(shapes, dtype)
    # In another order, or plain TensorFlow's results in float64 would be the truth, and
    # this on a CPU, or both would round alike on a GPU.
    with tf.device(device):
        yardstick = _backwards(plain(*map(_backwards, drawn)))
    with tf.device("CPU:0"):
        return yardstick, plain(*cast(tf.float64))


def _assert_close(found, shapes=SHAPES, dtype=tf.float64, iterations=2):
    """Asserts that second derivatives of the draw are as exact as plain ones."""
    yardstick, truth = _plain_second(shapes, dtype, iterations, found[0].device)
    for ours, theirs, exact in zip(found, yardstick, truth, strict=True):
        largest = np.full(exact.shape, np.abs(exact).max(initial=0))
        tolerances.assert_close(ours, exact.numpy(), theirs, largest)


@both_ways
@pytest.mark.parametrize("iterations, block", [(1, 10**6), (2, 60), (3, 1)])
def test_second_derivatives(way, iterations, block, monkeypatch, device):
    # All input capsules in one block, in two, and each in its own.
    monkeypatch.setattr(capsule_routing_second, "_BLOCK", block)
    drawn = _draw(SHAPES, tf.float64)

    def routing(*inputs):
        return _ours(*inputs, iterations=iterations)

    found = way(lambda *drawn: _second(routing, *drawn))(*drawn)
    _assert_close(found, iterations=iterations)


def test_the_bare_op(device):
    drawn = _draw(SHAPES, tf.float64)

    def routing(*inputs):
        return _ours(*inputs, function=bare().capsule_routing)

    _assert_close(switched(lambda: _second(routing, *drawn))())


@pytest.mark.parametrize("dtype", NARROW)
def test_types(dtype, device):
    drawn = _draw(SHAPES, dtype)
    found = switched(lambda: _second(_ours, *drawn))()
    assert {each.dtype for each in found} == {dtype}
    _assert_close(found, dtype=dtype)


@pytest.mark.parametrize(
    "batch, in_caps, in_dim", [(1, 1, 1), (0, 3, 4), (2, 0, 4), (2, 3, 0)]
)
def test_ones_and_empty_sizes(batch, in_caps, in_dim, device):
    shapes = (batch, in_caps, in_dim), (in_caps, 5, 2, in_dim), (in_caps, 5)
    drawn = _draw(shapes, tf.float64)
    found = switched(lambda: _second(_ours, *drawn))()
    assert [each.shape for each in found] == [each.shape for each in drawn[0]]
    _assert_close(found, shapes)


@pytest.mark.parametrize("ranked", [True, False])
def test_unknown_sizes(ranked, device):
    drawn = _draw(SHAPES, tf.float64)
    signature = [
        [
            tf.TensorSpec([None] * each.shape.rank if ranked else None, each.dtype)
            for each in group
        ]
        for group in drawn
    ]
    found = traced(lambda *drawn: _second(_ours, *drawn), signature)(*drawn)
    _assert_close(found)


def test_a_tape_around_a_traced_training_step(device):
    (*inputs, grad), tangents = _draw(SHAPES, tf.float64)

    @traced
    def step(*inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            output = _ours(*inputs)
        return tape.gradient(output, inputs, grad)

    with tf.GradientTape() as outer:
        outer.watch([*inputs, grad])
        gradients = step(*inputs)
    found = outer.gradient(gradients, [*inputs, grad], tangents)
    _assert_close(found)
