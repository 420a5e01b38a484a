# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""HighOrderConv's values and gradients, against the float64 reference."""

import frames
import numpy as np
import pytest
import tensorflow as tf
from descriptions import every_dtype, half_types
from descriptions.high_order_conv import OP

import tf_capsops


@every_dtype
@OP.every_case
def test_values_and_gradients(case, dtype, device):
    frames.values_and_gradients(OP, case, dtype, device)


def test_one_filter_everywhere_is_a_convolution(device):
    """With the same filter at every pixel: TensorFlow's own, channel by channel."""
    rng = np.random.default_rng(0)
    image, kernel = (tf.constant(rng.normal(size=s)) for s in ((2, 7, 6, 3), (5, 3)))
    filters = tf.broadcast_to(tf.reshape(kernel, [15]), (2, 7, 6, 15))
    output = tf_capsops.high_order_conv2d(image, filters, (5, 3))
    depthwise = tf.tile(kernel[..., tf.newaxis, tf.newaxis], (1, 1, 3, 1))
    same = tf.nn.depthwise_conv2d(image, depthwise, (1, 1, 1, 1), "SAME")
    np.testing.assert_allclose(output, same, rtol=0, atol=1e-12)


@every_dtype
@pytest.mark.parametrize(
    "name",
    [
        *("ones", "primes", "primes_NCHW", "channels_12_groups_3", "kernel_9_3"),
        *("channels_12_groups_3_NCHW", "dilations_1_3", "image_3_4_kernel_9_9"),
        *OP.empty,
    ],
)
def test_second_derivatives(name, dtype, device):
    frames.second_derivatives_of_a_bilinear_op(OP, name, dtype)


@pytest.mark.parametrize("rival", OP.suite.rivals)
@pytest.mark.parametrize(
    "name",
    [
        *("primes", "primes_NCHW", "channels_12_groups_3", "dilations_3_1"),
        *("channels_12_groups_3_NCHW", "image_3_4_kernel_9_9", "dilations_7_of_7"),
    ],
)
def test_rivals(name, rival, device):
    frames.rival(OP, name, rival)


def test_a_rival_refuses_to_fill_the_memory():
    image = tf.zeros((1, 1, 2**21, 1))
    filters = tf.zeros((1, 1, 2**21, 0))
    with pytest.raises(tf.errors.ResourceExhaustedError, match=r"would be 8\.6 GB"):
        OP.suite.rivals["patches"](image, filters, (1, 1025), 1, (1, 1), "NHWC")


@half_types
@pytest.mark.parametrize(
    "name",
    [
        *("long_sums_of_channels", "long_sums_of_taps", "channels_130_groups_2"),
        *("long_sums_of_channels_NCHW", "long_sums_of_taps_NCHW"),
    ],
)
def test_half_types_accumulate_in_float32(name, dtype, device):
    case = OP.case(name)
    frames.sums_are_rounded_once(OP, case, [*map(tf.abs, OP.draw(case, dtype))])


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
    output, _, grad_filters = OP.results(
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
    ["primes", "channels_12_groups_3_NCHW", "dilations_1_3", "kernel_9_3", *OP.empty],
)
def test_unknown_shapes_change_nothing(name, dtype, device):
    frames.unknown_shapes_change_nothing(OP, name, dtype)


@every_dtype
@pytest.mark.parametrize("name", OP.empty)
def test_empty_dimensions_give_zeros(name, dtype, device):
    frames.empty_dimensions_give_zeros(OP, name, dtype)


def test_accepts_what_tensorflow_converts(device):
    """Arrays, nested lists and variables, as any function of TensorFlow does."""
    inputs, filters = np.float32([[[[1], [2]]]]), [[[[7.0, 3.0, 4.0], [5.0, 6.0, 7.0]]]]
    for convert in (tf.Variable, tf.constant, np.float32, np.ndarray.tolist):
        output = tf_capsops.high_order_conv2d(convert(inputs), filters, [1, 3])
        np.testing.assert_array_equal(output, [[[[11], [17]]]])


def test_one_number_is_both(device):
    _, inputs, filters = OP.draw(OP.case("kernel_3_3"), tf.float32)
    one = tf_capsops.high_order_conv2d(inputs, filters, 3, dilations=2)
    both = tf_capsops.high_order_conv2d(inputs, filters, [3, 3], dilations=(2, 2))
    np.testing.assert_array_equal(one, both)


def test_samples_of_a_vectorized_map(device):
    """There is no rule of how to do it at once: TensorFlow loops."""
    case = OP.case("primes")
    _, *inputs = OP.draw(case, tf.float32)
    compute = case.bind(tf_capsops.high_order_conv2d)
    mapped = tf.vectorized_map(
        lambda pair: compute(*(tensor[tf.newaxis] for tensor in pair))[0],
        tuple(inputs),
        warn=False,
    )
    np.testing.assert_array_equal(mapped, compute(*inputs))
