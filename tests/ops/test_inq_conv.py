# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""InqConv's values and gradient, against the float64 reference."""

import functools

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from reference import inq_conv as reference
from tolerances import assert_close, assert_rounded

import tf_capsops
from tf_capsops.bench import cases, window

SUITE = cases.suites()["InqConv"]
DTYPES = [tf.float32, tf.float64, tf.float16, tf.bfloat16]
EMPTY = [
    case.name for case in SUITE.select(cases.CORRECTNESS) if 0 in case.sizes.values()
]

every_case = pytest.mark.parametrize("case", SUITE.select(cases.CORRECTNESS), ids=str)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
half_types = pytest.mark.parametrize("dtype", DTYPES[2:], ids=lambda dtype: dtype.name)


def _case(name):
    (case,) = (case for case in SUITE.cases if case.name == name)
    return case


def _draw(case, dtype):
    """Returns (grad, input, codes, top exponent) as tensors."""
    rng = np.random.default_rng(0)
    grad = tf.cast(rng.uniform(-1, 1, SUITE.output_shape(case)), dtype)
    inputs, *others = SUITE.draw(case, rng)
    return [grad, tf.cast(inputs, dtype), *map(tf.constant, others)]


def _results(compute, grad, inputs, *others):
    """Returns output and gradient of the input."""
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        output = compute(inputs, *others)
    return output, tape.gradient(output, inputs, grad)


def _plain(inputs, codes, top_exponent, bits, **moved):
    """Half types are computed in float32 and rounded once, as the op promises."""
    dtype = inputs.dtype
    if dtype.size < 4:
        inputs = tf.cast(inputs, tf.float32)
    inputs, weights = SUITE.prepare(inputs, codes, top_exponent, bits)
    patches = window.patches(inputs, weights.shape[:2], **moved)
    flat = tf.reshape(weights, (patches.shape[3], weights.shape[3]))
    return tf.cast(tf.einsum("nyxc,co->nyxo", patches, flat), dtype)


def _truth(case, grad, inputs, codes, top_exponent):
    """Returns output and gradient of the input, and their magnitudes."""
    grad, inputs = (t.numpy().astype(np.float64) for t in (grad, inputs))
    codes, top_exponent = codes.numpy(), int(top_exponent)
    size = reference.absolute(codes)
    by_input = inputs.shape, size, top_exponent, np.abs(grad)
    forward, backprop_input = map(
        case.bind, (reference.forward, reference.backprop_input)
    )
    return (
        forward(inputs, codes, top_exponent),
        backprop_input(inputs.shape, codes, top_exponent, grad),
    ), (forward(np.abs(inputs), size, top_exponent), backprop_input(*by_input))


def _assert_close_to_reference(case, tensors, yardstick=None):
    """Also the gradient; the yardstick is plain TensorFlow of other numbers."""
    ours = _results(case.bind(tf_capsops.inq_conv2d), *tensors)
    plain = _results(case.bind(_plain), *(yardstick or tensors))
    for one in zip(ours, *_truth(case, *tensors), plain, strict=True):
        result, truth, magnitude, measure = one
        assert_close(result.numpy(), truth, measure.numpy(), magnitude)
    return ours


@every_dtype
@every_case
def test_values_and_gradient(case, dtype, device):
    for result in _assert_close_to_reference(case, _draw(case, dtype)):
        assert result.device.endswith(device)


def test_example_of_every_code(device):
    """Two numbers times each weight of a book of three bits."""
    codes = tf.reshape(tf.range(5), (1, 1, 1, 5))
    image = tf.reshape([1.0, 3.0], (1, 2, 1, 1))
    output = tf_capsops.inq_conv2d(image, tf.cast(codes, tf.uint8), 2, bits=3)
    np.testing.assert_array_equal(
        output[0, :, 0], [[0, 4, -4, 2, -2], [0, 12, -12, 6, -6]]
    )


@every_dtype
@pytest.mark.parametrize("bits", range(2, 9))
def test_every_code(bits, dtype, device):
    """Weights are exact, also those that are too small for a type of 16 bits."""
    codes = np.arange(2 ** (bits - 1) + 1, dtype=np.uint8).reshape(1, 1, 1, -1)
    inputs = tf.fill((1, 1, 1, 1), tf.constant(2**15 + 2**8, dtype))
    output = tf_capsops.inq_conv2d(inputs, codes, 0, bits=bits)
    truth = reference.forward(inputs.numpy().astype(np.float64), codes, 0, bits)
    np.testing.assert_array_equal(output, truth.astype(dtype.as_numpy_dtype))


@every_dtype
@pytest.mark.parametrize(
    "top_exponent",
    [*(-10, 10, -100, 100, 127, 200, -160, 1100, -1100), 2**31 - 1, -(2**31)],
)
@pytest.mark.parametrize(
    "name", ["primes", "bits_8", "strides_2_2_SAME", "channels_33"]
)
def test_top_exponents(name, top_exponent, dtype, device):
    """Results are those of top exponent 0 times a power of two, and then rounded."""
    case = _case(name)
    tensors = [*_draw(case, dtype)[:3], tf.constant(0)]
    ours = case.bind(tf_capsops.inq_conv2d)
    results = _results(ours, *tensors[:3], tf.constant(top_exponent))
    plain = _results(case.bind(_plain), *tensors)
    for one in zip(results, *_truth(case, *tensors), plain, strict=True):
        result, truth, magnitude, measure = (np.asarray(array) for array in one)
        _assert_scaled(result, truth, measure, magnitude, top_exponent)


def _assert_scaled(result, truth, plain, magnitude, exponent):
    """Asserts that a result is truth * 2^exponent, in the type of the result.

    Nothing is said of numbers near the largest and of those that are subnormal.
    """
    limits = ml_dtypes.finfo(result.dtype)
    exact = result.astype(np.float64)
    power = np.frexp(truth)[1] + np.int64(exponent)
    large = power > limits.maxexp + 1
    small = (power < limits.minexp - limits.nmant - 1) | (truth == 0)
    inside = (power > limits.minexp + 1) & (power < limits.maxexp) & ~small
    assert (large | small | inside).any()
    np.testing.assert_array_equal(exact[large], np.copysign(np.inf, truth[large]))
    np.testing.assert_array_equal(exact[small], 0)
    back = np.ldexp(exact[inside], -np.clip(exponent, -2200, 2200)).astype(result.dtype)
    assert_close(back, truth[inside], plain[inside], magnitude[inside])


@half_types
@pytest.mark.parametrize("name", ["long_sums", "long_sums_of_grad", "channels_33"])
def test_half_types_accumulate_in_float32(name, dtype, device):
    case = _case(name)
    grad, inputs, codes, top_exponent = _draw(case, dtype)
    codes = tf.constant(reference.absolute(codes.numpy()))
    tensors = [tf.abs(grad), tf.abs(inputs), codes, top_exponent]
    results = _results(case.bind(tf_capsops.inq_conv2d), *tensors)
    truths, _ = _truth(case, *tensors)
    for result, truth in zip(results, truths, strict=True):
        assert_rounded(result.numpy(), truth)


@half_types
def test_half_types_do_not_overflow_inside(dtype, device):
    """Each product of 76800 is past float16's largest number; their sum is not."""
    inputs = tf.fill((1, 2, 2, 2), tf.constant(300, dtype))
    codes = tf.constant([[1], [2]], tf.uint8) * tf.ones((2, 2, 2, 3), tf.uint8)
    output = tf_capsops.inq_conv2d(inputs, codes, 8, padding="VALID")
    np.testing.assert_array_equal(output.numpy(), np.zeros((1, 1, 1, 3)))


def _rounded_to_tf32(tensor):
    """Rounds a float32 tensor to the 11 significant bits of TensorFloat-32."""
    bits = tensor.numpy().view(np.int32)
    return tf.constant(((bits + 0x1000) & ~0x1FFF).view(np.float32))


@pytest.mark.parametrize("allowed", [False, True])
@pytest.mark.parametrize(
    "name",
    ["primes", "channels_33", "bits_8", "bits_4_by_16", "strides_2_2_SAME_large"],
)
def test_tensor_float_32_follows_the_switch(name, allowed, device):
    """With TF32 allowed, the yardstick is plain TensorFlow of rounded numbers."""
    case = _case(name)
    tensors = _draw(case, tf.float32)
    yardstick = [*map(_rounded_to_tf32, tensors[:2]), *tensors[2:]]
    tf.config.experimental.enable_tensor_float_32_execution(allowed)
    _assert_close_to_reference(case, tensors, yardstick if allowed else None)


@pytest.mark.parametrize("allowed", [False, True])
@pytest.mark.parametrize("power", [-90, 100])
def test_large_and_small_numbers(power, allowed, device):
    """Splitting an activation must not lose what is far from 1."""
    case = _case("channels_33")
    grad, inputs, *others = _draw(case, tf.float32)
    tf.config.experimental.enable_tensor_float_32_execution(allowed)
    compute = case.bind(tf_capsops.inq_conv2d)
    plain = _results(compute, grad, inputs, *others)
    scaled = _results(compute, grad * 2.0**power, inputs * 2.0**power, *others)
    for one, other in zip(plain, scaled, strict=True):
        np.testing.assert_array_equal(one * 2.0**power, other)


@every_dtype
@pytest.mark.parametrize("channels", [1, 16, 64])
def test_the_largest_numbers(channels, dtype, device):
    """A part of an activation must not be rounded to infinity."""
    largest = float(ml_dtypes.finfo(dtype.as_numpy_dtype).max)
    inputs = tf.one_hot([[[channels - 1, 0]]], channels, dtype=dtype)[0]
    inputs *= tf.constant([largest, -largest], dtype)[:, tf.newaxis]
    inputs = tf.reshape(inputs, (1, 1, 2, channels))
    codes = tf.ones((1, 1, channels, channels), tf.uint8)
    compute = functools.partial(tf_capsops.inq_conv2d, bits=2)
    for result in _results(compute, inputs, inputs, codes, tf.constant(-1)):
        expected = np.array([[[[largest / 2], [-largest / 2]]]])
        expected = np.broadcast_to(expected, result.shape)
        exact = expected.astype(result.numpy().dtype)
        assert_close(result.numpy(), expected, exact)


@every_dtype
@pytest.mark.parametrize(
    "name", ["primes", "strides_3_1_SAME_large", "dilations_1_3_by_2_SAME", *EMPTY]
)
def test_unknown_shapes_change_nothing(name, dtype, device):
    """Graphs traced without any shape give the very numbers of eager execution."""
    case = _case(name)
    tensors = _draw(case, dtype)

    def compute(*tensors):
        return _results(case.bind(tf_capsops.inq_conv2d), *tensors)

    signature = [tf.TensorSpec(None, tensor.dtype) for tensor in tensors]
    traced = tf.function(compute, signature, autograph=False)
    for eager, graph in zip(compute(*tensors), traced(*tensors), strict=True):
        np.testing.assert_array_equal(eager.numpy(), graph.numpy())


@every_dtype
@pytest.mark.parametrize("name", EMPTY)
def test_empty_dimensions_give_zeros(name, dtype, device):
    case = _case(name)
    tensors = _draw(case, dtype)
    results = _results(case.bind(tf_capsops.inq_conv2d), *tensors)
    for result, like in zip(results, tensors, strict=False):
        np.testing.assert_array_equal(result.numpy(), np.zeros(like.shape))


def test_accepts_what_tensorflow_converts(device):
    """Arrays, nested lists and variables, as any function of TensorFlow does."""
    inputs, codes = np.float32([[[[1, 3]]]]), [[[[1], [4]]]]
    for convert in (tf.Variable, tf.constant, np.float32, np.ndarray.tolist):
        for top in (1, np.int64(1), tf.constant(1), tf.Variable(1)):
            output = tf_capsops.inq_conv2d(convert(inputs), codes, top)
            np.testing.assert_array_equal(output, [[[[-1]]]])


def test_one_number_is_both(device):
    _, *operands = _draw(_case("primes"), tf.float32)
    for padding in ("VALID", "SAME"):
        one = tf_capsops.inq_conv2d(*operands, 5, 2, padding.lower(), 3)
        both = tf_capsops.inq_conv2d(
            *operands, strides=[2, 2], padding=padding, dilations=(3, 3)
        )
        np.testing.assert_array_equal(one, both)
