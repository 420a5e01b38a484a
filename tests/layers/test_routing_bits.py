# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Layers that route by agreement in few bits."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from reference import capsule_conv_routing, capsule_prediction
from reference import capsule_routing as reference

import tf_capsops
from tf_capsops import layers, models
from tf_capsops.models.deepcaps import GlobalSlimCaps2D
from tf_capsops.routing import EM, Dynamic

_RANDOM = np.random.default_rng(3)
_CHILDREN = _RANDOM.normal(size=[3, 6, 4]).astype(np.float32)
_POSES = _RANDOM.normal(size=[3, 5, 2, 3]).astype(np.float32)
_EXIST = np.float32(_RANDOM.random([3, 5]) < 0.8)
_MAPS = _RANDOM.normal(size=[2, 5, 4, 3, 4]).astype(np.float32)
_DYNAMIC = {"pose_shape": (2, 3), "routing": Dynamic()}
_WINDOW = {"kernel_size": 3, "strides": 2, "padding": "same"}

_LAYERS = {
    "DigitCaps": (layers.DigitCaps, (4, 5), {}, _CHILDREN),
    "DigitCaps, shared": (layers.DigitCaps, (4, 5), {"share_weights": True}, _CHILDREN),
    "DenseCaps": (layers.DenseCaps, (4,), _DYNAMIC, [_POSES, _EXIST]),
    "DenseCaps, shared": (
        *(layers.DenseCaps, (4,), {**_DYNAMIC, "share_weights": True}),
        [_POSES, _EXIST],
    ),
    "SlimCaps2D": (layers.SlimCaps2D, (2, 5), _WINDOW, _MAPS),
}
_OTHERS = {
    "leaky": (layers.SlimCaps2D, (1, 5), {**_WINDOW, "leaky": True}, _MAPS),
    "SlimCaps1D": (layers.SlimCaps1D, (2, 5, 2), {}, _MAPS[:, 0]),
    "SlimCaps3DTranspose": (
        *(layers.SlimCaps3DTranspose, (2, 5, 2), {}),
        _MAPS[:, :, None],
    ),
    "GlobalSlimCaps2D": (
        *(GlobalSlimCaps2D, (2, 5, 3), {"padding": "same"}),
        _MAPS,
    ),
}
every_layer = pytest.mark.parametrize("name", _LAYERS)
every_kind = pytest.mark.parametrize("name", {**_LAYERS, **_OTHERS})


def _pair(name, bits, dtype="float32"):
    """A layer, the same in few bits, calibrated, and their inputs."""
    kind, arguments, options, inputs = {**_LAYERS, **_OTHERS}[name]
    keras.utils.set_random_seed(2)
    inputs = tf.nest.map_structure(lambda each: tf.constant(each, dtype), inputs)
    plain = kind(*arguments, **options, dtype=dtype)
    rounded = kind(*arguments, **options, dtype=dtype, routing_bits=bits)
    for layer in (plain, rounded):
        layer(inputs)
    for variable, of_plain in zip(plain.weights, rounded.weights, strict=False):
        scale = 0.4 if variable.name == "kernel" else 0.2
        value = np.random.default_rng(4).normal(size=variable.shape) * scale
        for each in (variable, of_plain):
            each.assign(value)
    assert rounded.weights[-1].name == "routing_ranges"
    with rounded.calibrating():
        rounded(inputs)
    return plain, rounded, inputs


def _votes(name, layer, inputs):
    """Votes `[B, I, J, D]`, logits `[I, J]` and biases, float64."""
    kernel = np.asarray(layer.kernel, np.float64)
    if name.startswith("DigitCaps"):
        if layer.share_weights:
            kernel = np.broadcast_to(kernel, [inputs.shape[1], *kernel.shape])
        return capsule_prediction.forward(inputs, kernel), np.asarray(layer.logits), 0
    if name.startswith("DenseCaps"):
        poses = np.float64(inputs[0]) * np.asarray(inputs[1])[..., None, None]
        pairs = "jqr" if layer.share_weights else "ijqr"
        votes = np.einsum(f"bipq,{pairs}->bijpr", poses, kernel)
        return votes.reshape(*votes.shape[:3], -1), np.zeros(votes.shape[1:3]), 0
    votes = capsule_conv_routing.votes(
        *(np.float64(inputs), kernel),
        strides=(2, 2),
        padding="SAME",
        dilations=(1, 1),
        transposed=False,
    )
    votes = votes.reshape(-1, *votes.shape[-3:])
    return votes, np.zeros(votes.shape[1:3]), np.asarray(layer.bias, np.float64)


def _assert_close(found, expected, atol=2e-5):
    for ours, theirs in zip(*map(tf.nest.flatten, (found, expected)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=atol)
        assert np.abs(theirs).max() > 0


def _expected(name, layer, inputs, bits):
    votes, logits, bias = _votes(name, layer, inputs)
    ranges = np.float64(layer.routing_ranges)
    return reference.rounded(votes, logits, ranges, bits, bias)


@pytest.mark.parametrize(
    "mode, bits",
    [
        *(("eager", bits) for bits in (2, 4, 8)),
        *((mode, 4) for mode in ("graph", "XLA", "portable")),
    ],
)
@every_layer
def test_values(device, name, mode, bits):
    _, layer, inputs = _pair(name, bits)
    # Rounded logits may be equal, and coefficients then are halfway between integers.
    layer.routing_ranges.assign(1.03 * layer.routing_ranges)
    call = layer
    if mode in ("graph", "XLA"):
        call = tf.function(lambda each: layer(each), jit_compile=mode == "XLA")
    with tf_capsops.portable() if mode == "portable" else contextlib.nullcontext():
        found = call(inputs)
    expected, shares, _ = _expected(name, layer, inputs, bits)
    if name.startswith("DenseCaps"):
        expected = expected.reshape(found[0].shape)
        expected = [expected, np.sqrt((expected**2).sum(axis=(-2, -1)))]
    elif name.startswith("SlimCaps"):
        expected = expected.reshape(found.shape)
    _assert_close(found, expected)
    if name.startswith("DigitCaps"):
        _assert_close(layer.coefficients(inputs), shares)
    elif name.startswith("DenseCaps"):
        _assert_close(layer.shares(inputs), shares * _EXIST[..., None])


@every_layer
def test_calibration_covers_the_arrays(name):
    _, layer, inputs = _pair(name, 4)
    _, _, arrays = _expected(name, layer, inputs, bits=None)
    ranges = layer.routing_ranges.numpy()
    for iteration in range(3):
        for number, array in enumerate(reference.ARRAYS):
            numbers = arrays.get((iteration, array), np.zeros(1))
            ends = min(numbers.min(), 0), max(numbers.max(), 0)
            np.testing.assert_allclose(ranges[iteration, number], ends, atol=1e-4)


@every_kind
def test_many_bits_are_close_to_floating_point(device, name):
    plain, eight, inputs = _pair(name, 8)
    _, two, _ = _pair(name, 2)
    expected = tf.nest.flatten(plain(inputs))
    errors = [
        max(np.abs(a - b).max() for a, b in zip(tf.nest.flatten(found), expected))
        for found in (eight(inputs), two(inputs))
    ]
    assert 0 < errors[0] < 0.1 < errors[1]


@pytest.mark.ci
def test_the_coefficients_of_a_network():
    model = models.segcaps((8, 8, 1), 2, size="small")
    images = np.random.default_rng(1).random([2, 8, 8, 1], np.float32)
    rounded = tf_capsops.inq.convert(model, routing_bits=2, calibration=images)
    _, hi = rounded.network.get_layer("class_caps").routing_ranges[-1, 1]
    integers = 3 * rounded.routing_coefficients(images) / hi
    np.testing.assert_allclose(integers, np.round(integers), atol=1e-5)


@every_kind
def test_saved_and_loaded(tmp_path, name):
    plain, layer, inputs = _pair(name, 3)
    assert "routing_bits" not in plain.get_config()
    shapes = tf.nest.map_structure(lambda each: each.shape[1:], inputs)
    given = tf.nest.map_structure(keras.Input, shapes)
    model = keras.Model(given, layer(given))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.layers[-1].routing_bits == 3
    for ours, theirs in zip(*map(tf.nest.flatten, (loaded(inputs), layer(inputs)))):
        np.testing.assert_array_equal(ours, theirs)
    if name in ("DigitCaps", "DenseCaps"):
        model.export(tmp_path / "exported", verbose=False)
        exported = tf.saved_model.load(tmp_path / "exported")
        _assert_close(exported.serve(inputs), layer(inputs))


@pytest.mark.parametrize("name", ["DigitCaps", "SlimCaps2D"])
def test_runs_in_tflite(name):
    _, layer, inputs = _pair(name, 4)
    with tf_capsops.portable():
        call = tf.function(lambda each: layer(each))
        function = call.get_concrete_function(tf.TensorSpec(inputs.shape))
    converted = tf.lite.TFLiteConverter.from_concrete_functions([function]).convert()
    interpreter = tf.lite.Interpreter(model_content=converted)
    interpreter.allocate_tensors()
    (given,), (result,) = (
        interpreter.get_input_details(),
        interpreter.get_output_details(),
    )
    interpreter.set_tensor(given["index"], inputs.numpy())
    interpreter.invoke()
    _assert_close(interpreter.get_tensor(result["index"]), layer(inputs))


@every_layer
def test_gradients_are_straight_through(name):
    plain, eight, inputs = _pair(name, 8)
    found = []
    for layer in (plain, eight):
        with tf.GradientTape() as tape:
            total = tf.reduce_sum(tf.square(tf.nest.flatten(layer(inputs))[0]))
        assert layer.trainable_variables[0] is layer.kernel
        (gradient,) = tape.gradient(total, [layer.kernel.value])
        found.append(np.asarray(gradient))
    lengths = [np.linalg.norm(each) for each in found]
    assert np.vdot(*found) > 0.95 * np.prod(lengths) > 0


@every_layer
@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_other_types(name, dtype):
    _, layer, inputs = _pair(name, 4, dtype)
    found = tf.nest.flatten(layer(inputs))
    assert {each.dtype for each in found} == {tf.as_dtype(dtype)}
    assert layer.routing_ranges.dtype == "float32"
    if dtype == "float16":
        wide = type(layer).from_config({**layer.get_config(), "dtype": "float32"})
        wide_inputs = tf.nest.map_structure(lambda x: tf.cast(x, "float32"), inputs)
        wide(wide_inputs)
        for variable, of_layer in zip(wide.weights, layer.weights, strict=True):
            variable.assign(tf.cast(of_layer, "float32"))
        expected = tf.nest.flatten(wide(wide_inputs))
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_array_equal(ours, tf.cast(theirs, dtype))


@pytest.mark.parametrize("bits", [1, 9, 2.0, True, "4"])
@pytest.mark.parametrize("name", ["DigitCaps", "DenseCaps", "SlimCaps2D"])
def test_bits_that_are_refused(name, bits):
    kind, arguments, options, _ = _LAYERS[name]
    text = f"{name}: routing_bits must be an integer from 2 to 8, got {bits!r}"
    with pytest.raises(ValueError, match=text):
        kind(*arguments, **options, routing_bits=bits)


def test_mistakes_are_named():
    text = "DenseCaps: routing_bits needs the rule Dynamic, got EM"
    with pytest.raises(ValueError, match=text):
        layers.DenseCaps(3, (1, 4), routing=EM(), routing_bits=4)
    layer = layers.DigitCaps(3, 4, routing_bits=4, name="digits")
    text = "DigitCaps digits has no weights yet"
    with pytest.raises(ValueError, match=text), layer.calibrating():
        pass
    layer(_CHILDREN)
    plain = layers.DigitCaps(3, 4, name="plain")
    plain(_CHILDREN)
    text = "DigitCaps plain has no routing_bits to calibrate"
    with pytest.raises(ValueError, match=text), plain.calibrating():
        pass
    before = layer.routing_ranges.numpy()
    assert before.shape == (3, 4, 2) and (before[..., 1] > before[..., 0]).all()
    text = "digits: calibration has no numbers"
    with pytest.raises(ValueError, match=text), layer.calibrating():
        layer(_CHILDREN[:0])
    text = "digits: numbers in routing must be finite"
    with pytest.raises(ValueError, match=text), layer.calibrating():
        layer(_CHILDREN * np.float32(np.inf))
    np.testing.assert_array_equal(layer.routing_ranges, before)
    assert "rounded" not in vars(layer)
