# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Layers with codes refuse weights that do not fit, whichever way they come."""

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_capsops.layers import InqConv2D, InqDense, InqDepthwiseConv2D


def _layer(**changes):
    """A layer whose last code is 8."""
    layer = InqConv2D(2, 1, bits=4, name="conv", **changes)
    layer.build([None, 5, 5, 3])
    return layer


def _codes(value=1):
    return np.full([1, 1, 3, 2], value, np.uint8)


_NOT_INTEGERS = [
    ([np.zeros(2), _codes(), 0.5], r"top_exponent must be integers .* got \[0.5\]"),
    ([np.zeros(2), _codes(), np.float32(1)], r"top_exponent must be .* got \[1.0\]"),
    ([np.zeros(2), _codes(), 2**31], r"top_exponent must be .* got \[2147483648\]"),
    ([np.zeros(2), _codes(9), 0], r"codes must be integers from 0 to 8, got \[9\]"),
    ([np.zeros(2), _codes() - 2.0, 0], r"codes must be .* got \[-1.0\]"),
    ([np.zeros(2), tf.fill([1, 1, 3, 2], 0.5), 0], r"codes must be .* got \[0.5\]"),
]


@pytest.mark.parametrize("weights, text", _NOT_INTEGERS)
def test_numbers_that_are_no_codes_are_refused(weights, text):
    layer = _layer()
    model = keras.Sequential([keras.Input([5, 5, 3]), layer])
    before = layer.get_weights()
    with pytest.raises(ValueError, match=f"InqConv2D conv: {text}"):
        layer.set_weights(weights)
    for now, then in zip(layer.get_weights(), before):
        np.testing.assert_array_equal(now, then)
    with pytest.raises(ValueError, match=f"InqConv2D conv: {text}"):
        model.set_weights([np.asarray(each) for each in weights])


def test_weights_that_fit_are_taken():
    layer = _layer()
    layer.set_weights([[0.5, 1.5], _codes(8), -3])
    np.testing.assert_array_equal(layer.kernel, np.full([1, 1, 3, 2], -(2.0**-6)))
    np.testing.assert_array_equal(layer.bias, [0.5, 1.5])


def test_too_many_and_too_few_weights_are_refused():
    bare, biased = _layer(use_bias=False), _layer()
    with pytest.raises(ValueError, match=r"\[codes, top_exponent\], got a list of 3"):
        bare.set_weights(biased.get_weights())
    with pytest.raises(
        ValueError, match=r"InqConv2D conv: .* \[bias, codes, top_exponent\], got .* 2"
    ):
        biased.set_weights(bare.get_weights())


def _edited(path, source, **changes):
    """Saves a layer's weights, changes some of them (None: deletes) and closes."""
    keras.Sequential([keras.Input([5, 5, 3]), source]).save_weights(path)
    with h5py.File(path, "r+") as file:
        store = file["layers/inq_conv2d/vars"]
        for name, value in changes.items():
            if name in store:
                del store[name]
            if value is not None:
                store[name] = value


@pytest.mark.parametrize(
    "use_bias, changes, text",
    [
        (False, {"bias": np.zeros(2)}, "hold codes, top_exponent for it, got bias, c"),
        (True, {"bias": None}, "hold bias, codes, top_exponent for it, got codes, top"),
        (True, {"bias": np.zeros(3)}, "bias must have shape .2,., got .3,."),
        (True, {"codes": None}, "must hold bias, codes, top_exponent for it, got bias"),
        (True, {"codes": np.zeros(3)}, "packed must be bytes or uint8"),
        (True, {"codes": np.full(3, 255, np.uint8)}, "must be 0 to 8, got 15"),
        (True, {"top_exponent": 0.5}, r"top_exponent must be integers .* got \[0.5\]"),
        (True, {"top_exponent": [1]}, "top_exponent must have shape .., got .1,."),
    ],
)
def test_files_that_do_not_fit_are_refused(tmp_path, use_bias, changes, text):
    path = tmp_path / "model.weights.h5"
    _edited(path, _layer(use_bias=use_bias), **changes)
    model = keras.Sequential([keras.Input([5, 5, 3]), _layer(use_bias=use_bias)])
    before = model.get_weights()
    with pytest.raises(ValueError, match=f"InqConv2D conv: .*{text}"):
        model.load_weights(path)
    for now, then in zip(model.get_weights(), before):
        np.testing.assert_array_equal(now, then)


def test_configs_that_do_not_fit_are_refused():
    config = _layer().get_config()
    for name, value in (("bits", 4.0), ("filters", 2.5)):
        with pytest.raises(TypeError, match=f"InqConv2D: {name} must be "):
            InqConv2D.from_config({**config, name: value})


@pytest.mark.parametrize("build", ["before", "after"])
def test_checkpoints_hold_an_int32(tmp_path, build):
    sources = _layer(), InqDepthwiseConv2D(1, bits=4)
    sources[1].build([None, 5, 5, 3])
    for exponent, layer in zip((-3, -(2**31)), sources):
        layer.top_exponent.assign(exponent)
    path = tf.train.Checkpoint(layers=list(sources)).write(str(tmp_path / "weights"))
    reader = tf.train.load_checkpoint(path)
    types = reader.get_variable_to_dtype_map()
    kept = {types[name] for name in types if "top_exponent" in name}
    assert kept == {tf.int32}
    copies = [type(layer).from_config(layer.get_config()) for layer in sources]
    if build == "before":
        for layer in copies:
            layer.build([None, 5, 5, 3])
    status = tf.train.Checkpoint(layers=copies).read(path)
    for layer in copies:
        if not layer.built:
            layer.build([None, 5, 5, 3])
    status.assert_consumed()
    for copy, layer in zip(copies, sources):
        for ours, theirs in zip(copy.get_weights(), layer.get_weights()):
            np.testing.assert_array_equal(ours, theirs)


def test_kernels_of_another_shape_are_refused():
    with pytest.raises(
        ValueError, match=r"kernel must have shape \(1, 1, 3, 2\), got \(3, 2\)"
    ):
        _layer().set_kernel(np.ones([3, 2]))


@pytest.mark.parametrize(
    "give",
    [
        lambda layer: layer.set_kernel(np.ones([3, 2])),
        lambda layer: layer.set_weights([]),
        lambda layer: layer.load_own_variables({}),
    ],
)
def test_weights_come_after_build(give):
    with pytest.raises(ValueError, match="InqDense new has no weights yet: build it"):
        give(InqDense(2, name="new"))
