# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""HighOrderConv's values and gradients, against the float64 reference."""

import numpy as np
import pytest
import tensorflow as tf
from reference import high_order_conv as reference
from tolerances import assert_close, assert_rounded

import tf_capsops
from tf_capsops.bench import cases

SUITE = cases.suites()["HighOrderConv"]
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
    """Returns (grad, input, filters) as tensors."""
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


def _all_results(compute, grad, *inputs):
    """Returns output, gradient of the input and gradient of the filters."""
    return compute(*inputs), *_gradients(compute, grad, *inputs)


def _plain(inputs, filters, **attributes):
    """Half types are computed in float32 and rounded once, as the op promises."""
    dtype = inputs.dtype
    if dtype.size < 4:
        inputs, filters = tf.cast(inputs, tf.float32), tf.cast(filters, tf.float32)
    return tf.cast(SUITE.rivals["slices"](inputs, filters, **attributes), dtype)


def _reference(case, grad, inputs, filters):
    """Returns output and gradients, in the order of axes that the case has."""
    attributes = dict(case.attributes)
    first = attributes.pop("data_format") == "NCHW"
    if first:
        grad, inputs, filters = (np.moveaxis(t, 1, 3) for t in (grad, inputs, filters))
    results = (
        reference.forward(inputs, filters, **attributes),
        *reference.backward(grad, inputs, filters, **attributes),
    )
    return [np.moveaxis(t, 3, 1) if first else t for t in results]


def _assert_all_close(ours, plain, truth, magnitude):
    for one in zip(ours, truth, plain, magnitude, strict=True):
        ours, truth, plain, magnitude = one
        assert_close(ours.numpy(), truth, plain.numpy(), magnitude)


@every_dtype
@every_case
def test_values_and_gradients(case, dtype, device):
    tensors = _draw(case, dtype)
    ours = _all_results(case.bind(tf_capsops.high_order_conv2d), *tensors)
    plain = _all_results(case.bind(_plain), *tensors)
    exact = _exact(tensors)
    magnitude = _reference(case, *map(np.abs, exact))
    _assert_all_close(ours, plain, _reference(case, *exact), magnitude)
    for result in ours:
        assert result.device.endswith(device)


def test_one_filter_everywhere_is_a_convolution(device):
    """With the same filter at every pixel: TensorFlow's own, channel by channel."""
    rng = np.random.default_rng(0)
    image, kernel = (tf.constant(rng.normal(size=s)) for s in ((2, 7, 6, 3), (5, 3)))
    filters = tf.broadcast_to(tf.reshape(kernel, [15]), (2, 7, 6, 15))
    output = tf_capsops.high_order_conv2d(image, filters, (5, 3))
    depthwise = tf.tile(kernel[..., tf.newaxis, tf.newaxis], (1, 1, 3, 1))
    same = tf.nn.depthwise_conv2d(image, depthwise, (1, 1, 1, 1), "SAME")
    np.testing.assert_allclose(output, same, rtol=0, atol=1e-12)


def _second(compute, sources, targets):
    """Differentiates the gradients that `compute` has at sources, by the sources."""
    with tf.GradientTape() as tape:
        tape.watch(sources)
        gradients = _gradients(compute, *sources)
    return tape.gradient(gradients, sources, targets)


def _second_reference(case, grad, inputs, filters, by_input, by_filters):
    """The gradient of the input is linear in grad and filters, and so on."""
    output, _, in_filters = _reference(case, grad, by_input, filters)
    also, in_input, _ = _reference(case, grad, inputs, by_filters)
    return output + also, in_input, in_filters


@every_dtype
@pytest.mark.parametrize(
    "name",
    [
        *("ones", "primes", "primes_NCHW", "channels_12_groups_3", "kernel_9_3"),
        *("channels_12_groups_3_NCHW", "dilations_1_3", "image_3_4_kernel_9_9"),
        *EMPTY,
    ],
)
def test_second_derivatives(name, dtype, device):
    case = _case(name)
    sources, targets = _draw(case, dtype), _draw(case, dtype)[1:]
    targets = [tensor[::-1] for tensor in targets]
    ours = _second(case.bind(tf_capsops.high_order_conv2d), sources, targets)
    plain = _second(case.bind(_plain), sources, targets)
    exact = _exact([*sources, *targets])
    magnitude = _second_reference(case, *map(np.abs, exact))
    _assert_all_close(ours, plain, _second_reference(case, *exact), magnitude)


@pytest.mark.parametrize("rival", SUITE.rivals)
@pytest.mark.parametrize(
    "name",
    [
        *("primes", "primes_NCHW", "channels_12_groups_3", "dilations_3_1"),
        *("channels_12_groups_3_NCHW", "image_3_4_kernel_9_9", "dilations_7_of_7"),
    ],
)
def test_rivals(name, rival, device):
    """The rivals, and the yardstick of precision, compute the same."""
    case = _case(name)
    tensors = _draw(case, tf.float64)
    results = _all_results(case.bind(SUITE.rivals[rival]), *tensors)
    for result, truth in zip(results, _reference(case, *_exact(tensors)), strict=True):
        np.testing.assert_allclose(result, truth, rtol=0, atol=1e-12)


def test_a_rival_refuses_to_fill_the_memory():
    image = tf.zeros((1, 1, 2**21, 1))
    filters = tf.zeros((1, 1, 2**21, 0))
    with pytest.raises(tf.errors.ResourceExhaustedError, match=r"would be 8\.6 GB"):
        SUITE.rivals["patches"](image, filters, (1, 1025), 1, (1, 1), "NHWC")


@half_types
@pytest.mark.parametrize(
    "name",
    [
        *("long_sums_of_channels", "long_sums_of_taps", "channels_130_groups_2"),
        *("long_sums_of_channels_NCHW", "long_sums_of_taps_NCHW"),
    ],
)
def test_half_types_accumulate_in_float32(name, dtype, device):
    case = _case(name)
    tensors = [tf.abs(tensor) for tensor in _draw(case, dtype)]
    results = _all_results(case.bind(tf_capsops.high_order_conv2d), *tensors)
    for result, truth in zip(results, _reference(case, *_exact(tensors)), strict=True):
        assert_rounded(result.numpy(), truth)


@half_types
@pytest.mark.parametrize("data_format", ["NHWC", "NCHW"])
def test_half_types_do_not_overflow_inside(data_format, dtype, device):
    """Each product of 90000 is past float16's largest number; their sums are not."""
    tensors = [tf.fill((2, 6, 6, 6), tf.constant(300, dtype))] * 2
    signs = tf.constant([-1, 1, -1, 1, -1, 1], dtype)
    shape = (1, 1, 1, 6) if data_format == "NHWC" else (1, 6, 1, 1)
    filters = tf.tile(tf.constant([[[[0, 300, -300]]]], dtype), (2, 6, 6, 1))
    if data_format == "NCHW":
        filters = tf.transpose(filters, (0, 3, 1, 2))
    output, _, grad_filters = _all_results(
        lambda *given: tf_capsops.high_order_conv2d(*given, (1, 3), 1, 1, data_format),
        tensors[0] * tf.reshape(signs, shape),
        *(tensors[1], filters),
    )
    inside = np.s_[:, :, :-1] if data_format == "NHWC" else np.s_[..., :-1]
    assert not output.numpy()[inside].any()
    assert not grad_filters.numpy().any()


@every_dtype
@pytest.mark.parametrize(
    "name",
    ["primes", "channels_12_groups_3_NCHW", "dilations_1_3", "kernel_9_3", *EMPTY],
)
def test_unknown_shapes_change_nothing(name, dtype, device):
    """Graphs traced without any shape give the very numbers of eager execution."""
    case = _case(name)
    tensors = _draw(case, dtype)

    def compute(*tensors):
        return _all_results(case.bind(tf_capsops.high_order_conv2d), *tensors)

    signature = [tf.TensorSpec(None, dtype)] * len(tensors)
    traced = tf.function(compute, signature, autograph=False)
    for eager, graph in zip(compute(*tensors), traced(*tensors), strict=True):
        np.testing.assert_array_equal(eager.numpy(), graph.numpy())


@every_dtype
@pytest.mark.parametrize("name", EMPTY)
def test_empty_dimensions_give_zeros(name, dtype, device):
    case = _case(name)
    tensors = _draw(case, dtype)
    results = _all_results(case.bind(tf_capsops.high_order_conv2d), *tensors)
    for result, like in zip(results, tensors, strict=True):
        np.testing.assert_array_equal(result.numpy(), np.zeros(like.shape))


def test_accepts_what_tensorflow_converts(device):
    """Arrays, nested lists and variables, as any function of TensorFlow does."""
    inputs, filters = np.float32([[[[1], [2]]]]), [[[[7.0, 3.0, 4.0], [5.0, 6.0, 7.0]]]]
    for convert in (tf.Variable, tf.constant, np.float32, np.ndarray.tolist):
        output = tf_capsops.high_order_conv2d(convert(inputs), filters, [1, 3])
        np.testing.assert_array_equal(output, [[[[11], [17]]]])


def test_one_number_is_both(device):
    _, inputs, filters = _draw(_case("kernel_3_3"), tf.float32)
    one = tf_capsops.high_order_conv2d(inputs, filters, 3, dilations=2)
    both = tf_capsops.high_order_conv2d(inputs, filters, [3, 3], dilations=(2, 2))
    np.testing.assert_array_equal(one, both)


def test_samples_of_a_vectorized_map(device):
    """There is no rule of how to do it at once: TensorFlow loops."""
    case = _case("primes")
    _, *inputs = _draw(case, tf.float32)
    compute = case.bind(tf_capsops.high_order_conv2d)
    mapped = tf.vectorized_map(
        lambda pair: compute(*(tensor[tf.newaxis] for tensor in pair))[0],
        tuple(inputs),
        warn=False,
    )
    np.testing.assert_array_equal(mapped, compute(*inputs))
