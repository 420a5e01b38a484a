# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""CapsuleConv's values and gradients, against the float64 reference."""

import numpy as np
import pytest
import tensorflow as tf
from reference import capsule_conv as reference
from tolerances import assert_close, assert_rounded

import tf_capsops
from tf_capsops.bench import cases

SUITE = cases.suites()["CapsuleConv"]
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
    """Returns (grad, input, weights) as tensors."""
    rng = np.random.default_rng(0)
    arrays = [rng.uniform(-1, 1, SUITE.output_shape(case)), *SUITE.draw(case, rng)]
    return [tf.cast(array, dtype) for array in arrays]


def _exact(tensors):
    return [tensor.numpy().astype(np.float64) for tensor in tensors]


def _gradients(compute, grad, *inputs):
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        output = compute(*inputs)
    return tape.gradient(output, inputs, grad)


def _plain(inputs, weights, **attributes):
    """Half types are computed in float32 and rounded once, as the op promises."""
    dtype = inputs.dtype
    if dtype.size < 4:
        inputs, weights = tf.cast(inputs, tf.float32), tf.cast(weights, tf.float32)
    return tf.cast(SUITE.rivals["patches"](inputs, weights, **attributes), dtype)


def _reference(case, grad, inputs, weights):
    """Returns output, gradient of the input and gradient of the weights."""
    attributes = case.attributes
    return (
        reference.forward(inputs, weights, **attributes),
        reference.backprop_input(inputs.shape, weights, grad, **attributes),
        reference.backprop_weights(inputs, weights.shape, grad, **attributes),
    )


def _assert_all_close(ours, plain, truth, magnitude):
    for one in zip(ours, truth, plain, magnitude, strict=True):
        ours, truth, plain, magnitude = one
        assert_close(ours.numpy(), truth, plain.numpy(), magnitude)


def _assert_close_to_reference(case, tensors, yardstick=None):
    """Also to that of gradients; the yardstick is plain TensorFlow of other numbers."""
    ours, plain = (
        (case.bind(function)(*given[1:]), *_gradients(case.bind(function), *given))
        for function, given in (
            (tf_capsops.capsule_conv2d, tensors),
            (_plain, yardstick or tensors),
        )
    )
    exact = _exact(tensors)
    magnitude = _reference(case, *map(np.abs, exact))
    _assert_all_close(ours, plain, _reference(case, *exact), magnitude)
    return ours


@every_dtype
@every_case
def test_values_and_gradients(case, dtype, device):
    for result in _assert_close_to_reference(case, _draw(case, dtype)):
        assert result.device.endswith(device)


def test_example_of_all_ones(device):
    """The figure of paper 001: every number of the output is 48."""
    image, kernel = (
        tf.ones(array.shape) for array in _draw(_case("all_ones_48"), tf.float32)[1:]
    )
    output = tf_capsops.capsule_conv2d(image, kernel)
    np.testing.assert_array_equal(output, np.full((1, 2, 2, 1, 3, 3, 3), 48))


def _second(compute, sources, targets):
    """Differentiates the gradients that `compute` has at sources, by the sources."""
    with tf.GradientTape() as tape:
        tape.watch(sources)
        gradients = _gradients(compute, *sources)
    return tape.gradient(gradients, sources, targets)


def _second_reference(case, grad, inputs, weights, by_input, by_weights):
    """The gradient of the input is linear in grad and weights, and so on."""
    output, _, in_weights = _reference(case, grad, by_input, weights)
    also, in_input, _ = _reference(case, grad, inputs, by_weights)
    return output + also, in_input, in_weights


@every_dtype
@pytest.mark.parametrize(
    "name",
    [
        *("ones", "primes", "strides_2_2_SAME", "dilations_3_2_by_2_VALID"),
        *("pose_2_4_3_moved", "pose_3_3_3_3_moved", "small_image_2_1", *EMPTY),
    ],
)
def test_second_derivatives(name, dtype, device):
    case = _case(name)
    sources, targets = _draw(case, dtype), _draw(case, dtype)[1:]
    targets = [tensor[::-1] for tensor in targets]
    ours = _second(case.bind(tf_capsops.capsule_conv2d), sources, targets)
    plain = _second(case.bind(_plain), sources, targets)
    exact = _exact([*sources, *targets])
    magnitude = _second_reference(case, *map(np.abs, exact))
    _assert_all_close(ours, plain, _second_reference(case, *exact), magnitude)


@pytest.mark.parametrize("rival", SUITE.rivals)
@pytest.mark.parametrize(
    "name", ["primes", "strides_3_1_SAME_large", "pose_5_7_2_moved", "pose_5_1_8_3"]
)
def test_rivals(name, rival, device):
    """The rivals, and the yardstick of precision, compute the same."""
    case = _case(name)
    tensors = _draw(case, tf.float64)
    compute = case.bind(SUITE.rivals[rival])
    results = compute(*tensors[1:]), *_gradients(compute, *tensors)
    for result, truth in zip(results, _reference(case, *_exact(tensors)), strict=True):
        np.testing.assert_allclose(result, truth, rtol=0, atol=1e-12)


@half_types
@pytest.mark.parametrize(
    "name", ["long_sums", "long_sums_of_grad", "long_sums_of_pixels", "channels_33"]
)
def test_half_types_accumulate_in_float32(name, dtype, device):
    case = _case(name)
    tensors = [tf.abs(tensor) for tensor in _draw(case, dtype)]
    compute = case.bind(tf_capsops.capsule_conv2d)
    results = compute(*tensors[1:]), *_gradients(compute, *tensors)
    for result, truth in zip(results, _reference(case, *_exact(tensors)), strict=True):
        assert_rounded(result.numpy(), truth)


@half_types
def test_half_types_do_not_overflow_inside(dtype, device):
    """Each product of 90000 is past float16's largest number; their sum is not."""
    inputs = tf.fill((1, 2, 2, 2, 4, 4), tf.constant(300, dtype))
    signs = tf.reshape(tf.constant([1, -1], dtype), (1, 1, 2, 1, 1, 1))
    weights = signs * tf.fill((2, 2, 2, 3, 4, 4), tf.constant(300, dtype))
    output = tf_capsops.capsule_conv2d(inputs, weights)
    np.testing.assert_array_equal(output.numpy(), np.zeros((1, 1, 1, 3, 4, 4)))


def _rounded_to_tf32(tensor):
    """Rounds a float32 tensor to the 11 significant bits of TensorFloat-32."""
    bits = tensor.numpy().view(np.int32)
    return tf.constant(((bits + 0x1000) & ~0x1FFF).view(np.float32))


@pytest.mark.parametrize("allowed", [False, True])
@pytest.mark.parametrize(
    "name", ["primes", "channels_33", "pose_8_8_8", "pose_5_7_2", "strides_2_2_SAME"]
)
def test_tensor_float_32_follows_the_switch(name, allowed, device):
    """With TF32 allowed, the yardstick is plain TensorFlow of rounded numbers."""
    case = _case(name)
    tensors = _draw(case, tf.float32)
    yardstick = [_rounded_to_tf32(t) for t in tensors] if allowed else tensors
    tf.config.experimental.enable_tensor_float_32_execution(allowed)
    _assert_close_to_reference(case, tensors, yardstick)


@every_dtype
@pytest.mark.parametrize(
    "name", ["primes", "pose_2_2_4_4_moved", "dilations_1_3_by_2_SAME", *EMPTY]
)
def test_unknown_shapes_change_nothing(name, dtype, device):
    """Graphs traced without any shape give the very numbers of eager execution."""
    case = _case(name)
    tensors = _draw(case, dtype)

    def compute(grad, *inputs):
        function = case.bind(tf_capsops.capsule_conv2d)
        return function(*inputs), *_gradients(function, grad, *inputs)

    signature = [tf.TensorSpec(None, dtype)] * len(tensors)
    traced = tf.function(compute, signature, autograph=False)
    for eager, graph in zip(compute(*tensors), traced(*tensors), strict=True):
        np.testing.assert_array_equal(eager.numpy(), graph.numpy())


@every_dtype
@pytest.mark.parametrize("name", EMPTY)
def test_empty_dimensions_give_zeros(name, dtype, device):
    case = _case(name)
    grad, *inputs = _draw(case, dtype)
    compute = case.bind(tf_capsops.capsule_conv2d)
    results = compute(*inputs), *_gradients(compute, grad, *inputs)
    shapes = [SUITE.output_shape(case), *(tensor.shape for tensor in inputs)]
    for result, shape in zip(results, shapes, strict=True):
        np.testing.assert_array_equal(result.numpy(), np.zeros(shape))


def test_accepts_what_tensorflow_converts(device):
    """Arrays, nested lists and variables, as any function of TensorFlow does."""
    inputs, weights = np.float32([[[[[[1, 2]]]]]]), [[[[[[3.0], [4.0]]]]]]
    for convert in (tf.Variable, tf.constant, np.float32, np.ndarray.tolist):
        output = tf_capsops.capsule_conv2d(convert(inputs), weights)
        np.testing.assert_array_equal(output, [[[[[[11]]]]]])


def test_one_number_is_both(device):
    _, *inputs = _draw(_case("primes"), tf.float32)
    for padding in ("VALID", "SAME"):
        one = tf_capsops.capsule_conv2d(*inputs, 2, padding.lower(), 3)
        both = tf_capsops.capsule_conv2d(
            *inputs, strides=[2, 2], padding=padding, dilations=(3, 3)
        )
        np.testing.assert_array_equal(one, both)
