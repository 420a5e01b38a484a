# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""InqDepthwiseConv2D against DepthwiseConv2D of the same weights, saved, compiled."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_capsops import inq
from tf_capsops.layers import InqDepthwiseConv2D

_CASES = {
    "valid": {"kernel_size": (2, 3), "depth_multiplier": 3},
    "strided": {"kernel_size": 3, "strides": 2},
    "same": {"kernel_size": (3, 2), "padding": "same", "depth_multiplier": 2},
    "dilated": {"kernel_size": 3, "padding": "same", "dilation_rate": 2},
    "strided and dilated": {"kernel_size": 2, "strides": 2, "dilation_rate": 2},
}


def _layers(arguments, dtype="float32", bits=5, **changes):
    """The layer, DepthwiseConv2D of the same weights, and images for both."""
    random = np.random.default_rng(5)
    layer = InqDepthwiseConv2D(bits=bits, dtype=dtype, **arguments, **changes)
    images = tf.constant(random.normal(size=[2, 8, 9, 3]), dtype)
    layer.build(images.shape)
    layer.set_kernel(random.normal(size=layer.codes.shape))
    layer.bias.assign(random.normal(size=layer.bias.shape))
    plain = keras.layers.DepthwiseConv2D(dtype=dtype, **arguments, **changes)
    plain.build(images.shape)
    plain.set_weights([layer.kernel, layer.bias])
    return layer, plain, images


@pytest.mark.parametrize("case", _CASES)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_is_a_depthwise_convolution_with_the_kernel(device, dtype, case):
    layer, plain, images = _layers(_CASES[case], dtype, activation="tanh")
    result = layer(images)
    assert result.dtype == dtype
    assert result.shape == layer.compute_output_shape(images.shape)
    np.testing.assert_array_equal(result, plain(images))


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("top_exponent", [0, 7, -40, 90])
def test_every_code_is_decoded_exactly(device, bits, top_exponent):
    codes = np.arange(2 ** (bits - 1) + 1, dtype=np.uint8)
    layer = InqDepthwiseConv2D(1, bits=bits, use_bias=False)
    layer.build([None, 1, 1, codes.size])
    layer.set_weights([codes.reshape(layer.codes.shape), top_exponent])
    expected = inq.decode(codes, bits, top_exponent)
    result = layer(tf.ones([1, 1, 1, codes.size]))
    np.testing.assert_array_equal(tf.reshape(result, [-1]), expected)
    np.testing.assert_array_equal(layer.kernel.reshape(-1), expected)


def test_powers_out_of_range_are_infinite_or_zero(device):
    layer = InqDepthwiseConv2D(1, bits=2, use_bias=False)
    layer.build([None, 1, 1, 1])
    for exponent, expected in ((128, np.inf), (2**31 - 1, np.inf), (-(2**31), 0)):
        layer.set_weights([np.ones([1, 1, 1, 1], np.uint8), exponent])
        assert layer(tf.ones([1, 1, 1, 1])).numpy() == expected


def test_gradients_reach_input_and_bias(device):
    layer, plain, images = _layers(_CASES["same"], activation="tanh")
    gradients = []
    for each in (layer, plain):
        with tf.GradientTape() as tape:
            tape.watch(images)
            result = each(images)
        gradients.append(tape.gradient(result, [images, each.bias.value]))
    for ours, theirs in zip(*gradients):
        np.testing.assert_array_equal(ours, theirs)
    assert [each.name for each in layer.trainable_weights] == ["bias"]


@pytest.mark.parametrize("jit_compile", [False, True])
def test_saved_and_compiled(tmp_path, jit_compile):
    layer, _, images = _layers(_CASES["valid"], bits=3)
    inputs = keras.Input([None, None, 3])
    model = keras.Model(inputs, layer(inputs))
    expected = model(images)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(images), expected)
    assert loaded.layers[1].codes.dtype == "uint8"
    model.export(tmp_path / "saved", verbose=False)
    saved = tf.saved_model.load(tmp_path / "saved")
    np.testing.assert_allclose(saved.serve(images), expected, rtol=1e-5, atol=1e-6)
    loaded.compile("sgd", "mse", jit_compile=jit_compile)
    loaded.fit(images, expected, verbose=0)
    np.testing.assert_array_equal(loaded.layers[1].codes, layer.codes)
