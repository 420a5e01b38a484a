# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""InqConv2D and InqDense where they decode their weights, as layers of numbers."""

import numpy as np
import pytest
import tensorflow as tf
import tolerances

import tf_capsops
from tf_capsops.layers import Conv2D, FakeQuant, InqConv2D, InqDense, conv2d
from tf_capsops.ops.capsule_conv import capsule_conv2d, capsule_conv2d_bias_relu
from tf_capsops.ops.fake_quant import range_of


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize(
    "kernel_size, activation, channels",
    [(1, None, 4), (1, "relu", 4), (3, "relu", 1)],
)
def test_some_are_computed_as_the_layer_of_numbers(
    kernel_size, activation, channels, per_channel
):
    tf.config.experimental.enable_tensor_float_32_execution(True)
    random = np.random.default_rng(8)
    shape = (2, 6, 7, channels)
    layer = InqConv2D(
        20, kernel_size, bits=4, per_channel=per_channel, activation=activation
    )
    plain = Conv2D(20, kernel_size, activation=activation)
    for each in (layer, plain):
        each.build(shape)
        each.bias.assign(random.normal(size=20))
    layer.set_kernel(random.normal(size=layer.codes.shape))
    plain.set_weights([layer.kernel, layer.bias])
    images = tf.constant(random.normal(size=shape), tf.float32)
    # The gradient reaches the input by the ops of the layer of numbers, too.
    results = []
    for each in (layer, plain):
        with tf.GradientTape() as tape:
            tape.watch(images)
            outputs = each(images)
        results.append((outputs, tape.gradient(outputs, images)))
    for found, expected in zip(*results, strict=True):
        np.testing.assert_array_equal(found, expected)
    # portable() computes in float32.
    tf.config.experimental.enable_tensor_float_32_execution(False)
    exact = layer(images)
    with tf_capsops.portable():
        np.testing.assert_allclose(layer(images), exact, rtol=1e-5, atol=1e-5)


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Layers choose as on a GPU of compute capability 9.0 with TF32, and run here."""
    hopper = {"compute_capability": (9, 0)}
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: [hopper])
    monkeypatch.setattr(tf.config.experimental, "get_device_details", lambda gpu: gpu)
    tf.config.experimental.enable_tensor_float_32_execution(True)


@pytest.mark.parametrize("rounded, per_channel", [(False, True), (True, False)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "activation, channels, window",
    [
        ("relu", 1, {"kernel_size": 3}),  # our kernel with bias and relu
        (None, 1, {"kernel_size": 3, "strides": 2, "dilation_rate": 2}),  # our kernel
        ("tanh", 6, {"kernel_size": (2, 3), "padding": "same"}),  # TensorFlow's
        ("relu", 6, {"kernel_size": 1}),  # a product of matrices
    ],
)
def test_gpus_compute_as_the_layer_of_numbers(
    as_on_a_gpu, window, channels, activation, dtype, per_channel, rounded
):
    random = np.random.default_rng(6)
    arguments = {"filters": 8, "activation": activation, "dtype": dtype, **window}
    layer = InqConv2D(bits=4, per_channel=per_channel, **arguments)
    layer.build((None, None, None, channels))
    layer.set_kernel(random.normal(size=layer.codes.shape))
    layer.bias.assign(random.normal(size=8))
    images = tf.constant(random.normal(size=[2, 9, 8, channels]), dtype)
    if rounded:
        rounding = FakeQuant(dtype=dtype)
        rounding.calibrate([images])
        images = rounding(images)
        assert range_of(images) is not None
    kernel, bias = (tf.convert_to_tensor(each) for each in (layer.kernel, layer.bias))
    kernel, bias = tf.cast(kernel, dtype), tf.cast(bias, dtype)
    ours = conv2d.ours_is_faster(kernel.shape, images.dtype)
    if ours and activation == "relu":  # rounds once where types are of 16 bits
        op = capsule_conv2d_bias_relu
        expected = conv2d.convolved(layer, op, images, kernel, bias)
    else:
        if ours:
            expected = conv2d.convolved(layer, capsule_conv2d, images, kernel)
        else:
            window = layer.strides, layer.padding.upper()
            expected = tf.nn.conv2d(images, kernel, *window)
        expected = layer.activation(expected + bias)
    found = layer(images)
    if ours:
        np.testing.assert_array_equal(found, expected)
    else:
        tolerances.assert_close(found, np.asarray(expected, np.float64), expected)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_gpus_convolve_codes_of_dilated_windows(as_on_a_gpu, dtype):
    window = {"kernel_size": 2, "strides": 2, "dilation_rate": 2}
    layer = InqConv2D(7, dtype=dtype, use_bias=False, **window)
    layer.build((None, None, None, 3))
    images = tf.constant(np.random.default_rng(2).normal(size=[2, 9, 8, 3]), dtype)
    expected = tf_capsops.inq_conv2d(
        images,
        tf.convert_to_tensor(layer.codes),
        int(layer.top_exponent),
        strides=2,
        padding="VALID",
        dilations=2,
    )
    np.testing.assert_array_equal(layer(images), expected)


def test_gpus_multiply_decoded_weights_of_dense_layers(as_on_a_gpu):
    layer = InqDense(4, dtype="bfloat16")
    inputs = tf.constant(np.random.default_rng(2).normal(size=[3, 5]), "bfloat16")
    outputs = layer(inputs)
    kernel = tf.cast(layer.kernel[0, 0], "bfloat16")
    np.testing.assert_array_equal(outputs, tf.tensordot(inputs, kernel, 1))


def test_images_keep_their_type_without_autocast(as_on_a_gpu):
    layer = InqConv2D(8, 3, dtype="mixed_bfloat16", use_bias=False, autocast=False)
    assert layer(tf.ones([1, 5, 5, 1])).dtype == "float32"
