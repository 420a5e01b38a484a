# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Layers that keep their kind and hold codes: the same layer, with a smaller kernel."""

import h5py
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
_OTHERS = "Length", "Mask", "FakeQuant", "Conv2D", "Conv3D"
# The layers of the benchmark that hold codes themselves, or whose convolution does.
_CASES = [
    case
    for case in CASES
    if cases.LAYERS_SMOKE in case.uses and "CPU" in case.devices
    if case.attributes["layer"] not in _OTHERS
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


def test_a_kernel_of_codes_is_a_tensor():
    """With all that a tensor has, and nothing that would not reach the codes."""
    layer = _digits()
    weights = np.random.default_rng(1).normal(size=layer.kernel.shape)
    layer.set_kernel(weights)
    rounded = inq.quantize(weights.astype(np.float32), 3)
    assert tf.is_tensor(layer.kernel) and layer.kernel.dtype == tf.float32
    np.testing.assert_array_equal(layer.kernel[1:3, ..., 0], rounded[1:3, ..., 0])
    np.testing.assert_array_equal(2 * layer.kernel - 1, 2 * rounded - 1)
    np.testing.assert_array_equal(keras.ops.sum(layer.kernel), tf.reduce_sum(rounded))
    np.testing.assert_array_equal(layer.kernel.numpy(), rounded)
    assert not hasattr(layer.kernel, "assign")
    with pytest.raises(AttributeError, match="digits holds codes: call set_kernel"):
        layer.kernel = rounded
    half = _digits(dtype="mixed_float16")
    assert half.kernel.dtype == tf.float16


@pytest.mark.parametrize(
    "make",
    [
        lambda **books: layers.DigitCaps(3, 2, **books),
        lambda **books: layers.DenseCaps(3, (2, 2), **books),
        lambda **books: layers.PrimaryCaps(3, 2, 3, **books),
        lambda **books: layers.PoseCaps(3, **books),
        lambda **books: layers.CapsuleConv2D(3, (2, 2), 3, **books),
        lambda **books: layers.SlimCaps2D(3, 2, 3, **books),
        lambda **books: layers.HighOrderConv2D(3, **books),
        lambda **books: layers.InqConv2D(3, 3, **books),
        lambda **books: layers.InqDense(3, **books),
        lambda **books: layers.InqDepthwiseConv2D(3, **books),
        lambda **books: layers.InqConv1D(3, 3, **books),
        lambda **books: layers.InqConv3DTranspose(3, 3, **books),
    ],
)
def test_arguments_of_code_books_are_those_of_all_layers(make):
    layer = make(bits=3, per_channel=True)
    kind = type(layer)
    copy = kind.from_config(layer.get_config())
    assert (copy.bits, copy.per_channel) == (3, True)
    always = kind.__name__.startswith("Inq")
    plain = make()
    assert (plain.bits, plain.per_channel) == (5 if always else None, False)
    assert ("bits" in plain.get_config()) == always
    for books, text in (
        ({"bits": 9}, "bits must be an integer from 2 to 8, got 9"),
        ({"bits": "5"}, "bits must be an integer from 2 to 8, got '5'"),
        ({"bits": 5, "per_channel": 2}, "per_channel must be True or False, got 2"),
    ):
        with pytest.raises(ValueError, match=f"{kind.__name__}: {text}"):
            make(**books)
    if not always:
        text = "per_channel is of code books: give bits from 2 to 8, too, got None"
        with pytest.raises(ValueError, match=f"{kind.__name__}: {text}"):
            make(per_channel=True)


def _own_activation(numbers):
    return numbers * 2


def test_activations_that_are_not_registered():
    """Those of finished layers are kept, as convolutions keep theirs."""
    inputs = keras.Input([8, 6, 2])
    capsules = keras.layers.Reshape([8, 6, 1, 1, 2])(inputs)
    capsules = layers.CapsuleConv2D(2, (1, 2), 3, activation=_own_activation)(capsules)
    lines = keras.layers.Reshape([-1, 4])(capsules)
    lines = keras.layers.Conv1D(2, 3, activation=_own_activation)(lines)
    image = layers.HighOrderConv2D(3, filter_activation=_own_activation)(inputs)
    image = keras.layers.Conv2D(2, 3, activation=_own_activation)(image)
    model = quantize(keras.Model(inputs, [lines, image]))
    converted = inq.convert(model, all_kinds=True)
    assert all(each.bits for each in inq.report(converted))
    images = np.random.default_rng(1).random((2, 8, 6, 2), np.float32)
    for one, other in zip(converted(images), model(images), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


class _Unknown(keras.initializers.Initializer):
    def __call__(self, shape, dtype=None):
        return keras.ops.ones(shape, dtype)


@pytest.mark.filterwarnings("ignore:convert: ")
@pytest.mark.parametrize(
    "layer",
    [
        keras.layers.Conv1D(2, 3, activation=_own_activation, name="own"),
        layers.PrimaryCaps(2, 2, 3, flatten=False, kernel_initializer=_Unknown()),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_what_cannot_be_copied_is_named(layer):
    """An unfinished layer, which is copied; and one whose convolution has a config."""
    shape = [9, 2] if layer.name == "own" else [8, 8, 2]
    model = keras.Sequential([keras.Input(shape), layer])
    if layer.name != "own":
        quantize(model)
    text = f"cannot be copied: {type(layer).__name__} needs a get_config from whose"
    with pytest.raises(ValueError, match=f"convert: .*{layer.name} {text}"):
        inq.convert(model, all_kinds=True)


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


@pytest.mark.parametrize("per_channel", [False, True])
def test_the_report_gives_the_bytes_in_a_file(tmp_path, per_channel):
    inputs = keras.Input([9, 9, 2])
    features = keras.layers.Conv2D(3, 3, activation="relu")(inputs)
    classes = layers.DigitCaps(3, 5)(layers.PrimaryCaps(2, 4, 3)(features))
    model = quantize(keras.Model(inputs, classes))
    books = {"bits": 5, "per_channel": per_channel}
    converted = inq.convert(model, **books, all_kinds=True)
    converted.save_weights(tmp_path / "codes.weights.h5")
    sizes = []
    with h5py.File(tmp_path / "codes.weights.h5") as file:
        file.visititems(
            lambda _, each: (
                sizes.append(each.nbytes) if isinstance(each, h5py.Dataset) else None
            )
        )
    kernels = [kernel.numpy() for _, kernel in inq.kernels.layers_and_kernels(model)]
    assert [kernel.shape[-1] for kernel in kernels] == [3, 8, 4]
    packed = sum(-(-5 * kernel.size // 8) for kernel in kernels)
    others = sum(w.nbytes for w in model.get_weights()) - 4 * sum(
        kernel.size for kernel in kernels
    )
    channels = 3 + 8 + 3 * 5 if per_channel else 3
    assert sum(sizes) == packed + others + 4 * channels
    report = inq.report(model, **books, all_kinds=True)
    assert sum(each.bytes_after for each in report) == sum(sizes)


def test_weights_of_a_layer_without_codes_are_refused(tmp_path):
    plain = keras.Sequential([keras.Input([5, 4]), layers.DigitCaps(3, 2)])
    plain.save_weights(tmp_path / "plain.weights.h5")
    coded = keras.Sequential([keras.Input([5, 4]), _digits()])
    text = "the file must hold codes, logits, top_exponent for it, got 0, 1"
    with pytest.raises(ValueError, match=f"DigitCaps digits: {text}"):
        coded.load_weights(tmp_path / "plain.weights.h5")


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
