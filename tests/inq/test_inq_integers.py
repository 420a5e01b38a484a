# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Layers with codes that convolve rounded activations as integers, on a CPU."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_capsops
from tf_capsops import inq
from tf_capsops.layers import FakeQuant, InqConv2D, InqDense

# GPUs convolve in floating point.
HAS_INTEGERS = not tf.config.get_visible_devices("GPU")

LAYERS = [
    pytest.param(lambda **k: InqConv2D(5, 3, strides=2, **k), id="conv"),
    pytest.param(
        lambda **k: InqConv2D(4, 2, padding="same", dilation_rate=2, **k), id="dilated"
    ),
    pytest.param(lambda **k: InqDense(7, **k), id="dense"),
]
BITS = [pytest.param(bits, id=f"{bits}bits") for bits in (2, 3, 4, 5)]


def _model(make, rounded=8, between=(), **arguments):
    """A model of one layer that reads images of 9x8 pixels and 3 features."""
    keras.utils.set_random_seed(7)
    inputs = keras.Input((9, 8, 3))
    rounding = FakeQuant(rounded)
    rounding.calibrate([[-5.0, 6.0]])
    tensor = rounding(inputs)
    for layer in between:
        tensor = layer(tensor)
    layer = make(bias_initializer="ones", activation="relu", **arguments)
    return keras.Model(inputs, layer(tensor))


def _images(samples=4):
    return np.random.default_rng(3).normal(0, 2, (samples, 9, 8, 3)).astype("float32")


def _has_integers(model):
    graph = tf.function(model).get_concrete_function(tf.TensorSpec((None, 9, 8, 3)))
    return any(op.type == "InqConvInt8" for op in graph.graph.get_operations())


def _assert_same(ours, numbers):
    """The two sum the same products: as exact numbers, and rounded in each step."""
    largest = np.max(np.abs(numbers), initial=1)
    np.testing.assert_allclose(ours, numbers, rtol=0, atol=1e-5 * largest)


@pytest.mark.parametrize("per_channel", [False, True], ids=["layer", "channel"])
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("make", LAYERS)
def test_integers_give_what_numbers_give(make, bits, per_channel):
    model = _model(make, bits=bits, per_channel=per_channel)
    assert _has_integers(model) == HAS_INTEGERS
    with tf_capsops.portable():
        numbers = model(_images())
    assert np.any(numbers != 1)
    _assert_same(model(_images()), numbers)


@pytest.mark.parametrize("rounded", [2, 5])
def test_rounded_to_fewer_bits(rounded):
    model = _model(LAYERS[0].values[0], rounded)
    assert _has_integers(model) == HAS_INTEGERS
    with tf_capsops.portable():
        numbers = model(_images())
    _assert_same(model(_images()), numbers)


@pytest.mark.parametrize("make", LAYERS)
def test_gradients_are_those_of_numbers(make):
    model = _model(make)

    def gradients():
        images = tf.constant(_images())
        with tf.GradientTape() as tape:
            tape.watch(images)
            loss = tf.reduce_sum(model(images) ** 2)
        return tape.gradient(loss, [images, *model.trainable_weights])

    ours = gradients()
    with tf_capsops.portable():
        numbers = gradients()
    assert np.any(ours[0])
    for one, other in zip(ours, numbers, strict=True):
        _assert_same(one, other)


@pytest.mark.parametrize(
    "arguments, between",
    [
        pytest.param({"bits": 6}, [], id="many_bits"),
        pytest.param({}, [keras.layers.ReLU()], id="changed_after_rounding"),
        pytest.param({"dtype": "float64"}, [], id="float64"),
    ],
)
def test_others_convolve_numbers(arguments, between):
    model = _model(LAYERS[0].values[0], between=between, **arguments)
    assert not _has_integers(model)
    with tf_capsops.portable():
        numbers = model(_images())
    _assert_same(model(_images()), numbers)


@pytest.mark.parametrize("samples", [0, 3])
def test_under_xla(samples):
    model = _model(LAYERS[0].values[0])
    step = 11 / 255  # XLA may round numbers in the middle of two to the other one
    images = (np.round(_images(samples) / step) * step).astype("float32")
    compiled = tf.function(model, jit_compile=True)
    _assert_same(compiled(images), model(images))


def test_a_converted_model_convolves_integers(tmp_path):
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((9, 8, 3)),
            keras.layers.Conv2D(6, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(4),
        ]
    )
    for layer in model.layers:
        if layer.weights:
            layer.kernel.assign(inq.quantize(layer.kernel, 4))
    small = inq.convert(model, 4, activation_bits=8, calibration=_images(50))
    assert _has_integers(small) == HAS_INTEGERS
    outputs = small.predict(_images(), verbose=0)
    numbers = model.predict(_images(), verbose=0)
    assert np.max(np.abs(outputs - numbers)) < 0.05 * np.max(np.abs(numbers))
    small.save(tmp_path / "small.keras")
    loaded = keras.models.load_model(tmp_path / "small.keras")
    np.testing.assert_array_equal(loaded.predict(_images(), verbose=0), outputs)


@pytest.mark.parametrize("is_converted", [False, True], ids=["built", "converted"])
def test_a_model_with_codes_trains_with_rounded_activations(is_converted):
    """Training rounds what a layer with codes reads, without saying so to it."""
    keras.utils.set_random_seed(0)
    first = keras.layers.Conv2D if is_converted else InqConv2D
    model = keras.Sequential(
        [
            *(keras.Input((9, 8, 3)), first(4, 3)),
            *(keras.layers.Flatten(), keras.layers.Dense(3)),
        ]
    )
    if is_converted:
        model.layers[0].kernel.assign(inq.quantize(model.layers[0].kernel, 4))
        model = inq.convert(model, 4)
    model.compile("adam", "mse")
    steps = inq.IncrementalQuantization(model, bits=4, steps=(1.0,), activation_bits=8)
    model.fit(_images(8), np.ones((8, 3)), verbose=0, callbacks=[steps])
    small = inq.convert(model, activation_bits=8)
    assert _has_integers(small) == HAS_INTEGERS
    expected = model.predict(_images(), verbose=0)
    _assert_same(small.predict(_images(), verbose=0), expected)


def _trained_to(activation_bits):
    """A model that was trained one epoch with rounded activations."""
    model = keras.Sequential(
        [keras.Input((9, 8, 3)), keras.layers.Dense(2, name="last")]
    )
    model.compile("adam", "mse")
    steps = inq.IncrementalQuantization(
        model, bits=4, steps=(1.0,), activation_bits=activation_bits
    )
    model.fit(_images(8), np.ones((8, 9, 8, 2)), verbose=0, callbacks=[steps])
    return model


def test_bits_are_those_of_the_training():
    with pytest.raises(ValueError, match=r"is 4, but .*last was trained with 8: give"):
        inq.convert(_trained_to(8), activation_bits=4)


def test_names_of_the_model_are_not_taken():
    inputs = keras.Input((9, 8, 3), name="last_input")
    other = keras.layers.ReLU(name="last_input_1")
    model = keras.Model(inputs, InqDense(2, name="last")(other(inputs)))
    small = inq.convert(model, activation_bits=8, calibration=_images())
    names = [layer.name for layer in small.layers]
    assert names == ["last_input", "last_input_1", "last_input_2", "last"]


def test_unbatched_calibration_is_named():
    model = _trained_to(8)
    images = tf.data.Dataset.from_tensor_slices(_images()[0, 0, 0])
    with pytest.raises(ValueError, match="convert: calibration: "):
        inq.convert(model, activation_bits=8, calibration=images)
