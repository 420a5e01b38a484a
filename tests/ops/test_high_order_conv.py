# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""HighOrderConv's values: as a convolution, overflow, what it takes."""

import numpy as np
import pytest
import tensorflow as tf
from descriptions import half_types
from descriptions.high_order_conv import OP
from frames import call

import tf_capsops


def test_one_filter_everywhere_is_a_convolution(device):
    """With the same filter at every pixel: TensorFlow's own, channel by channel."""
    rng = np.random.default_rng(0)
    image, kernel = (tf.constant(rng.normal(size=s)) for s in ((2, 7, 6, 3), (5, 3)))
    filters = tf.broadcast_to(tf.reshape(kernel, [15]), (2, 7, 6, 15))
    output = call(tf_capsops.high_order_conv2d, image, filters, (5, 3))
    depthwise = tf.tile(kernel[..., tf.newaxis, tf.newaxis], (1, 1, 3, 1))
    same = tf.nn.depthwise_conv2d(image, depthwise, (1, 1, 1, 1), "SAME")
    np.testing.assert_allclose(output, same, rtol=0, atol=1e-12)


def test_a_rival_refuses_to_fill_the_memory():
    image = tf.zeros((1, 1, 2**21, 1))
    filters = tf.zeros((1, 1, 2**21, 0))
    with pytest.raises(tf.errors.ResourceExhaustedError, match=r"would be 8\.6 GB"):
        OP.suite.rivals["patches"](image, filters, (1, 1025), 1, (1, 1), "NHWC")


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
    output, _, grad_filters = call(
        OP.results,
        lambda *given: tf_capsops.high_order_conv2d(*given, (1, 3), 1, 1, data_format),
        tensors[0] * tf.reshape(signs, shape),
        *(tensors[1], filters),
    )
    inside = np.s_[:, :, :-1] if data_format == "NHWC" else np.s_[..., :-1]
    assert not output.numpy()[inside].any()
    assert not grad_filters.numpy().any()


def test_accepts_what_tensorflow_converts(device):
    """Arrays, nested lists and variables, as any function of TensorFlow does."""
    inputs, filters = np.float32([[[[1], [2]]]]), [[[[7.0, 3.0, 4.0], [5.0, 6.0, 7.0]]]]
    for convert in (tf.Variable, tf.constant, np.float32, np.ndarray.tolist):
        output = tf_capsops.high_order_conv2d(convert(inputs), filters, [1, 3])
        np.testing.assert_array_equal(output, [[[[11], [17]]]])


def test_one_number_is_both(device):
    _, inputs, filters = OP.draw(OP.case("kernel_3_3"), tf.float32)
    one = call(tf_capsops.high_order_conv2d, inputs, filters, 3, dilations=2)
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
