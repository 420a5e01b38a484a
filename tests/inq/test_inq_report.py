# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""report and the warning of convert: what becomes of each layer, and why not."""

import warnings

import keras
import numpy as np
import pytest

from tf_capsops import inq, layers, models


def _quantized(*model_layers, bits=4):
    model = keras.Sequential(model_layers, name="net")
    for _, kernel in inq.kernels.layers_and_kernels(model):
        random = np.random.default_rng(1).normal(size=kernel.shape)
        kernel.assign(inq.quantize(random, bits))
    return model


def _by_name(model, bits=None):
    return {each.layer.split("/")[-1]: each for each in inq.report(model, bits)}


def test_numbers_of_each_layer():
    model = _quantized(
        keras.Input([9, 9, 4]),
        keras.layers.SeparableConv2D(6, 3, depth_multiplier=2, name="separable"),
        keras.layers.BatchNormalization(name="norm"),
        keras.layers.ReLU(name="no_weights"),
        keras.layers.DepthwiseConv2D(3, use_bias=False, name="depthwise"),
        layers.PrimaryCaps(2, 4, 3, name="primary"),
        keras.layers.Reshape([-1, 4]),
        keras.layers.Conv1DTranspose(3, 2, name="line"),
    )
    found = _by_name(model, bits=5)
    rows = {
        name: (each.becomes, each.bits, each.weights, each.bytes_before)
        for name, each in found.items()
    }
    assert rows == {
        "separable": ("InqDepthwiseConv2D, InqConv2D", 5, 72 + 48, 4 * (120 + 6)),
        "norm": (None, None, 0, 4 * 24),
        "depthwise": ("InqDepthwiseConv2D", 5, 54, 4 * 54),
        "primary": ("InqConv2D", 5, 9 * 6 * 8, 4 * (9 * 6 * 8 + 8)),
        "line": (None, None, 2 * 4 * 3, 4 * (24 + 3)),
    }
    after = {name: each.bytes_after for name, each in found.items()}
    assert after == {
        "separable": 45 + 4 + 30 + 4 + 24,
        "norm": 4 * 24,
        "depthwise": 34 + 4,
        "primary": 270 + 4 + 32,
        "line": 4 * 27,
    }
    with pytest.warns(UserWarning, match="convert: "):
        converted = inq.convert(model, bits=5)
    again = inq.report(converted)
    assert all(each.becomes == each.kind for each in again if each.bits)
    for field in ("weights", "bytes_before", "bytes_after"):
        totals = [
            sum(getattr(each, field) for each in report)
            for report in (again, found.values())
        ]
        assert totals[0] == totals[1]


class _Own(keras.layers.Conv2D):
    pass


def test_reasons():
    model = _quantized(
        keras.Input([9, 9, 4]),
        keras.layers.Conv2D(4, 3, groups=2, name="groups"),
        _Own(3, 2, padding="same", name="own"),
        keras.layers.Conv2D(4, 3, name="unfinished"),
        keras.layers.Reshape([25, 4]),
        keras.layers.Bidirectional(keras.layers.GRU(2), name="both_ways"),
        keras.layers.Dense(3, name="wide"),
        keras.layers.LayerNormalization(name="norm"),
    )
    kernel = model.get_layer("unfinished").kernel
    kernel.assign(kernel.numpy() + np.eye(3, 4))
    left = np.count_nonzero(~np.isin(np.abs(kernel), [0, *2.0 ** np.arange(-9, 9)]))
    model.get_layer("wide").kernel.assign(np.resize(2.0 ** -np.arange(5), [4, 3]))
    reasons = {name: each.why_not for name, each in _by_name(model, bits=4).items()}
    assert 0 < left < 50
    assert reasons == {
        "groups": "groups is 2: InqConv2D has no groups",
        "own": "no layer holds codes for _Own",
        "unfinished": f"{left} of 108 weights of kernel are not quantized: neither "
        "zero nor a power of two",
        "both_ways": "no layer holds codes for Bidirectional",
        "wide": "its weights need 5 bits, more than 4",
        "norm": "it has no kernel",
    }
    assert _by_name(model)["wide"].bits == 5


def test_primary_caps_of_channels_first_have_codes_if_asked():
    caps = layers.PrimaryCaps(2, 4, 3, data_format="channels_first", name="caps")
    model = _quantized(keras.Input([1, 8, 8]), caps)
    with pytest.warns(UserWarning, match="caps: data_format is channels_first"):
        (converted,) = inq.convert(model).layers
    assert converted.data_format == "channels_first" and converted.bits is None
    (converted,) = inq.convert(model, all_kinds=True).layers
    assert converted.data_format == "channels_first" and converted.bits == 4
    images = np.random.default_rng(2).normal(size=[2, 1, 8, 8]).astype(np.float32)
    np.testing.assert_allclose(converted(images), caps(images), atol=1e-6)


def test_channels_first_is_a_reason():
    conv = keras.layers.Conv2D(4, 3, data_format="channels_first", name="first")
    inputs = keras.Input([2, 5, 5])
    model = keras.Model(inputs, conv(inputs))
    (only,) = inq.report(model)
    assert only.why_not == "data_format is channels_first: codes need channels_last"


def test_prints_a_table():
    model = _quantized(
        keras.Input([4, 8]),
        keras.layers.Dense(1000, name="dense"),
        keras.layers.Conv1DTranspose(2, 3, name="line"),
    )
    lines = str(inq.report(model)).splitlines()
    reason = "no layer holds codes for Conv1DTranspose"
    assert [line.split() for line in lines] == [
        ["layer", "kind", "becomes", "bits", "bytes", "after"],
        ["net/dense", "Dense", "InqDense", "4", "36,000", "8,004"],
        ["net/line", "Conv1DTranspose", *["24,008"] * 2, *reason.split()],
        ["in", "all", "60,008", "32,012"],
    ]
    assert (
        len(
            {
                line.find(number) + len(number)
                for line, number in zip(lines, ("bytes", "36,000", "24,008", "60,008"))
            }
        )
        == 1
    )


def test_convert_warns_of_the_largest_layers_that_stay():
    model = _quantized(
        keras.Input([30, 2]),
        *(
            keras.layers.Conv1DTranspose(each, 2, name=f"line{each}")
            for each in (2, 9, 3, 4, 5)
        ),
        keras.layers.Dense(4),
    )
    text = (
        r"convert: 5 of 6 layers with kernels keep floating-point weights, 740 of the "
        r"model's 836 bytes \(net/line3: no layer .*; net/line9: .*; net/line5: .*; "
        r"and 2 more\); tf_capsops.inq.report lists every layer"
    )
    with pytest.warns(UserWarning, match=text) as seen:
        inq.convert(model)
    assert len(seen) == 1 and seen[0].filename == __file__


def test_convert_is_quiet_where_every_kernel_has_codes():
    model = _quantized(
        keras.Input([9, 9, 2]),
        keras.layers.SeparableConv2D(3, 3),
        keras.layers.BatchNormalization(),
        keras.layers.Flatten(),
        keras.layers.Dense(2),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        inq.convert(inq.convert(model))


def test_a_training_that_stopped_early_is_said():
    model = _quantized(keras.Input([4]), keras.layers.Dense(8, name="dense"))
    model.layers[0].kernel.assign(np.random.default_rng(1).normal(size=[4, 8]))
    model.compile(keras.optimizers.SGD(0.0), "mse")
    steps = inq.IncrementalQuantization(model, bits=4, steps=(0.5, 1))
    stop = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda *_: setattr(model, "stop_training", True)
    )
    with pytest.warns(UserWarning, match="ended after 1 of 2 steps"):
        model.fit(
            np.ones([4, 4]),
            np.ones([4, 8]),
            epochs=2,
            verbose=0,
            callbacks=[steps, stop],
        )
    with pytest.warns(
        UserWarning, match="net/dense: 16 of 32 weights of kernel are not quantized"
    ):
        converted = inq.convert(model)
    assert type(converted.layers[0]) is keras.layers.Dense


def test_a_capsnet_is_reported_as_it_is_converted():
    model = models.capsnet((28, 28, 1), 10, filters=8, primary_channels=2)
    found = {each.kind: each for each in inq.report(model)}
    asked = "DigitCaps holds codes only with all_kinds=True"
    assert found["DigitCaps"].why_not == asked
    every = {each.kind: each for each in inq.report(model, all_kinds=True)}
    assert "are not quantized" in every["DigitCaps"].why_not
    assert "are not quantized" in found["PrimaryCaps"].why_not


def test_other_models_are_refused():
    with pytest.raises(ValueError, match="report: the model must be Sequential, funct"):
        inq.report(_quantized(keras.Input([2]), keras.layers.Dense(2)).layers[0])
    with pytest.raises(ValueError, match="report: bits must be an integer from 2 to 8"):
        inq.report(_quantized(keras.Input([2]), keras.layers.Dense(2)), bits=9)
