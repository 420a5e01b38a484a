# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""CapsulePrediction's values and gradients, against the float64 reference."""

import itertools
import unittest

import numpy as np
import pytest
import tensorflow as tf
from parameterized import parameterized
from reference import capsule_prediction as reference
from tolerances import assert_close, assert_rounded

import tf_capsops
from tf_capsops.bench import cases

SUITE = cases.suites()["CapsulePrediction"]
DTYPES = [tf.float32, tf.float64, tf.float16, tf.bfloat16]
WAYS = {"eager": lambda f: f, "tf.function": lambda f: tf.function(f)}
PLAIN = SUITE.rivals["einsum"]

every_case = pytest.mark.parametrize("case", SUITE.select(cases.CORRECTNESS), ids=str)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)


def _draw(case, dtype, *, positive=False):
    """Returns (grad, input, weights) as tensors."""
    rng = np.random.default_rng(0)
    arrays = [rng.uniform(-1, 1, SUITE.output_shape(case)), *SUITE.draw(case, rng)]
    return [tf.cast(np.abs(a) if positive else a, dtype) for a in arrays]


def _exact(tensors):
    return [tensor.numpy().astype(np.float64) for tensor in tensors]


def _gradients(compute, grad, *inputs):
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        output = compute(*inputs)
    return tape.gradient(output, inputs, grad)


def _second(compute, sources, targets):
    """Differentiates the gradients that `compute` has at sources, by the sources."""
    with tf.GradientTape() as tape:
        tape.watch(sources)
        gradients = _gradients(compute, *sources)
    return tape.gradient(gradients, sources, targets)


@every_dtype
@every_case
def test_forward(case, dtype, device):
    _, inputs, weights = _draw(case, dtype)
    output = tf_capsops.capsule_prediction(inputs, weights)
    assert output.device.endswith(device)
    exact = _exact([inputs, weights])
    assert_close(
        output.numpy(),
        reference.forward(*exact),
        PLAIN(inputs, weights).numpy(),
        reference.forward(*map(np.abs, exact)),
    )


@every_dtype
@every_case
def test_gradients(case, dtype, device):
    tensors = _draw(case, dtype)
    exact = _exact(tensors)
    ours = _gradients(tf_capsops.capsule_prediction, *tensors)
    truth = reference.backward(*exact)
    plain = _gradients(PLAIN, *tensors)
    magnitude = reference.backward(*map(np.abs, exact))
    for one in zip(_exact_dtype(ours), truth, _exact_dtype(plain), magnitude):
        assert_close(*one)
    assert all(tensor.device.endswith(device) for tensor in ours)


def _exact_dtype(tensors):
    return [tensor.numpy() for tensor in tensors]


@every_dtype
@pytest.mark.parametrize(
    "name", ["ones", "primes", "mnist_layer", "empty_batch", "empty_reduction"]
)
def test_second_derivatives(name, dtype, device):
    (case,) = (case for case in SUITE.cases if case.name == name)
    sources = _draw(case, dtype)
    targets = [tf.cast(tf.random.uniform(s.shape, -1, 1), dtype) for s in sources[1:]]
    exact = _exact([*sources, *targets])
    ours = _second(tf_capsops.capsule_prediction, sources, targets)
    truth = reference.second(*exact)
    plain = _second(PLAIN, sources, targets)
    magnitude = reference.second(*map(np.abs, exact))
    for one in zip(_exact_dtype(ours), truth, _exact_dtype(plain), magnitude):
        assert_close(*one)


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16], ids=lambda d: d.name)
@pytest.mark.parametrize("name", ["long_rows", "columns_513", "batch_129"])
def test_half_types_accumulate_in_float32(name, dtype, device):
    (case,) = (case for case in SUITE.cases if case.name == name)
    grad, inputs, weights = _draw(case, dtype, positive=True)
    exact = _exact([grad, inputs, weights])
    output = tf_capsops.capsule_prediction(inputs, weights)
    assert_rounded(output.numpy(), reference.forward(*exact[1:]))
    ours = _gradients(tf_capsops.capsule_prediction, grad, inputs, weights)
    for gradient, truth in zip(_exact_dtype(ours), reference.backward(*exact)):
        assert_rounded(gradient, truth)


@every_dtype
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["primes", "empty_batch", "empty_reduction"])
def test_unknown_shapes_change_nothing(name, way, dtype, device):
    """Graphs traced without any shape give the very numbers of eager execution."""
    (case,) = (case for case in SUITE.cases if case.name == name)
    grad, inputs, weights = _draw(case, dtype)

    @tf.function(input_signature=[tf.TensorSpec(None, dtype)] * 3, jit_compile=False)
    def traced(grad, inputs, weights):
        return _gradients(tf_capsops.capsule_prediction, grad, inputs, weights)

    compute = WAYS[way](tf_capsops.capsule_prediction)
    for eager, graph in zip(
        _gradients(compute, grad, inputs, weights), traced(grad, inputs, weights)
    ):
        np.testing.assert_array_equal(eager.numpy(), graph.numpy())


@every_dtype
def test_empty_batch(dtype, device):
    grad, inputs = tf.zeros((0, 3, 2, 4), dtype), tf.zeros((0, 3, 8), dtype)
    weights = tf.ones((3, 2, 4, 8), dtype)
    assert tf_capsops.capsule_prediction(inputs, weights).shape == (0, 3, 2, 4)
    by_input, by_weights = _gradients(
        tf_capsops.capsule_prediction, grad, inputs, weights
    )
    assert by_input.shape == (0, 3, 8)
    np.testing.assert_array_equal(by_weights.numpy(), np.zeros((3, 2, 4, 8)))


@every_dtype
def test_empty_reductions_give_zeros(dtype, device):
    output = tf_capsops.capsule_prediction(
        tf.ones((2, 3, 0), dtype), tf.ones((3, 4, 5, 0), dtype)
    )
    np.testing.assert_array_equal(output.numpy(), np.zeros((2, 3, 4, 5)))
    by_input, _ = _gradients(
        tf_capsops.capsule_prediction,
        tf.ones((2, 3, 0, 5), dtype),
        tf.ones((2, 3, 6), dtype),
        tf.ones((3, 0, 5, 6), dtype),
    )
    np.testing.assert_array_equal(by_input.numpy(), np.zeros((2, 3, 6)))


def test_accepts_what_tensorflow_converts(device):
    """Arrays, nested lists and variables, as any function of TensorFlow does."""
    inputs = np.float32([[[1, 2]]])
    weights = [[[[3.0, 4.0], [5.0, 6.0]]]]
    for convert in (tf.Variable, tf.constant, np.float32, np.ndarray.tolist):
        output = tf_capsops.capsule_prediction(convert(inputs), weights)
        np.testing.assert_array_equal(output.numpy(), [[[[11, 17]]]])


class PaperTest(unittest.TestCase):
    """The forward test of paper 002, on its grid of sizes."""

    @parameterized.expand(
        itertools.product(
            [f"{d.device_type}:0" for d in tf.config.list_logical_devices()],
            SUITE.select(cases.PAPER),
        )
    )
    def test_forward(self, device, case):
        with tf.device(device):
            _, inputs, weights = _draw(case, tf.float32, positive=True)
            output = tf_capsops.capsule_prediction(inputs, weights)
            plain = PLAIN(inputs, weights)
        truth = np.zeros(output.shape)
        exact_inputs, exact_weights = _exact([inputs, weights])
        for b, i, j, d in np.ndindex(truth.shape):
            truth[b, i, j, d] = exact_inputs[b, i] @ exact_weights[i, j, d]
        assert_close(output.numpy(), truth, plain.numpy())
