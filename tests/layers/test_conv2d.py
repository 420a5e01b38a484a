# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Conv2D is Keras' in all but its kernel."""

import keras
import layer_testing
import numpy as np
import pytest
import tensorflow as tf
import tolerances
from reference import capsule_conv

import tf_capsops
from tf_capsops import inq, kernels
from tf_capsops.layers import Conv2D, InqConv2D, conv2d

IMAGES = np.random.default_rng(1).normal(size=(2, 7, 6, 4)).astype("float32")
WINDOWS = {
    "valid": {"kernel_size": 3},
    "same": {"kernel_size": (2, 3), "padding": "same"},
    "strides": {"kernel_size": 3, "strides": (2, 1), "padding": "same"},
    "dilations": {"kernel_size": (3, 2), "dilation_rate": (2, 3)},
    "groups": {"kernel_size": 3, "groups": 2},
}


class Conv2DTest(layer_testing.TestCase):
    def test_layer(self):
        self.run_layer_test(
            Conv2D,
            {
                "filters": 5,
                "kernel_size": 3,
                "strides": 2,
                "activation": "relu",
                "kernel_regularizer": "l2",
                "bias_constraint": "non_neg",
            },
            input_shape=(2, 7, 7, 3),
            expected_output_shape=(2, 3, 3, 5),
            expected_num_trainable_weights=2,
            expected_num_losses=1,
        )


def both(**arguments):
    """Makes Keras' layer and ours, with the same weights."""
    theirs = keras.layers.Conv2D(8, bias_initializer="normal", **arguments)
    ours = Conv2D(8, bias_initializer="normal", **arguments)
    for layer in theirs, ours:
        layer.build(IMAGES.shape)
    ours.set_weights(theirs.get_weights())
    return theirs, ours


@pytest.mark.parametrize("name", list(WINDOWS))
def test_same_results(device, name, monkeypatch):
    monkeypatch.setattr(conv2d, "ours_is_faster", lambda *_: True)
    theirs, ours = both(**WINDOWS[name])
    with kernels.recorded() as ran:
        result = ours(IMAGES)
    assert bool(ran) == (name != "groups")
    if name == "groups":
        np.testing.assert_array_equal(result, theirs(IMAGES))
        return
    numbers = (IMAGES[..., None, None], np.asarray(ours.kernel)[..., None, None])
    attributes = {
        "strides": ours.strides,
        "padding": ours.padding.upper(),
        "dilations": ours.dilation_rate,
    }
    truth = capsule_conv.forward(*numbers, **attributes)[..., 0, 0]
    tolerances.assert_close(
        result, truth + np.asarray(ours.bias, np.float64), theirs(IMAGES)
    )


def test_bias_and_relu_are_in_the_op(device, monkeypatch):
    monkeypatch.setattr(conv2d, "ours_is_faster", lambda *_: True)
    arguments = {"kernel_size": 3, "activation": "relu"}
    exact = keras.layers.Conv2D(8, dtype="float64", **arguments)
    exact.build(IMAGES.shape)
    theirs, ours = both(**arguments)
    exact.set_weights(ours.get_weights())
    grad = np.random.default_rng(2).normal(size=(2, 5, 4, 8))

    def results(layer):
        with tf.GradientTape() as tape:
            output = layer(IMAGES)
        weights = layer.trainable_variables
        return [output, *tape.gradient(output, weights, tf.cast(grad, layer.dtype))]

    with kernels.recorded() as ran:
        found = results(ours)
    assert ran[0][0] == "CapsuleConvBiasRelu"
    assert "CapsuleConv" not in {op for op, *_ in ran}
    for result, truth, plain in zip(
        found, map(np.asarray, results(exact)), results(theirs), strict=True
    ):
        tolerances.assert_close(result, truth, plain)


@pytest.mark.parametrize(
    "arguments", [{"use_bias": False, "activation": "relu"}, {"activation": "tanh"}]
)
def test_others_run_the_convolution(arguments, monkeypatch):
    monkeypatch.setattr(conv2d, "ours_is_faster", lambda *_: True)
    layer = Conv2D(8, 3, **arguments)
    with kernels.recorded() as ran:
        layer(IMAGES)
    assert [op for op, *_ in ran] == ["CapsuleConv"]


def test_windows_of_a_pixel_are_products(device):
    theirs, ours = both(kernel_size=1, activation="relu", padding="same")

    @tf.function(input_signature=[tf.TensorSpec([None, None, None, 4])])
    def with_gradients(images):
        with tf.GradientTape() as tape:
            tape.watch(images)
            output = ours(images)
        return [output, *tape.gradient(output, [images, *ours.trainable_variables])]

    operations = with_gradients.get_concrete_function().graph.get_operations()
    assert "Conv2D" not in {each.type for each in operations}
    with tf.GradientTape() as tape:
        images = tf.constant(IMAGES)
        tape.watch(images)
        plain = theirs(images)
    expected = [plain, *tape.gradient(plain, [images, *theirs.trainable_variables])]
    for result, other in zip(with_gradients(IMAGES), expected, strict=True):
        np.testing.assert_allclose(result, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("window", [{"strides": 2}, {"groups": 2}, {"kernel_size": 2}])
def test_other_windows_are_convolutions(window):
    theirs, ours = both(**{"kernel_size": 1, **window})
    np.testing.assert_array_equal(ours(IMAGES), theirs(IMAGES))


HOPPER, AMPERE = {"compute_capability": (9, 0)}, {"compute_capability": (8, 0)}
PRIMARY, FIRST, DEEP, SHALLOW = (
    *((9, 9, 256, 256), (9, 9, 1, 256)),
    *((1, 1, 1024, 256), (3, 3, 64, 64)),
)


@pytest.mark.parametrize("dtype, multiple", [(tf.float32, 4), (tf.bfloat16, 8)])
def test_rows_are_loaded_16_bytes_at_once(dtype, multiple, monkeypatch):
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: [HOPPER])
    monkeypatch.setattr(tf.config.experimental, "get_device_details", lambda gpu: gpu)
    tf.config.experimental.enable_tensor_float_32_execution(True)
    for size in (256, 260, 258):
        fits = size % multiple == 0
        assert conv2d.ours_is_faster((9, 9, 256, size), dtype) == fits
        assert conv2d.ours_is_faster((9, 9, size, 256), dtype) == fits


@pytest.mark.parametrize(
    "gpus, tf32, dtype, faster",
    [
        ([HOPPER], True, tf.float32, [PRIMARY, FIRST, DEEP]),
        ([HOPPER, HOPPER], True, tf.float32, [PRIMARY, FIRST, DEEP]),
        ([HOPPER, AMPERE], True, tf.float32, []),
        ([HOPPER], False, tf.float32, []),
        ([HOPPER], True, tf.float16, [PRIMARY, FIRST, DEEP]),
        ([HOPPER], False, tf.bfloat16, [PRIMARY, FIRST, DEEP]),
        ([HOPPER], True, tf.float64, []),
        ([AMPERE], True, tf.bfloat16, []),
        ([], True, tf.float32, [PRIMARY, FIRST]),
        ([], True, tf.bfloat16, []),
    ],
)
def test_rule(gpus, tf32, dtype, faster, monkeypatch):
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: gpus)
    monkeypatch.setattr(tf.config.experimental, "get_device_details", lambda gpu: gpu)
    tf.config.experimental.enable_tensor_float_32_execution(tf32)
    shapes = [PRIMARY, FIRST, DEEP, SHALLOW]
    chosen = [shape for shape in shapes if conv2d.ours_is_faster(shape, dtype)]
    assert chosen == faster


def test_files_of_keras_layers(tmp_path):
    theirs, ours = both(kernel_size=3)
    saved, loaded = (
        keras.Sequential([keras.Input(IMAGES.shape[1:]), layer])
        for layer in (theirs, Conv2D(8, 3))
    )
    saved.save_weights(tmp_path / "conv.weights.h5")
    loaded.load_weights(tmp_path / "conv.weights.h5")
    np.testing.assert_array_equal(loaded(IMAGES), ours(IMAGES))
    assert Conv2D.from_config(theirs.get_config()).get_config() == theirs.get_config()


def test_converts_to_codes():
    layer = Conv2D(2, 2, kernel_initializer="ones")
    model = keras.Sequential([keras.Input((3, 3, 1)), layer])
    (converted,) = inq.convert(model).layers
    assert type(converted) is InqConv2D
    images = tf.ones([1, 3, 3, 1])
    np.testing.assert_array_equal(converted(images), layer(images))


@pytest.mark.parametrize("data_format", ["channels_last", "channels_first"])
def test_portable_windows_may_leave_out_pixels(data_format):
    """Such images are padded, because TFLite would be wrong.

    Portable layers take either format on every device. TensorFlow's own convolution
    knows channels_first only on a GPU and by oneDNN.
    """
    images = np.random.default_rng(3).normal(size=(2, 7, 6, 3)).astype(np.float32)
    window = (2, 1), (1, 4), "same"
    theirs = keras.layers.Conv2D(4, *window, bias_initializer="normal")
    expected = theirs(images)
    layer = Conv2D(4, *window, data_format=data_format)
    if data_format == "channels_first":
        images, expected = (np.moveaxis(each, 3, 1) for each in (images, expected))
    layer.build(images.shape)
    layer.set_weights(theirs.get_weights())
    with tf_capsops.portable():
        compute = tf.function(layer, [tf.TensorSpec(images.shape)])
        result = compute(images)
    np.testing.assert_allclose(result, expected, rtol=0, atol=1e-5)
    (convolution,) = (
        each
        for each in compute.get_concrete_function().graph.get_operations()
        if each.type == "Conv2D"
    )
    assert convolution.get_attr("padding") == b"VALID"
