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
