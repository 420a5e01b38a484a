# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""InqConv2D and InqDense against plain layers, and all layers of codes as layers."""

import zipfile

import finite_differences
import keras
import layer_testing
import numpy as np
import pytest
import tensorflow as tf
import tolerances
from parameterized import parameterized
from reference import capsule_conv

from tf_capsops import inq
from tf_capsops.layers import InqConv2D, InqDense, InqDepthwiseConv2D

_CASES = {
    "valid": ({"kernel_size": (2, 3)}, (2, 6, 7, 5)),
    "strided": ({"kernel_size": 3, "strides": (2, 3)}, (2, 9, 8, 3)),
    "same": ({"kernel_size": (3, 2), "padding": "same"}, (3, 5, 6, 4)),
    "dilated": (
        {"kernel_size": (3, 2), "padding": "same", "dilation_rate": (1, 2)},
        (3, 5, 6, 2),
    ),
    "pixels": ({"kernel_size": 1}, (2, 5, 6, 4)),
}


def _layer(case, bits=5, dtype="float32", **changes):
    """Returns a layer with random weights and an input for it."""
    arguments, shape = _CASES[case]
    random = np.random.default_rng(5)
    layer = InqConv2D(7, bits=bits, dtype=dtype, **arguments, **changes)
    layer.build(shape)
    layer.set_kernel(random.normal(size=layer.codes.shape))
    if layer.bias is not None:
        layer.bias.assign(random.normal(size=7))
    return layer, tf.constant(random.normal(size=shape), dtype)


def _plain(layer, shape):
    """A Conv2D of the same weights."""
    plain = keras.layers.Conv2D(
        layer.filters,
        layer.kernel_size,
        strides=layer.strides,
        padding=layer.padding,
        dilation_rate=layer.dilation_rate,
        use_bias=layer.use_bias,
        activation=layer.activation,
        dtype=layer.dtype_policy,
    )
    plain.build(shape)
    bias = [] if layer.bias is None else [layer.bias]
    plain.set_weights([layer.kernel, *bias])
    return plain


def _reference(images, layer):
    """Float64, by convolution of capsules of one element."""
    images, kernel = (np.asarray(each, np.float64) for each in (images, layer.kernel))
    output = capsule_conv.forward(
        images[..., np.newaxis, np.newaxis],
        kernel[..., np.newaxis, np.newaxis],
        layer.strides,
        layer.padding.upper(),
        layer.dilation_rate,
    )
    return output[..., 0, 0]


@pytest.mark.parametrize("case", _CASES)
@pytest.mark.parametrize("bits", [2, 5, 8])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_is_a_convolution_with_the_kernel(device, dtype, bits, case):
    layer, images = _layer(case, bits, dtype, use_bias=False)
    result = layer(images)
    assert result.dtype == dtype
    assert result.shape == layer.compute_output_shape(images.shape)
    tolerances.assert_close(
        result, _reference(images, layer), _plain(layer, images.shape)(images)
    )


def test_channels_may_be_unknown_in_a_function():
    layer = InqConv2D(8, 3)
    images = tf.ones([1, 5, 5, 2])
    expected = layer(images)
    function = tf.function(layer, input_signature=[tf.TensorSpec([None] * 4)])
    np.testing.assert_array_equal(function(images), expected)


@pytest.mark.parametrize("layer", [InqConv2D(4, (2, 3)), InqDepthwiseConv2D((2, 3))])
def test_an_image_smaller_than_the_window_is_an_error(layer):
    layer.build((None, None, None, 5))
    text = f"{type(layer).__name__}: the input's width is smaller"
    with pytest.raises(ValueError, match=text):
        layer(tf.ones([2, 4, 2, 5]))


def test_bias_and_activation_follow_the_convolution(device):
    layer, images = _layer("valid", activation="sigmoid", dtype="float64")
    bare, _ = _layer("valid", use_bias=False, dtype="float64")
    bare.set_weights(layer.get_weights()[1:])
    expected = keras.activations.sigmoid(bare(images) + layer.bias)
    np.testing.assert_array_equal(layer(images), expected)


@pytest.mark.parametrize("shape", [(2, 3), (2, 5, 3), (2, 2, 1, 4, 3), (0, 3)])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_dense_takes_any_rank(device, dtype, shape):
    random = np.random.default_rng(3)
    layer = InqDense(4, activation="relu", dtype=dtype)
    layer.build(shape)
    layer.set_kernel(random.normal(size=[1, 1, 3, 4]))
    plain = keras.layers.Dense(4, activation="relu", dtype=dtype)
    plain.build(shape)
    bias = random.normal(size=4)
    layer.bias.assign(bias)
    plain.set_weights([layer.kernel[0, 0], bias])
    inputs = tf.constant(random.normal(size=shape), dtype)
    exact = [np.asarray(each, np.float64) for each in (inputs, layer.kernel[0, 0])]
    result = layer(inputs)
    assert result.shape == layer.compute_output_shape(shape) == (*shape[:-1], 4)
    before = np.asarray(layer.bias, np.float64) + exact[0] @ exact[1]
    tolerances.assert_close(result, np.maximum(before, 0), plain(inputs), abs(before))


@pytest.mark.parametrize("case", _CASES)
def test_gradients_reach_input_and_bias_alone(device, case):
    layer, images = _layer(case, activation="tanh", dtype="float64")
    codes = [each.value for each in layer.non_trainable_variables]

    def compute(images, bias):
        return layer.stateless_call([bias], codes, images)[0]

    finite_differences.assert_gradients_agree(
        compute, [images[:1].numpy(), layer.bias.numpy()]
    )
    assert [each.name for each in layer.trainable_weights] == ["bias"]
    assert {each.name for each in layer.non_trainable_weights} == {
        "codes",
        "top_exponent",
    }


def test_training_moves_the_bias_and_no_code(device):
    layer, images = _layer("valid")
    model = keras.Sequential([keras.Input(images.shape[1:]), layer])
    model.compile(keras.optimizers.AdamW(0.1, weight_decay=0.1), "mse")
    codes, bias = layer.codes.numpy(), layer.bias.numpy()
    model.fit(
        images, np.zeros(model.output_shape[1:])[np.newaxis].repeat(2, 0), verbose=0
    )
    np.testing.assert_array_equal(layer.codes.numpy(), codes)
    assert np.all(layer.bias.numpy() != bias)


class InqLayersTest(layer_testing.TestCase):
    @parameterized.expand(
        [
            (InqConv2D, {"filters": 4, "kernel_size": (2, 3), "strides": 2}, (3, 2, 4)),
            (InqDense, {"units": 4}, (7, 6, 4)),
            (
                InqDepthwiseConv2D,
                {"kernel_size": (2, 3), "depth_multiplier": 2},
                (6, 4, 6),
                "depthwise_initializer",
            ),
        ]
    )
    def test_layer(self, layer, arguments, expected, initializer="kernel_initializer"):
        self.run_layer_test(
            layer,
            {
                **arguments,
                "bits": 4,
                "activation": "relu",
                initializer: "he_normal",
                "bias_regularizer": "l1",
                "bias_constraint": "non_neg",
            },
            input_shape=(2, 7, 6, 3),
            expected_output_shape=(2, *expected),
            expected_num_trainable_weights=1,
            expected_num_non_trainable_weights=2,
            expected_num_losses=1,
        )


def test_a_new_layer_has_quantized_weights_of_its_initializer():
    keras.utils.set_random_seed(3)
    initializer = keras.initializers.HeNormal(seed=4)
    for layer, shape, drawn in (
        (
            InqConv2D(32, 3, kernel_initializer=initializer),
            (1, 9, 9, 16),
            (3, 3, 16, 32),
        ),
        (InqDense(32, kernel_initializer=initializer), (1, 64), (64, 32)),
    ):
        layer.build(shape)
        expected = inq.quantize(np.asarray(initializer(drawn)), 5)
        np.testing.assert_array_equal(layer.kernel.reshape(drawn), expected)


def _bytes_of_weights(path):
    with zipfile.ZipFile(path) as file:
        return file.getinfo("model.weights.h5").file_size


@pytest.mark.parametrize("bits", [2, 5, 8])
def test_is_saved_in_so_many_bits_a_weight(tmp_path, bits):
    sizes = []
    for channels in (8, 72):
        layer = InqConv2D(64, 3, bits=bits, name="conv")
        model = keras.Sequential([keras.Input([5, 5, channels]), layer])
        model.save(tmp_path / "model.keras")
        sizes.append(_bytes_of_weights(tmp_path / "model.keras"))
        loaded = keras.saving.load_model(tmp_path / "model.keras").layers[0]
        for ours, saved in zip(loaded.get_weights(), layer.get_weights()):
            np.testing.assert_array_equal(ours, saved)
            assert ours.dtype == saved.dtype
        assert loaded.bits == bits
    assert sizes[1] - sizes[0] == 3 * 3 * 64 * 64 * bits // 8


def test_a_file_that_does_not_fit_is_refused(tmp_path):
    for filters in (4, 5):
        model = keras.Sequential([keras.Input([5, 5, 2]), InqConv2D(filters, 3)])
        if filters == 4:
            model.save_weights(tmp_path / "model.weights.h5")
    with pytest.raises(ValueError, match="take 57 bytes, got 45"):
        model.load_weights(tmp_path / "model.weights.h5")


@pytest.mark.parametrize("padding", ["valid", "same"])
def test_saved_with_unknown_batch_height_and_width(tmp_path, padding):
    inputs = keras.Input([None, None, 3])
    conv = InqConv2D(5, 3, strides=2, padding=padding, activation="relu")
    model = keras.Model(inputs, InqDense(2)(conv(inputs)))
    assert model.output_shape == (None, None, None, 2)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    model.export(tmp_path / "saved", verbose=False)
    saved = tf.saved_model.load(tmp_path / "saved")
    for shape in ([1, 7, 9, 3], [3, 8, 5, 3]):
        images = tf.random.stateless_normal(shape, [1, 2])
        expected = model(images)
        np.testing.assert_array_equal(loaded(images), expected)
        allowed = 16 * tolerances.ulp(np.float32)
        served = saved.serve(images)
        np.testing.assert_allclose(served, expected, rtol=allowed, atol=allowed)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
@pytest.mark.parametrize(
    "layer, arguments",
    [(InqConv2D, (4, 2)), (InqDense, (4,)), (InqDepthwiseConv2D, (2,))],
)
def test_mixed_precision(device, policy, layer, arguments):
    layer = layer(*arguments, dtype=policy)
    with tf.GradientTape() as tape:
        result = layer(tf.ones([2, 5, 5, 3]))
    assert result.dtype == policy.removeprefix("mixed_")
    assert [each.dtype for each in layer.weights] == ["float32", "uint8", "int64"]
    assert tape.gradient(result, layer.bias.value).dtype == tf.float32


def test_empty_batch(device):
    assert InqConv2D(4, 2)(tf.zeros([0, 5, 5, 1])).shape == (0, 4, 4, 4)


_BITS = {"bits": 9}, "bits must be an integer from 2 to 8, got 9"
_BAD_ARGUMENTS = {
    InqConv2D: [
        ({"filters": 0}, "filters must be an integer >= 1, got 0"),
        *(_BITS, *layer_testing.BAD_WINDOWS),
    ],
    InqDense: [_BITS],
    InqDepthwiseConv2D: [
        ({"depth_multiplier": 0}, "depth_multiplier must be an integer >= 1, got 0"),
        *(_BITS, *layer_testing.BAD_WINDOWS),
    ],
}


@pytest.mark.parametrize(
    "layer, changes, text",
    [(layer, *bad) for layer, several in _BAD_ARGUMENTS.items() for bad in several],
)
def test_bad_arguments_are_named(layer, changes, text):
    good = {
        InqConv2D: {"filters": 2, "kernel_size": 3},
        InqDense: {"units": 2},
        InqDepthwiseConv2D: {"kernel_size": 3},
    }[layer]
    with pytest.raises(ValueError, match=f"{layer.__name__}: {text}"):
        layer(**{**good, **changes})


@pytest.mark.parametrize(
    "layer, shape, text",
    [
        *(
            (layer, *bad)
            for layer in (InqConv2D(2, 3), InqDepthwiseConv2D(3))
            for bad in (
                ((None, 8, 8), r"must be \[batch, height, width, channels\]"),
                ((None, 8, 8, None), "with known channels, got shape"),
                ((None, 8, 2, 1), r"width is smaller than kernel_size \(3, 3"),
            )
        ),
        (InqDense(2), (3, None), "with known channels, got shape"),
    ],
)
def test_bad_shapes_are_named(layer, shape, text):
    with pytest.raises(ValueError, match=f"{type(layer).__name__}: .*{text}"):
        layer.build(shape)
