# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""HighOrderConv2D against plain convolution and the reference, and as a Keras layer."""

import finite_differences
import keras
import layer_testing
import numpy as np
import pytest
import tensorflow as tf
import tolerances
from parameterized import parameterized
from reference import high_order_conv

import tf_capsops
from tf_capsops.layers import CenterTap, HighOrderConv2D

_FORMATS = ["channels_last", "channels_first"]
# Height, width, dilations and both kernels differ, so that none can be taken for
# another: arguments of the layer, and the shape of an input [N, H, W, C] for them.
_LAYERS = {
    "plain": ({"kernel_size": (3, 5)}, (2, 6, 7, 3)),
    "groups": (
        {"kernel_size": (5, 3), "groups": 2, "generator_kernel_size": (1, 4)},
        (2, 5, 6, 4),
    ),
    "dilated": (
        {"kernel_size": 3, "dilation_rate": (2, 3), "use_bias": False},
        (1, 7, 8, 2),
    ),
    "softmax": (
        {"kernel_size": (1, 3), "groups": 3, "filter_activation": "softmax"},
        (2, 4, 5, 6),
    ),
}


def _layer(case, **changes):
    """Returns a layer with random weights and an input for it, as an array."""
    arguments, shape = _LAYERS[case]
    random = np.random.default_rng(5)
    layer = HighOrderConv2D(**{**arguments, **changes})
    inputs = _in_format(random.normal(size=shape), layer.data_format)
    layer.build(inputs.shape)
    layer.set_weights([random.normal(size=each.shape) for each in layer.weights])
    return layer, inputs


def _in_format(images, data_format):
    """Moves the channels of `[N, H, W, C]` to where the format has them."""
    return np.moveaxis(images, 3, 1) if data_format == "channels_first" else images


def _plain_filters(layer, inputs):
    """The filters `[N, H, W, G * KH * KW]`, by Keras' convolution."""
    values = np.asarray(inputs, np.float64)
    if layer.data_format == "channels_first":
        values = np.moveaxis(values, 1, 3)
    kernel = layer.kernel.numpy().astype(np.float64)
    filters = keras.ops.conv(values, kernel, padding="same").numpy()
    if layer.bias is not None:
        filters += layer.bias.numpy()
    return values, filters


@pytest.mark.parametrize("data_format", _FORMATS)
@pytest.mark.parametrize("case", _LAYERS)
def test_is_the_module_of_the_paper(device, case, data_format):
    layer, inputs = _layer(case, dtype="float64", data_format=data_format)
    images, filters = _plain_filters(layer, inputs)
    if case == "softmax":
        powers = np.exp(filters).reshape(*filters.shape[:3], layer.groups, -1)
        filters = (powers / powers.sum(-1, keepdims=True)).reshape(filters.shape)
    arguments = (layer.kernel_size, layer.groups, layer.dilation_rate)
    expected = high_order_conv.forward(images, filters, *arguments)
    magnitude = high_order_conv.forward(np.abs(images), np.abs(filters), *arguments)
    # What the sums of the generator may be off by comes on top of the op's own.
    terms = np.prod(layer.kernel.shape[:3]) + 1
    allowed = terms * tolerances.ulp(np.float64) * magnitude.max()
    expected = _in_format(expected, data_format)
    np.testing.assert_allclose(layer(inputs), expected, rtol=0, atol=allowed)


@pytest.mark.parametrize("data_format", _FORMATS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_computes_in_its_dtype(device, dtype, data_format):
    layer, inputs = _layer("groups", dtype=dtype, data_format=data_format)
    inputs = tf.constant(inputs, dtype)
    result = layer(inputs)
    assert result.dtype == dtype
    assert result.shape == inputs.shape == layer.compute_output_shape(inputs.shape)
    channels_last = (
        inputs if data_format == "channels_last" else tf.transpose(inputs, [0, 2, 3, 1])
    )
    filters = tf.nn.conv2d(channels_last, layer.kernel.value, 1, "SAME") + layer.bias
    expected = tf_capsops.high_order_conv2d(
        channels_last, filters, layer.kernel_size, layer.groups
    )
    # Both layouts sum the same products of the same filters, in the same precision.
    np.testing.assert_allclose(
        np.asarray(result, np.float64),
        _in_format(np.asarray(expected, np.float64), data_format),
        rtol=0,
        atol=2 * tolerances.ulp(dtype) * np.abs(np.asarray(expected, np.float64)).max(),
    )


def test_softmax_is_over_the_taps_of_each_group(device):
    layer, inputs = _layer("softmax", dtype="float64")
    filters = layer._filters(tf.constant(inputs)).numpy().reshape(2, 4, 5, 3, 3)
    assert np.all(filters > 0)
    np.testing.assert_allclose(filters.sum(-1), 1, rtol=4 * tolerances.ulp(np.float64))


@pytest.mark.parametrize("data_format", _FORMATS)
def test_a_function_is_given_the_taps_last(device, data_format):
    seen = []

    def normalized(filters):
        seen.append(filters.shape)
        return filters / tf.reduce_sum(tf.abs(filters), axis=-1, keepdims=True)

    layer, inputs = _layer(
        "groups", filter_activation=normalized, data_format=data_format
    )
    assert layer(inputs).shape == inputs.shape
    assert seen[-1] == [2, 5, 6, 2, 15]


def test_filters_may_come_from_a_guide(device):
    layer = HighOrderConv2D(3, groups=2, filter_activation="tanh", dtype="float64")
    random = np.random.default_rng(7)
    inputs, guide = random.normal(size=[2, 5, 6, 4]), random.normal(size=[2, 5, 6, 7])
    result = layer(inputs, guide=guide)
    assert layer.kernel.shape == (3, 3, 7, 18)
    filters = tf.tanh(tf.nn.conv2d(guide, layer.kernel.value, 1, "SAME") + layer.bias)
    expected = tf_capsops.high_order_conv2d(inputs, filters, 3, groups=2)
    np.testing.assert_array_equal(result, expected)
    with pytest.raises(ValueError, match=r"guide must have 7 channels, got shape \(2,"):
        layer(inputs)


def test_starts_close_to_the_identity(device):
    inputs = tf.random.stateless_normal([2, 9, 8, 6], [1, 2])
    for groups in (1, 3):
        keras.utils.set_random_seed(4)
        result = HighOrderConv2D(5, groups=groups)(inputs)
        # 25 taps of a hundredth each: a twentieth, and twice that to be sure.
        assert 0 < tf.math.reduce_std(result - inputs) < 0.1
    exact = HighOrderConv2D(5, groups=2, kernel_initializer="zeros")(inputs)
    np.testing.assert_array_equal(exact, inputs)


def test_softmax_starts_close_to_an_average(device):
    layer = HighOrderConv2D(
        3, filter_activation="softmax", kernel_initializer="zeros", dtype="float64"
    )
    inputs = np.random.default_rng(8).normal(size=[1, 3, 3, 2])
    weights = np.ones([3, 3, 1])
    weights[1, 1] = np.e
    expected = (weights * inputs[0]).sum((0, 1)) / weights.sum()
    allowed = 9 * tolerances.ulp(np.float64)
    np.testing.assert_allclose(layer(inputs)[0, 1, 1], expected, rtol=0, atol=allowed)


def test_bias_initializer_is_called_for_the_filters():
    def count(shape, dtype=None):
        assert shape == (2, 3, 5)
        return np.arange(30, dtype=dtype).reshape(shape)

    layer = HighOrderConv2D((3, 5), groups=2, bias_initializer=count)
    layer.build((None, 4, 4, 2))
    np.testing.assert_array_equal(layer.bias, np.arange(30))


class HighOrderConv2DTest(layer_testing.TestCase):
    @parameterized.expand(
        [
            ("last", "channels_last", (2, 6, 5, 4)),
            ("first", "channels_first", (2, 4, 6, 5)),
        ]
    )
    def test_layer(self, _, data_format, input_shape):
        self.run_layer_test(
            HighOrderConv2D,
            {
                "kernel_size": (3, 5),
                "groups": 2,
                "dilation_rate": 2,
                "filter_activation": "softmax",
                "generator_kernel_size": 1,
                "data_format": data_format,
                "kernel_initializer": "he_normal",
                "bias_initializer": CenterTap(3.0),
                "kernel_regularizer": "l2",
                "bias_regularizer": "l1",
                "bias_constraint": "non_neg",
            },
            input_shape=input_shape,
            expected_output_shape=input_shape,
            expected_num_trainable_weights=2,
            expected_num_losses=2,
        )

    def test_default_arguments(self):
        self.run_layer_test(
            HighOrderConv2D,
            {},
            input_shape=(2, 6, 5, 3),
            expected_output_shape=(2, 6, 5, 3),
            expected_num_trainable_weights=2,
        )

    def test_initializer(self):
        self.run_class_serialization_test(CenterTap(2.5))


def test_gradients_reach_input_guide_kernel_and_bias(device):
    layer = HighOrderConv2D(3, groups=2, filter_activation="softmax", dtype="float64")
    random = np.random.default_rng(6)
    tensors = [random.normal(size=[1, 3, 4, channels]) for channels in (2, 1)]
    layer.build(*(tensor.shape for tensor in tensors))
    weights = [random.normal(size=each.shape) for each in layer.weights]

    def compute(inputs, guide, *weights):
        return layer.stateless_call(weights, [], inputs, guide=guide)[0]

    finite_differences.assert_gradients_agree(compute, [*tensors, *weights])


def test_channels_first_transposes_images_and_no_filters():
    layer = HighOrderConv2D(3, data_format="channels_first")
    shape = (2, 5, 6, 7)
    layer.build(shape)

    def gradients(images):
        with tf.GradientTape() as tape:
            tape.watch(images)
            result = layer(images)
        return tape.gradient(result, [images, layer.kernel.value])

    for function, transpositions in ((layer, 2), (gradients, 4)):
        traced = tf.function(function).get_concrete_function(tf.TensorSpec(shape))
        operations = traced.graph.get_operations()
        moved = [op.outputs[0].shape for op in operations if op.type == "Transpose"]
        sizes = [moved_shape.num_elements() for moved_shape in moved]
        assert sizes == [np.prod(shape)] * transpositions


@pytest.mark.parametrize("shape", [(0, 5, 6, 2), (2, 0, 6, 2), (2, 5, 0, 2)])
def test_empty_images(device, shape):
    layer = HighOrderConv2D(3, filter_activation="softmax")
    with tf.GradientTape() as tape:
        result = layer(tf.zeros(shape))
    assert result.shape == shape
    for gradient in tape.gradient(result, [each.value for each in layer.weights]):
        np.testing.assert_array_equal(gradient, tf.zeros_like(gradient))


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision_keeps_weights_in_float32(device, policy):
    layer = HighOrderConv2D(3, filter_activation="softmax", dtype=policy)
    images, guide = tf.ones([2, 5, 5, 2]), tf.ones([2, 5, 5, 3])
    with tf.GradientTape() as tape:
        result = layer(images, guide=guide)
    assert result.dtype == policy.removeprefix("mixed_")
    assert [weight.dtype for weight in layer.weights] == ["float32", "float32"]
    sources = [weight.value for weight in layer.weights]
    assert [g.dtype for g in tape.gradient(result, sources)] == [tf.float32] * 2


@pytest.mark.parametrize("data_format", _FORMATS)
@pytest.mark.parametrize("guided", [False, True])
def test_saved_with_unknown_batch_height_and_width(tmp_path, guided, data_format):
    first = data_format == "channels_first"
    inputs = keras.Input([4, None, None] if first else [None, None, 4])
    layer = HighOrderConv2D(
        3, groups=2, filter_activation="softmax", data_format=data_format
    )
    guide = {"guide": keras.layers.Rescaling(0.5)(inputs)} if guided else {}
    model = keras.Model(inputs, layer(inputs, **guide))
    assert model.output_shape == model.input_shape
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    model.export(tmp_path / "saved", verbose=False)
    saved = tf.saved_model.load(tmp_path / "saved")
    for shape in ([1, 7, 9, 4], [3, 8, 1, 4]):
        images = np.random.default_rng(9).normal(size=shape).astype(np.float32)
        images = _in_format(images, data_format)
        expected = model(images)
        np.testing.assert_array_equal(loaded(images), expected)
        # The graph may fuse what is run one by one here: the last bits may differ.
        allowed = 8 * tolerances.ulp(np.float32) * np.abs(images).max()
        served = saved.serve(images)
        np.testing.assert_allclose(served, expected, rtol=0, atol=allowed)


def test_takes_the_data_format_of_keras():
    keras.config.set_image_data_format("channels_first")
    try:
        assert HighOrderConv2D().get_config()["data_format"] == "channels_first"
    finally:
        keras.config.set_image_data_format("channels_last")
    assert HighOrderConv2D().data_format == "channels_last"


def test_arguments_of_another_convolution_are_explained():
    with pytest.raises(
        ValueError, match="got 32: the arguments begin with kernel_size"
    ):
        HighOrderConv2D(32, 3)


@pytest.mark.parametrize(
    "changes, text",
    [
        ({"kernel_size": 4}, "kernel_size must be odd, got 4"),
        ({"kernel_size": (3, 2)}, r"kernel_size must be odd, got \(3, 2\)"),
        ({"kernel_size": (3, 3, 3)}, "kernel_size must be one or two integers, got"),
        ({"groups": 0}, "groups must be an integer >= 1, got 0"),
        ({"dilation_rate": -1}, "dilation_rate must be an integer >= 1, got -1"),
        ({"generator_kernel_size": 0}, "generator_kernel_size must be an integer >= 1"),
        ({"data_format": "NHWC"}, "data_format must be 'channels_last' or .* 'NHWC'"),
    ],
)
def test_bad_arguments_are_named(changes, text):
    with pytest.raises(ValueError, match=f"HighOrderConv2D: {text}"):
        HighOrderConv2D(**changes)


@pytest.mark.parametrize(
    "data_format, shapes, text",
    [
        ("channels_last", [(None, 8, 8)], r"input must be \[batch, height, width, ch"),
        ("channels_first", [(2, 3)], r"input must be \[batch, channels, height, wid"),
        ("channels_last", [(2, 8, 8, None)], "input must be .* with known channels"),
        ("channels_first", [(2, None, 8, 8)], "input must be .* with known channels"),
        ("channels_last", [(2, 8, 8, 3)], "groups must divide .* got 2 groups and sha"),
        ("channels_first", [(2, 3, 8, 8)], "groups must divide .* got 2 groups and"),
        ("channels_last", [(2, 8, 8, 2), (2, 8, 8)], "the guide must be"),
        (
            "channels_last",
            [(2, 8, 8, 2), (2, 8, 7, 2)],
            r"got shapes \(2, 8, 7, 2\) and \(2, 8, 8, 2\)",
        ),
    ],
)
def test_bad_shapes_are_named(data_format, shapes, text):
    with pytest.raises(ValueError, match=f"HighOrderConv2D: .*{text}"):
        HighOrderConv2D(3, groups=2, data_format=data_format).build(*shapes)


def test_other_channels_than_built_for_are_refused(device):
    layer, inputs = _layer("groups")
    with pytest.raises(ValueError, match="expected axis 3 of input shape"):
        layer(inputs[..., :2])


@pytest.mark.parametrize("shape", [(3,), (2, 3, 4), (4, 3)])
def test_center_tap_wants_odd_filters(shape):
    with pytest.raises(
        ValueError, match=r"must be \[\.\.\., height, width\], both odd"
    ):
        CenterTap()(shape)
