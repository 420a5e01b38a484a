# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""CapsuleRouting's values and gradients, against the float64 reference."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from reference import capsule_routing as reference
from tolerances import assert_close, assert_rounded

import tf_capsops
from tf_capsops.bench import cases

SUITE = cases.suites()["CapsuleRouting"]
DTYPES = [tf.float32, tf.float64, tf.float16, tf.bfloat16]
EMPTY = [
    case.name for case in SUITE.select(cases.CORRECTNESS) if 0 in case.sizes.values()
]

every_case = pytest.mark.parametrize("case", SUITE.select(cases.CORRECTNESS), ids=str)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
half_types = pytest.mark.parametrize("dtype", DTYPES[2:], ids=lambda dtype: dtype.name)
iteration_counts = pytest.mark.parametrize("iterations", [1, 2, 3, 4, 5])


def _case(name):
    (case,) = (case for case in SUITE.cases if case.name == name)
    return case


def _draw(case, dtype):
    """Returns (grad, input, weights, logits) as tensors."""
    rng = np.random.default_rng(0)
    arrays = [rng.uniform(-1, 1, SUITE.output_shape(case)), *SUITE.draw(case, rng)]
    return [tf.cast(array, dtype) for array in arrays]


def _exact(tensors):
    return [tensor.numpy().astype(np.float64) for tensor in tensors]


def _arrays(tensors):
    return [tensor.numpy() for tensor in tensors]


def _gradients(compute, grad, *inputs):
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        output = compute(*inputs)
    return tape.gradient(output, inputs, grad)


def _plain(inputs, weights, logits, iterations, epsilon=reference.EPSILON):
    """Half types are computed in float32 and rounded once, as the op promises."""
    dtype = inputs.dtype
    operands = inputs, weights, logits
    if dtype.size < 4:
        operands = [tf.cast(operand, tf.float32) for operand in operands]
    return tf.cast(SUITE.rivals["einsum"](*operands, iterations, epsilon), dtype)


def _assert_output_close(output, plain, inputs, **attributes):
    """Output capsules are shorter than one, which is their magnitude."""
    truth = reference.forward(*_exact(inputs), **attributes)
    assert_close(output.numpy(), truth, plain.numpy(), np.ones_like(truth))


def _assert_gradients_close(ours, plain, tensors, factor=1, **attributes):
    exact = _exact(tensors)
    truth = reference.backward(*exact, **attributes)
    magnitude = reference.backward_magnitude(*exact, **attributes)
    magnitude = [factor * values for values in magnitude]
    for one in zip(_arrays(ours), truth, _arrays(plain), magnitude, strict=True):
        assert_close(*one)


@every_dtype
@every_case
def test_forward(case, dtype, device):
    _, *inputs = _draw(case, dtype)
    output = case.bind(tf_capsops.capsule_routing)(*inputs)
    assert output.device.endswith(device)
    _assert_output_close(output, case.bind(_plain)(*inputs), inputs, **case.attributes)


@every_dtype
@every_case
def test_gradients(case, dtype, device):
    tensors = _draw(case, dtype)
    ours = _gradients(case.bind(tf_capsops.capsule_routing), *tensors)
    plain = _gradients(case.bind(_plain), *tensors)
    _assert_gradients_close(ours, plain, tensors, **case.attributes)
    assert all(tensor.device.endswith(device) for tensor in ours)


@iteration_counts
@pytest.mark.parametrize("rival", SUITE.rivals)
@pytest.mark.parametrize("name", ["primes", "mnist_layer", "in_caps_37"])
def test_gradients_are_those_of_autodiff(name, rival, iterations, device):
    """Compares with plain formulations differentiated in float64."""
    tensors = _draw(_case(name), tf.float32)
    wide = [tf.cast(tensor, tf.float64) for tensor in tensors]
    compute = functools.partial(SUITE.rivals[rival], iterations=iterations)
    routing = functools.partial(tf_capsops.capsule_routing, iterations=iterations)
    ours, truth, plain = (
        _arrays(_gradients(function, *arguments))
        for function, arguments in (
            (routing, tensors),
            (compute, wide),
            (compute, tensors),
        )
    )
    magnitude = reference.backward_magnitude(*_exact(tensors), iterations)
    for one in zip(ours, truth, plain, magnitude, strict=True):
        assert_close(*one)


@every_dtype
@pytest.mark.parametrize("epsilon", [2.0, 2.0**-10])
def test_another_epsilon(epsilon, dtype, device):
    tensors = _draw(_case("primes"), dtype)
    attributes = {"iterations": 3, "epsilon": epsilon}
    ours = functools.partial(tf_capsops.capsule_routing, **attributes)
    plain = functools.partial(_plain, **attributes)
    inputs = tensors[1:]
    _assert_output_close(ours(*inputs), plain(*inputs), inputs, **attributes)
    gradients = _gradients(ours, *tensors), _gradients(plain, *tensors)
    _assert_gradients_close(*gradients, tensors, **attributes)
    coefficients = tf_capsops.routing_coefficients(*inputs, **attributes)
    truth = reference.coefficients(*_exact(inputs), **attributes)
    by_plain = _plain_coefficients(*inputs, **attributes)
    assert_close(coefficients.numpy(), truth, by_plain.numpy(), np.ones_like(truth))


def _rounded_to_tf32(tensor):
    """Rounds a float32 tensor to the 11 significant bits of TensorFloat-32."""
    bits = tensor.numpy().view(np.int32)
    return tf.constant(((bits + 0x1000) & ~0x1FFF).view(np.float32))


@pytest.mark.parametrize("allowed", [False, True])
@pytest.mark.parametrize("name", ["mnist_layer", "tiles_17_37_5_16_16", "batch_33"])
def test_tensor_float_32_follows_the_switch(name, allowed, device):
    """With TF32 allowed, the yardstick is plain TensorFlow of rounded numbers."""
    case = _case(name)
    tensors = _draw(case, tf.float32)
    numbers = [_rounded_to_tf32(t) for t in tensors] if allowed else tensors
    plain = case.bind(_plain)(*numbers[1:])
    plain_gradients = _gradients(case.bind(_plain), *numbers)
    tf.config.experimental.enable_tensor_float_32_execution(allowed)
    output = case.bind(tf_capsops.capsule_routing)(*tensors[1:])
    ours = _gradients(case.bind(tf_capsops.capsule_routing), *tensors)
    _assert_output_close(output, plain, tensors[1:], **case.attributes)
    _assert_gradients_close(ours, plain_gradients, tensors, **case.attributes)


@half_types
@iteration_counts
def test_half_types_accumulate_in_float32(iterations, dtype, device):
    case = _case("in_caps_257")
    inputs = [tf.abs(tensor) for tensor in _draw(case, dtype)[1:]]
    output = tf_capsops.capsule_routing(*inputs, iterations=iterations)
    truth = reference.forward(*_exact(inputs), iterations)
    assert_rounded(output.numpy(), truth)


@half_types
def test_half_types_do_not_overflow_inside(dtype, device):
    """Predictions of 460800 are past float16's largest number."""
    inputs = tf.fill((2, 3, 8), tf.constant(240, dtype))
    weights = tf.fill((3, 2, 1, 8), tf.constant(240, dtype))
    output = tf_capsops.capsule_routing(inputs, weights)
    np.testing.assert_array_equal(output.numpy(), np.ones((2, 2, 1)))


@every_dtype
@pytest.mark.parametrize("scale", [30, 1000])
def test_large_logits(scale, dtype, device):
    """Their exponentials would overflow; what rounds them is a factor of the result."""
    case = _case("primes")
    grad, inputs, weights, logits = _draw(case, dtype)
    tensors = grad, inputs, weights, logits * tf.cast(scale, dtype)
    output = tf_capsops.capsule_routing(*tensors[1:])
    plain = case.bind(_plain)
    _assert_output_close(output, plain(*tensors[1:]), tensors[1:], **case.attributes)
    ours = _gradients(tf_capsops.capsule_routing, *tensors)
    plain = _gradients(plain, *tensors)
    _assert_gradients_close(ours, plain, tensors, **case.attributes, factor=scale)


@every_dtype
def test_no_logits_are_zeros(dtype, device):
    _, inputs, weights, logits = _draw(_case("primes"), dtype)
    for function in (tf_capsops.capsule_routing, tf_capsops.routing_coefficients):
        zeros = function(inputs, weights, tf.zeros_like(logits))
        np.testing.assert_array_equal(function(inputs, weights), zeros)
        assert np.any(function(inputs, weights, logits).numpy() != zeros.numpy())


@every_dtype
@iteration_counts
def test_zero_input(iterations, dtype, device):
    """Output and gradients are zero, where the length has no derivative."""
    grad, inputs, weights, logits = _draw(_case("primes"), dtype)

    def compute(*inputs):
        return tf_capsops.capsule_routing(*inputs, iterations=iterations)

    zeros = tf.zeros_like(inputs)
    output = compute(zeros, weights, logits)
    np.testing.assert_array_equal(output.numpy(), np.zeros(output.shape))
    for gradient in _gradients(compute, grad, zeros, weights, logits):
        np.testing.assert_array_equal(gradient.numpy(), np.zeros(gradient.shape))


@every_dtype
@pytest.mark.parametrize("name", EMPTY)
def test_empty_dimensions_give_zeros(name, dtype, device):
    case = _case(name)
    grad, *inputs = _draw(case, dtype)
    output = tf_capsops.capsule_routing(*inputs)
    gradients = _gradients(tf_capsops.capsule_routing, grad, *inputs)
    shapes = [SUITE.output_shape(case), *(tensor.shape for tensor in inputs)]
    for result, shape in zip([output, *gradients], shapes, strict=True):
        np.testing.assert_array_equal(result.numpy(), np.zeros(shape))


@every_dtype
@pytest.mark.parametrize("name", ["primes", "iterations_1", *EMPTY])
def test_unknown_shapes_change_nothing(name, dtype, device):
    """Graphs traced without any shape give the very numbers of eager execution."""
    case = _case(name)
    tensors = _draw(case, dtype)

    def compute(grad, *inputs):
        routing = case.bind(tf_capsops.capsule_routing)
        look = case.bind(tf_capsops.routing_coefficients)
        results = [routing(*inputs), look(*inputs)]
        results += [routing(*inputs[:2]), look(*inputs[:2])]
        return [*results, *_gradients(routing, grad, *inputs)]

    signature = [tf.TensorSpec(None, dtype)] * len(tensors)
    traced = tf.function(compute, signature, autograph=False)
    for eager, graph in zip(compute(*tensors), traced(*tensors), strict=True):
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
    _, *inputs = _draw(_case(name), dtype)
    ours = tf_capsops.routing_coefficients(*inputs, iterations=iterations)
    assert ours.device.endswith(device)
    truth = reference.coefficients(*_exact(inputs), iterations)
    plain = _plain_coefficients(*inputs, iterations)
    assert_close(ours.numpy(), truth, plain.numpy(), np.ones_like(truth))
    totals = [_exact([shares])[0].sum(axis=-1) for shares in (ours, plain)]
    total, plain = (total.astype(dtype.as_numpy_dtype) for total in totals)
    assert_close(total, np.ones(total.shape), plain)


def _plain_coefficients(inputs, weights, logits, iterations, **attributes):
    predictions = tf.einsum("bik,ijdk->bijd", inputs, weights)
    total = tf.zeros_like(predictions[:, 0])
    for done in range(1, iterations):
        total += _plain(inputs, weights, logits, done, **attributes)
    agreement = tf.einsum("bijd,bjd->bij", predictions, total)
    return tf.nn.softmax(logits + agreement)


def test_coefficients_of_one_iteration_are_those_of_the_logits(device):
    _, inputs, weights, logits = _draw(_case("primes"), tf.float32)
    ours = tf_capsops.routing_coefficients(inputs, weights, logits, iterations=1)
    shares = tf.nn.softmax(logits)
    truth = np.broadcast_to(tf.nn.softmax(tf.cast(logits, tf.float64)), ours.shape)
    assert_close(ours.numpy(), truth, np.broadcast_to(shares, ours.shape))
