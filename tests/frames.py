# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tests of values and gradients that several ops share, one function a test."""

import numpy as np
import pytest
import tensorflow as tf
from descriptions import assert_all_close, exact, rounded_to_tf32
from finite_differences import assert_gradients_agree
from tolerances import assert_rounded

WAYS = {"eager": lambda f: f, "graph": lambda f: tf.function(f, autograph=False)}

both_ways = pytest.mark.parametrize("way", WAYS)


def values_and_gradients(op, case, dtype, device):
    """They are the reference's, and the device is the one asked for."""
    for result in op.assert_close_to_reference(case, op.draw(case, dtype)):
        assert result.device.endswith(device)


def _second_reference(reference, grad, a, b, by_a, by_b):
    """The gradient of a is linear in grad and b, and so on."""
    output, _, in_b = reference(grad, by_a, b)
    also, in_a, _ = reference(grad, a, by_b)
    return output + also, in_a, in_b


def second_derivatives_of_a_bilinear_op(op, name, dtype):
    """Differentiates the gradients of both inputs by all tensors."""
    case = op.case(name)
    sources = op.draw(case, dtype)
    targets = [tensor[::-1] for tensor in sources[1:]]

    def second(compute):
        with tf.GradientTape() as tape:
            tape.watch(sources)
            gradients = op.gradients(case.bind(compute), *sources)
        return tape.gradient(gradients, sources, targets)

    arrays = exact([*sources, *targets])
    truth = _second_reference(case.bind(op.reference), *arrays)
    magnitude = _second_reference(case.bind(op.reference), *map(np.abs, arrays))
    assert_all_close(second(op.suite.ours), second(op.plain), truth, magnitude)


def rival(op, name, rival):
    """A rival, which may be the yardstick of precision, computes the same."""
    case = op.case(name)
    tensors = op.draw(case, tf.float64)
    results = op.results(case.bind(op.suite.rivals[rival]), *tensors)
    truths = case.bind(op.reference)(*exact(tensors))
    for result, truth in zip(results, truths, strict=True):
        np.testing.assert_allclose(result, truth, rtol=0, atol=1e-12)


def sums_are_rounded_once(op, case, tensors):
    """Of positive terms, as only sums in a wider type are."""
    truths = case.bind(op.reference)(*exact(tensors))
    for result, truth in zip(op.ours(case, tensors), truths, strict=True):
        assert_rounded(result.numpy(), truth)


def tensor_float_32_follows_the_switch(op, name, allowed):
    """With TF32 allowed, the yardstick is plain TensorFlow of rounded numbers."""
    case = op.case(name)
    tensors = op.draw(case, tf.float32)
    tf.config.experimental.enable_tensor_float_32_execution(allowed)
    yardstick = rounded_to_tf32(tensors) if allowed else None
    op.assert_close_to_reference(case, tensors, yardstick)


def unknown_shapes_change_nothing(op, name, dtype, way=lambda function: function):
    """Graphs traced without any shape give the very numbers of eager execution.

    The numbers are also those of the op in a graph with shapes, where `way` makes one.
    """
    case = op.case(name)
    tensors = op.draw(case, dtype)
    signature = [tf.TensorSpec(None, tensor.dtype) for tensor in tensors]

    @tf.function(input_signature=signature, autograph=False)
    def traced(*tensors):
        return op.ours(case, tensors)

    known = op.results(way(case.bind(op.suite.ours)), *tensors)
    for eager, graph in zip(known, traced(*tensors), strict=True):
        np.testing.assert_array_equal(eager.numpy(), graph.numpy())


def empty_dimensions_give_zeros(op, name, dtype):
    """Also where the result is not empty."""
    case = op.case(name)
    tensors = op.draw(case, dtype)
    results = op.ours(case, tensors)
    for result, like in zip(results, tensors, strict=False):
        np.testing.assert_array_equal(result.numpy(), np.zeros(like.shape))


def _all_gradients(function):
    """Returns the gradient of a smooth number made of `function`, as one vector."""

    def gradients(*arguments):
        with tf.GradientTape() as tape:
            tape.watch(arguments)
            loss = tf.reduce_sum(tf.sin(function(*arguments)))
        found = tape.gradient(loss, arguments)
        return tf.concat([tf.reshape(gradient, [-1]) for gradient in found], 0)

    return gradients


def derivatives(op, case, order):
    """They are the finite differences of the derivatives of one order less."""
    _, *inputs = op.draw(case, tf.float64)
    sources = inputs[: op.suite.sources]
    others = inputs[len(sources) :]

    def function(*sources):
        return case.bind(op.suite.ours)(*sources, *others)

    for _ in range(order - 1):
        function = _all_gradients(function)
    if order > 1:
        function = tf.function(function, autograph=False)
    assert_gradients_agree(function, sources)


def gradient_of_one_input_alone(op, case, source, way):
    """It is the same as beside the gradients of other inputs."""
    _, *inputs = op.draw(case, tf.float64)

    @WAYS[way]
    def gradient(sources):
        with tf.GradientTape() as tape:
            tape.watch(sources)
            output = case.bind(op.suite.ours)(*inputs)
        return tape.gradient(output, sources)

    together, alone = gradient(inputs)[source], gradient(inputs[source])
    np.testing.assert_array_equal(alone, together)
