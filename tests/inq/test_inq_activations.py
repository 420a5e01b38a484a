# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Activations of few bits: in copies that convert makes, and in training."""

import keras
import numpy as np
import pytest
import small
import tensorflow as tf
from quantized import quantize
from reference import fake_quant as reference

from tf_capsops import inq, layers, models, routing

pytestmark = [
    pytest.mark.filterwarnings("ignore:convert: "),
    pytest.mark.filterwarnings("ignore:IncrementalQuantization"),
]


def _images(model, count=9):
    shape = getattr(model, "image_shape", None) or model.input_shape[1:]
    shape = [each or 8 for each in shape]
    return np.random.default_rng(5).random((count, *shape), np.float32)


def _sequential():
    return keras.Sequential(
        [
            keras.Input([9, 9, 3]),
            keras.layers.Conv2D(6, 3, activation="relu", name="conv"),
            keras.layers.BatchNormalization(),
            keras.layers.SeparableConv2D(4, 3, name="separable"),
            keras.layers.Flatten(),
            keras.layers.Dense(5, name="dense"),
            keras.layers.Dense(3, name="last"),
        ]
    )


def _branches():
    """Layers that share tensors, a layer that is used twice, and a model inside."""
    images = keras.Input([8, 8, 2])
    twice = keras.layers.Conv2D(2, 3, padding="same", name="twice")
    inner = keras.Input([8, 8, 2])
    part = keras.Model(inner, keras.layers.Conv2D(2, 1, name="inner")(inner))
    features = twice(twice(images)) + keras.layers.Conv2D(2, 1, name="side")(images)
    both = [part(features), keras.layers.DepthwiseConv2D(3, padding="same")(features)]
    outputs = keras.layers.Dense(3)(keras.layers.Concatenate()(both))
    return keras.Model(images, keras.layers.GlobalAveragePooling2D()(outputs))


def _sequence():
    """Layers that take several arguments, by position and by name, and masks."""
    words = keras.Input([6, 4])
    masked = keras.layers.Masking()(words)
    features = keras.layers.Dense(4)(masked)
    attention = keras.layers.MultiHeadAttention(2, 3)
    features = attention(query=features, value=words, key=features)
    return keras.Model(words, keras.layers.SimpleRNN(3)(sequences=features))


def _routed():
    images = keras.Input([6, 5, 3])
    capsules = layers.PoseCaps(3, name="poses")(images)
    capsules = layers.ConvCaps2D(4, 2, routing=routing.EM(iterations=2), name="caps")(
        capsules
    )
    _, activations = layers.ClassCaps(3, name="classes")(capsules)
    return keras.Model(images, activations)


def _capsnet():
    return small.capsnet(filters=16, primary_channels=4, decoder_units=(32,))


def _half():
    policy = "mixed_float16"
    return models.p_capsnet((24, 24, 1), 3, filters=(2, 3, 2), dtype=policy)


def _segcaps():
    return models.segcaps((8, 8, 1), 1, size="small")


_MODELS = {
    "sequential": _sequential,
    "branches": _branches,
    "sequence": _sequence,
    "routed": _routed,
    "capsnet": _capsnet,
    "half": _half,
    "segcaps": _segcaps,
}
every_model = pytest.mark.parametrize("name", _MODELS)


def _assert_equal(found, expected):
    for ours, theirs in zip(*map(tf.nest.flatten, (found, expected)), strict=True):
        np.testing.assert_array_equal(ours, theirs)
        assert np.abs(theirs).max() > 0


class _Keep(keras.callbacks.Callback):
    """Keeps the outputs in training, of the same tensor each time."""

    def __init__(self, images):
        super().__init__()
        self.images = tf.constant(images)

    def on_epoch_end(self, epoch, logs=None):
        self.outputs = self.model(self.images)


def _trained(name, fractions=(0.5,), epochs=2, **compiling):
    """A model that simulates, its images, targets, and the callback."""
    keras.utils.set_random_seed(1)
    model = _MODELS[name]()
    images = _images(model)
    targets = np.arange(len(images)) % 3
    if name == "segcaps":
        targets = (images > 0.5).astype(np.int32)
    elif name != "capsnet":
        targets = np.eye(3, dtype=np.float32)[targets]
        compiling["loss"] = "mse"
    model.compile("adam", **compiling)
    steps = inq.IncrementalQuantization(model, 4, fractions, activation_bits=8)
    kept = _Keep(images)
    model.fit(images, targets, 4, epochs, verbose=0, callbacks=[steps, kept])
    _assert_equal(model(kept.images), kept.outputs)
    return model, images, targets, steps


def _fakes(model):
    found = inq.kernels.layers_in(model)
    return {each.name: each for each in found if isinstance(each, layers.FakeQuant)}


@every_model
def test_a_copy_computes_as_the_training_did(tmp_path, name):
    """Weights are unfinished and stay what they are, so every bit is the same."""
    model, images, _, _ = _trained(name, run_eagerly=True)
    converted = inq.convert(model, activation_bits=8)
    _assert_equal(converted(images), model(images))
    assert not np.array_equal(
        *(tf.nest.flatten(each(images))[0] for each in (model, inq.convert(model)))
    )
    converted.save(tmp_path / "rounded.keras")
    loaded = keras.saving.load_model(tmp_path / "rounded.keras")
    _assert_equal(loaded(images), converted(images))
    _assert_equal(inq.convert(converted)(images), converted(images))


@pytest.mark.parametrize(
    "compiling",
    [{}, {"jit_compile": True}, {"steps_per_execution": 3}, {"run_eagerly": True}],
)
def test_however_a_model_is_compiled(compiling):
    model, images, _, _ = _trained("capsnet", **compiling)
    converted = inq.convert(model, activation_bits=8)
    _assert_equal(converted(images), model(images))
    found = model.predict(images, verbose=0)
    for name, values in model(images).items():
        np.testing.assert_allclose(found[name], values, rtol=0, atol=1e-6)


@pytest.mark.filterwarnings("error:convert")
@pytest.mark.parametrize("name", ["sequential", "capsnet"])
def test_codes_with_rounded_activations(name):
    model, images, _, _ = _trained(name, (0.5, 1))
    converted = inq.convert(model, 4, all_kinds=True, activation_bits=8)
    assert all(each.bits == 4 for each in inq.report(converted) if each.weights)
    found, expected = converted(images), model(images)
    for ours, theirs in zip(*map(tf.nest.flatten, (found, expected)), strict=True):
        # Sums are rounded in another order, which may lead to the next integer.
        step = np.ptp(theirs) / 255
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=2 * step)


def test_where_activations_are_rounded():
    places = {
        "sequential": "conv_input separable_input dense_input last_input",
        "routed": "poses_input poses_output poses_output_1 caps_output caps_output_1 "
        "classes_output_1",
    }
    for name, expected in places.items():
        model = _MODELS[name]()
        converted = inq.convert(model, activation_bits=8, calibration=_images(model))
        assert " ".join(_fakes(converted)) == expected
    converted = inq.convert(
        *(_sequential(),), activation_bits=3, calibration=np.ones([2, 9, 9, 3])
    )
    kinds = [type(each).__name__ for each in converted.layers]
    rounded = "FakeQuant Conv2D BatchNormalization FakeQuant SeparableConv2D Flatten "
    assert kinds == (rounded + "FakeQuant Dense FakeQuant Dense").split()
    assert {each.bits for each in _fakes(converted).values()} == {3}


def test_a_tensor_is_rounded_once():
    images = keras.Input([4])
    first, second = (keras.layers.Dense(2, name=name) for name in ("first", "second"))
    model = keras.Model(images, first(images) + second(images))
    converted = inq.convert(model, activation_bits=8, calibration=np.ones([2, 4]))
    assert list(_fakes(converted)) == ["first_input"]
    again = inq.convert(converted, activation_bits=8, calibration=np.ones([2, 4]))
    assert list(_fakes(again)) == ["first_input"]
    numbers = np.random.default_rng(1).random([5, 4], np.float32)
    _assert_equal(again(numbers), converted(numbers))


def test_outputs_are_those_of_rounded_inputs():
    model = quantize(keras.Sequential([keras.Input([6]), keras.layers.Dense(3)]))
    seen = np.random.default_rng(1).normal(size=[50, 6]).astype(np.float32)
    converted = inq.convert(model, activation_bits=4, calibration=seen)
    numbers = 2 * seen[:7]
    rounded = reference.fake_quant(numbers, seen.min(), seen.max(), 4)
    np.testing.assert_allclose(
        converted(numbers), rounded @ model.layers[0].kernel.numpy(), atol=1e-5
    )


@pytest.mark.parametrize(
    "given",
    [
        lambda images: images,
        lambda images: tf.data.Dataset.from_tensor_slices(images).batch(4),
        lambda images: tf.data.Dataset.from_tensor_slices((images, images)).batch(4),
    ],
)
def test_calibration_covers_the_activations(given):
    model = _sequential()
    model.get_layer("conv").bias.assign(np.linspace(-1, 3, 6))
    images = _images(model, 301)
    converted = inq.convert(
        model, activation_bits=8, calibration=given(images - np.float32(0.25))
    )
    fakes = _fakes(converted)
    for before, after in (("conv", None), ("separable", 1), ("dense", 3), ("last", 4)):
        numbers = images - np.float32(0.25)
        if after is not None:
            part = keras.Model(model.inputs[0], model.layers[after].output)
            numbers = np.asarray(part(numbers))
        expected = min(numbers.min(), 0), max(numbers.max(), 0)
        found = fakes[f"{before}_input"].get_weights()
        np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("kind", [dict, list])
def test_of_several_inputs(kind):
    inputs = {name: keras.Input([3], name=name) for name in ("a", "b")}
    outputs = keras.layers.Dense(2, name="of_a")(inputs["a"])
    outputs += keras.layers.Dense(2, name="of_b")(inputs["b"])
    numbers = {"a": np.full([2, 3], 3.0), "b": np.full([2, 3], -2.0)}
    if kind is list:
        inputs, numbers = list(inputs.values()), list(numbers.values())
    model = keras.Model(inputs, outputs)
    fakes = _fakes(inq.convert(model, activation_bits=8, calibration=numbers))
    ranges = {name: each.get_weights() for name, each in fakes.items()}
    assert ranges == {"of_a_input": [0, 3], "of_b_input": [-2, 0]}


def test_a_model_simulates_after_its_training_until_it_is_saved(tmp_path):
    model, images, targets, steps = _trained("sequential", run_eagerly=True)
    rounded = model(images).numpy()
    before = [each.get_weights() for each in _fakes_of_training(model)]
    model.export(tmp_path / "exported", verbose=False)
    exported = tf.saved_model.load(tmp_path / "exported")
    np.testing.assert_allclose(exported.serve(images), rounded, rtol=0, atol=1e-5)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    _assert_equal(loaded(images), inq.convert(model)(images))
    model.fit(images, targets, 4, 1, verbose=0)
    assert [each.get_weights() for each in _fakes_of_training(model)] == before
    model.fit(3 * images, targets, 4, 1, verbose=0, callbacks=[steps])
    assert [each.get_weights() for each in _fakes_of_training(model)] != before
    other = inq.IncrementalQuantization(model, 4, (1,), activation_bits=2)
    model.fit(images, targets, 4, 1, verbose=0, callbacks=[other])
    assert {each.bits for each in _fakes_of_training(model)} == {2}
    converted = inq.convert(model, activation_bits=2)
    np.testing.assert_allclose(converted(images), model(images), rtol=0, atol=1e-5)


def _fakes_of_training(model):
    calls = [layer.call for layer in model.layers if hasattr(layer.call, "learned")]
    return [each for call in calls for side in call.learned.sides for each in side]


def test_ranges_follow_the_batches():
    model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    steps = inq.IncrementalQuantization(model, 4, (1,), activation_bits=8)
    numbers = np.array([[-1.0], [4.0], [-3.0], [8.0]])
    model.fit(*(numbers, numbers, 2, 1), shuffle=False, verbose=0, callbacks=[steps])
    (fake,) = _fakes(inq.convert(model, activation_bits=8)).values()
    # Of the first batch, and a tenth of the way from there to the second.
    np.testing.assert_allclose(fake.get_weights(), [-1.2, 4.4], rtol=1e-6)


def test_ranges_that_the_optimizer_learns():
    """A copy with calibrated ranges is a model to train like any other."""
    model = _sequential()
    images = _images(model)
    copy = inq.convert(model, activation_bits=8, calibration=images)
    before = [each.get_weights() for each in _fakes(copy).values()]
    copy.compile(keras.optimizers.SGD(0.01), "mse")
    steps = inq.IncrementalQuantization(copy, 4, (0.5, 1))
    copy.fit(images, np.ones([9, 3]), 4, 2, verbose=0, callbacks=[steps])
    converted = inq.convert(copy, 4)
    learned = [each.get_weights() for each in _fakes(converted).values()]
    assert learned != before
    assert learned == [each.get_weights() for each in _fakes(copy).values()]
    kinds = {type(each).__name__ for each in converted.layers}
    assert {"FakeQuant", "InqConv2D", "InqDense"} <= kinds
    steps = inq.IncrementalQuantization(copy, steps=(1,), activation_bits=8)
    with pytest.raises(ValueError, match="has FakeQuant conv_input, whose range tra"):
        copy.fit(images, np.ones([9, 3]), 4, 2, verbose=0, callbacks=[steps])


def test_reports_name_the_bits():
    model = quantize(_sequential())
    found = inq.report(model, activation_bits=8)
    assert [each.activation_bits for each in found] == [8, None, 8, 8, 8]
    header, *rows = str(found).splitlines()
    assert header.split()[3:5] == ["bits", "activations"]
    assert rows[0].split()[3:5] == ["4", "8"]
    assert "activations" not in str(inq.report(model))
    converted = inq.convert(model, activation_bits=6, calibration=_images(model))
    bits = {each.kind: each.activation_bits for each in inq.report(converted)}
    assert bits["FakeQuant"] == 6 and bits["InqDense"] is None


class _Own(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(2)

    def call(self, inputs):
        return self.dense(inputs)


def test_mistakes_are_named():
    model = _sequential()
    images = _images(model)
    for arguments, text in (
        (
            {"activation_bits": 9},
            "activation_bits must be an integer from 2 to 8, got 9",
        ),
        (
            {"calibration": images},
            "calibration needs activation_bits or routing_bits, got None",
        ),
        (
            {"activation_bits": 8},
            "activation_bits needs ranges, and .*conv has none: gi",
        ),
        (
            {"activation_bits": 8, "calibration": 3},
            "calibration: it must be arrays or a tf",
        ),
        (
            {"activation_bits": 8, "calibration": images[:0]},
            "conv_input: .* no numbers",
        ),
        (
            {"activation_bits": 8, "calibration": np.inf + images},
            "conv_input: .* finite",
        ),
    ):
        with pytest.raises(ValueError, match=text):
            inq.convert(model, **arguments)
    text = "IncrementalQuantization: activation_bits must be an integer from 2 to 8"
    with pytest.raises(ValueError, match=text):
        inq.IncrementalQuantization(model, activation_bits=1)
    own = _Own()
    own.compile("sgd", "mse")
    own(np.ones([2, 3]))
    steps = inq.IncrementalQuantization(own, steps=(1,), activation_bits=8)
    with pytest.raises(ValueError, match=r"activation_bits: .* must be Sequential, f"):
        own.fit(np.ones([2, 3]), np.ones([2, 2]), verbose=0, callbacks=[steps])
