# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Code books of each output channel: rounding, training, layers and files."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from quantized import assert_same

from tf_capsops import inq, layers
from tf_capsops.inq.kernels import channel_axes, layers_and_kernels


@pytest.mark.parametrize("axes", [(-1,), (0,), (1, 2), (-2, -1), (0, 1, 2)], ids=str)
@pytest.mark.parametrize("bits", [2, 3, 5])
def test_each_book_is_that_of_its_weights_alone(axes, bits):
    rng = np.random.default_rng(1)
    weights = rng.normal(size=(3, 4, 5)) * 2.0 ** rng.integers(-9, 9, (3, 4, 5))
    weights[1] = 0
    kept = [axis % 3 for axis in axes]
    first = np.moveaxis(weights, kept, range(len(kept)))
    sizes = first.shape[: len(kept)]
    codes, exponents = inq.encode(weights, bits, axes=axes)
    assert exponents.shape == sizes
    np.testing.assert_array_equal(exponents, inq.top_exponent(weights, axes))
    rounded = inq.quantize(weights, bits, axes=axes)
    np.testing.assert_array_equal(
        rounded, inq.decode(codes, bits, exponents, "float64", axes)
    )
    moved = np.moveaxis(rounded, kept, range(len(kept)))
    for place in np.ndindex(sizes):
        np.testing.assert_array_equal(moved[place], inq.quantize(first[place], bits))
        assert exponents[place] == inq.top_exponent(first[place])


def test_exponents_of_another_shape_are_refused():
    text = r"encode: top_exponent must be integers of shape \(4,\) for axes \(1,\), got"
    for wrong in (0, [1, 2], [0.5] * 4):
        with pytest.raises(ValueError, match=text):
            inq.encode(np.ones([3, 4]), 5, wrong, axes=(-1,))


@pytest.mark.parametrize(
    "axes", [(1, 0), (5,), (-4,), (0, 0), (0, -3), (0.5,), ("0",), 1, None], ids=str
)
def test_other_axes_are_refused(axes):
    codes, weights = np.zeros([3, 4, 5], np.uint8), np.ones([3, 4, 5])
    for owner, call in (
        ("top_exponent", lambda: inq.top_exponent(weights, axes)),
        ("encode", lambda: inq.encode(weights, 5, axes=axes)),
        ("encode", lambda: inq.quantize(weights, 5, axes=axes)),
        ("decode", lambda: inq.decode(codes, 5, 0, axes=axes)),
    ):
        with pytest.raises(ValueError) as caught:
            call()
        assert str(caught.value) == (
            f"{owner}: axes must be a tuple of some of 3 axes in ascending order, each "
            f"once, got {axes!r}"
        )


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16", "float32"])
@pytest.mark.parametrize("kind", ["conv", "depthwise", "dense"])
def test_sums_are_scaled_before_they_are_rounded(policy, kind):
    """Weights of 2^-6: their codes alone give sums of 96,000, past float16."""
    make = {
        "conv": lambda: layers.InqConv2D(2, 1, bits=3, per_channel=True, dtype=policy),
        "depthwise": lambda: layers.InqDepthwiseConv2D(
            1, bits=3, per_channel=True, dtype=policy
        ),
        "dense": lambda: layers.InqDense(2, bits=3, per_channel=True, dtype=policy),
    }[kind]
    layer, images = make(), np.full([1, 1, 1, 96], 1000.0, np.float32)
    layer.build(images.shape)
    shape = layer.codes.shape
    scales = np.array([2.0**-6, 2.0**-20])
    layer.set_kernel(
        np.broadcast_to(scales, shape)
        if kind != "depthwise"
        else np.resize(scales, shape)
    )
    sums = 1 if kind == "depthwise" else 96
    expected = np.resize(1000.0 * sums * scales, [layer(images).shape[-1]])
    found = layer(images)[0, 0, 0]
    assert found.dtype == layer.compute_dtype
    np.testing.assert_array_equal(found, tf.cast(expected, found.dtype))


def test_channels_of_zeros_wait_for_their_exponents():
    layer = keras.layers.Dense(4, use_bias=False, kernel_initializer="zeros")
    layer.build([None, 2])
    fixed = inq.kernels.PartlyFixedKernel(layer, layer.kernel, 3, per_channel=True)
    fixed.fix(0.125)
    assert fixed.top_exponent is None
    layer.kernel.assign([[0, 1.0, 0, 0], [0, 0.3, 0, 0]])
    fixed.fix(0.25)
    np.testing.assert_array_equal(fixed.top_exponent, [0, 0, 0, 0])
    # One free channel turns small, one large, and one stays as it is.
    layer.kernel.assign([[0, 1.0, 0.01, 0], [0, 9.0, 0.003, 64.0]])
    fixed.fix(1.0)
    np.testing.assert_array_equal(fixed.top_exponent, [0, 0, -7, 6])
    np.testing.assert_array_equal(
        layer.kernel, [[0, 1, 2.0**-7, 0], [0, 1, 2.0**-8, 64]]
    )


def _quantized(*stack, bits=3):
    """Returns a model whose channels differ in scale, quantized by channel."""
    model, rng = keras.Sequential(stack), np.random.default_rng(1)
    for layer, kernel in layers_and_kernels(model):
        axes = channel_axes(layer, kernel)
        kept = [axis % len(kernel.shape) for axis in axes]
        sizes = [s if a in kept else 1 for a, s in enumerate(kernel.shape)]
        weights = rng.normal(size=kernel.shape) * 2.0 ** rng.integers(-4, 1, sizes)
        kernel.assign(inq.quantize(weights, bits, axes=axes))
    return model


_STACKS = {
    "keras": lambda: (
        keras.Input([8, 8, 3]),
        keras.layers.Conv2D(4, 3, activation="relu", bias_initializer="ones"),
        keras.layers.SeparableConv2D(5, 2, depth_multiplier=2),
        keras.layers.DepthwiseConv2D(2),
        keras.layers.Conv2DTranspose(3, 2),
        keras.layers.Reshape([-1, 3]),
        keras.layers.Conv1D(4, 3),
        keras.layers.Dense(6),
    ),
    "capsnet": lambda: (
        keras.Input([8, 8, 2]),
        layers.PrimaryCaps(2, 4, 3),
        layers.DigitCaps(3, 5),
    ),
    "convolutions": lambda: (
        keras.Input([6, 6, 2, 3, 4]),
        layers.CapsuleConv2D(4, (3, 5), 3),
        keras.layers.Reshape([4, 4, 4, 15]),
        layers.SlimCaps2D(3, 4, 3, share_weights=False),
    ),
}


@pytest.mark.parametrize("name", _STACKS)
def test_layers(name, tmp_path):
    model = _quantized(*_STACKS[name]())
    one_book = inq.report(model, 3, all_kinds=True)
    assert not all(each.bits == 3 for each in one_book if each.weights)
    report = inq.report(model, per_channel=True, all_kinds=True)
    assert all(each.bits == 3 for each in report if each.weights)
    converted = inq.convert(model, 3, per_channel=True, all_kinds=True)
    shape = model.input_shape[1:]
    inputs = tf.random.stateless_normal((2, *shape), [3, 4])
    assert_same(model, converted, inputs)
    converted.save(tmp_path / "codes.keras")
    loaded = keras.saving.load_model(tmp_path / "codes.keras")
    np.testing.assert_array_equal(loaded(inputs), converted(inputs))
    before = sum(each.bytes_after for each in report)
    assert before == sum(each.bytes_after for each in inq.report(loaded))


def test_training():
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input([6, 6, 2]),
            layers.PrimaryCaps(2, 4, 3),
            layers.DigitCaps(3, 4),
            layers.Length(),
        ]
    )
    model.compile(keras.optimizers.Adam(0.01), "mse", run_eagerly=True)
    steps = inq.IncrementalQuantization(model, 3, (0.5, 1), per_channel=True)
    rng = np.random.default_rng(1)
    model.fit(
        rng.random((4, 6, 6, 2)),
        rng.random((4, 3)),
        epochs=2,
        verbose=0,
        callbacks=[steps],
    )
    for each in steps.kernels:
        kernel = each.variable.numpy()
        fixed = inq.quantize(kernel, 3, each.top_exponent, each.axes)
        np.testing.assert_array_equal(kernel, fixed)
    assert [each.top_exponent.shape for each in steps.kernels] == [(8,), (3, 4)]
    converted = inq.convert(model, 3, per_channel=True, all_kinds=True)
    assert all(each.bits == 3 for each in inq.report(converted) if each.weights)
