# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Layers that keep their kind and hold codes: the same layer, with a smaller kernel."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from quantized import quantize

import tf_capsops
from tf_capsops import inq, layers
from tf_capsops.bench import cases
from tf_capsops.bench.layers import CASES, made

_BITS = 4
# The layers of the benchmark that hold codes themselves, or whose convolution does.
_CASES = [
    case
    for case in CASES
    if cases.LAYERS_SMOKE in case.uses and "CPU" in case.devices
    if case.attributes["layer"] not in ("Length", "Mask", "Conv2D")
    if not case.attributes["layer"].startswith("Inq")
]
# Float results of a convolution by another kernel differ by the rounding of sums.
_OTHER_KERNEL = "PrimaryCaps", "PoseCaps"

every_layer = pytest.mark.parametrize("case", _CASES, ids=lambda case: case.name)


def _model(case):
    inputs = [keras.Input(shape) for shape in case.attributes["inputs"]]
    return keras.Model(inputs, made(case)(inputs if len(inputs) > 1 else inputs[0]))


def _inputs(case, batch=3):
    rng = np.random.default_rng(1)
    shapes = case.attributes["inputs"]
    return [tf.constant(rng.random((batch, *shape), np.float32)) for shape in shapes]


def _assert_same(case, ours, truth):
    for one, other in zip(tf.nest.flatten(ours), tf.nest.flatten(truth), strict=True):
        if case.attributes["layer"] in _OTHER_KERNEL:
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
        else:
            np.testing.assert_array_equal(one, other)
        assert np.abs(other).max() > 0


def _only_layer(model):
    return next(each for each in model.layers if each.weights)


@every_layer
def test_outputs_files_and_configs(case, tmp_path):
    model = quantize(_model(case), _BITS)
    converted = inq.convert(model, _BITS, all_kinds=True)
    inputs = _inputs(case)
    _assert_same(case, converted(inputs), model(inputs))
    layer, plain = _only_layer(converted), _only_layer(model)
    if type(plain) is layers.PrimaryCaps:  # which becomes a model
        layer, plain = layer.layers[0], plain.conv
    else:
        assert type(layer) is type(plain)
    assert layer.bits == _BITS
    assert "bits" not in plain.get_config() and layer.get_config()["bits"] == _BITS
    converted.save(tmp_path / "codes.keras")
    loaded = keras.saving.load_model(tmp_path / "codes.keras")
    _assert_same(case, loaded(inputs), converted(inputs))
    for ours, theirs in zip(loaded.get_weights(), converted.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    report = next(each for each in inq.report(loaded) if each.bits)
    (before,) = inq.report(model, _BITS, all_kinds=True)
    assert (report.becomes, report.bits) == (before.becomes, _BITS)
    assert report.bytes_after == before.bytes_after < before.bytes_before
    (kernel,) = (kernel for _, kernel in inq.kernels.layers_and_kernels(model))
    codes = [each for each in layer.weights if each.name == "codes"]
    assert [(each.dtype, each.shape) for each in codes] == [("uint8", kernel.shape)]
    assert len(layer.weights) == len(plain.weights) + 1


@every_layer
def test_gradients_reach_inputs_and_other_weights(case):
    model = quantize(_model(case), _BITS)
    converted = inq.convert(model, _BITS, all_kinds=True)
    inputs, found = _inputs(case), []
    for each in (model, converted):
        kernels = {id(kernel) for _, kernel in inq.kernels.layers_and_kernels(each)}
        others = [v.value for v in each.trainable_variables if id(v) not in kernels]
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            loss = sum(
                tf.reduce_sum(tf.square(output) + output)
                for output in tf.nest.flatten(each(inputs))
            )
        found.append(tape.gradient(loss, [*inputs, *others]))
    for one, other in zip(*found, strict=True):
        assert (one is None) == (other is None)
        if one is None:  # activations that a rule does not look at
            continue
        scale = np.abs(other).max()
        np.testing.assert_allclose(one, other, atol=1e-5 * scale, rtol=1e-5)


@every_layer
@pytest.mark.parametrize("policy", ["mixed_bfloat16", "float64"])
def test_policies(case, policy):
    keras.config.set_dtype_policy(policy)
    try:
        model = quantize(_model(case), _BITS)
        converted = inq.convert(model, _BITS, all_kinds=True)
        layer = _only_layer(converted)
        inputs = [tf.cast(each, layer.compute_dtype) for each in _inputs(case)]
        for ours, theirs in zip(
            tf.nest.flatten(converted(inputs)), tf.nest.flatten(model(inputs))
        ):
            assert ours.dtype == theirs.dtype
            tolerance = 0.02 if policy == "mixed_bfloat16" else 1e-6
            ours, theirs = (np.asarray(t).astype(np.float64) for t in (ours, theirs))
            scale = np.abs(theirs).max()
            np.testing.assert_allclose(ours, theirs, atol=tolerance * scale)
    finally:
        keras.config.set_dtype_policy("float32")


@every_layer
def test_portable(case, tmp_path):
    model = quantize(_model(case), _BITS)
    converted = inq.convert(model, _BITS, all_kinds=True)
    inputs = _inputs(case)
    with tf_capsops.portable():
        found, expected = converted(inputs), model(inputs)
    _assert_same(case, found, expected)


@pytest.mark.ci
@every_layer
def test_xla(case):
    converted = inq.convert(quantize(_model(case), _BITS), _BITS, all_kinds=True)
    inputs = _inputs(case)
    compiled = tf.function(converted, jit_compile=True, autograph=False)
    for one, other in zip(
        tf.nest.flatten(compiled(inputs)), tf.nest.flatten(converted(inputs))
    ):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def _digits(**changes):
    layer = layers.DigitCaps(3, 2, bits=3, name="digits", **changes)
    layer.build([None, 5, 4])
    return layer


def test_a_new_layer_starts_with_quantized_weights_of_its_initializer():
    layer = _digits(kernel_initializer=keras.initializers.RandomNormal(seed=1))
    plain = layers.DigitCaps(
        3, 2, kernel_initializer=keras.initializers.RandomNormal(seed=1)
    )
    plain.build([None, 5, 4])
    np.testing.assert_array_equal(layer.kernel, inq.quantize(plain.kernel, 3))
    assert layer.kernel.shape == plain.kernel.shape
    assert layer.kernel.dtype == "float32"


def test_kernels_are_set_and_weights_checked():
    layer = _digits()
    weights = np.random.default_rng(1).normal(size=layer.kernel.shape)
    layer.set_kernel(weights)
    np.testing.assert_array_equal(layer.kernel.numpy(), inq.quantize(weights, 3))
    with pytest.raises(
        ValueError, match="DigitCaps digits: the kernel must have shape"
    ):
        layer.set_kernel(weights[:1])
    _, exponent, logits = layer.get_weights()
    with pytest.raises(ValueError, match="codes must be integers from 0 to 4, got"):
        layer.set_weights([np.full(weights.shape, 5), exponent, logits])
    with pytest.raises(
        ValueError, match=r"\[codes, top_exponent, logits\], got a list"
    ):
        layer.set_weights([exponent])
    plain = layers.DigitCaps(3, 2, name="plain")
    with pytest.raises(ValueError, match="DigitCaps plain has no weights yet"):
        plain.set_kernel(weights)
    plain.build([None, 5, 4])
    with pytest.raises(ValueError, match="plain holds no codes: assign to its kernel"):
        plain.set_kernel(weights)
    with pytest.raises(
        ValueError, match="DigitCaps: bits must be an integer from 2 to"
    ):
        layers.DigitCaps(3, 2, bits=9)


def test_checkpoints(tmp_path):
    sources = [_digits(), _digits()]
    sources[0].top_exponent.assign(-7)
    path = tf.train.Checkpoint(layers=sources).write(str(tmp_path / "weights"))
    copies = [_digits(), _digits()]
    tf.train.Checkpoint(layers=copies).read(path).assert_consumed()
    for copy, source in zip(copies, sources):
        for ours, theirs in zip(copy.get_weights(), source.get_weights()):
            np.testing.assert_array_equal(ours, theirs)


def test_a_saved_model_holds_codes(tmp_path):
    model = keras.Sequential([keras.Input([5, 4]), layers.DigitCaps(3, 2, bits=4)])
    model.export(tmp_path / "saved", verbose=False)
    saved = tf.saved_model.load(tmp_path / "saved")
    inputs = np.random.default_rng(1).random((2, 5, 4), np.float32)
    np.testing.assert_array_equal(saved.serve(inputs), model(inputs))
    assert tf.uint8 in {each.dtype for each in saved.variables}


def test_a_capsnet_of_5_bits_is_small(tmp_path):
    """A byte a weight in memory, five bits in the file."""
    model = quantize(tf_capsops.models.capsnet((28, 28, 1), 10), 5)
    converted = inq.convert(model, 5, all_kinds=True)
    weights = sum(
        kernel.numpy().size for _, kernel in inq.kernels.layers_and_kernels(model)
    )
    sizes = [tf.size(v.value).numpy() * v.value.dtype.size for v in converted.weights]
    assert weights <= sum(sizes) < 1.01 * weights
    converted.save(tmp_path / "codes.keras")
    assert (tmp_path / "codes.keras").stat().st_size < 5.25e6 < 33e6 / 6
