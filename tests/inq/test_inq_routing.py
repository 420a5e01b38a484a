# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Routing in few bits, in copies that convert makes."""

import keras
import numpy as np
import pytest
import small
import tensorflow as tf
from quantized import quantize

from tf_capsops import inq, layers, models, routing
from tf_capsops.layers.slim_caps import SlimCaps

pytestmark = pytest.mark.filterwarnings("ignore:convert: ")

_IMAGES = np.random.default_rng(5).random((9, 8, 8, 1), np.float32)


def _capsnet():
    keras.utils.set_random_seed(1)
    return small.capsnet(filters=16, primary_channels=4, decoder_units=(32,))


def _sequential(routed=None):
    routed = routed or layers.DigitCaps(3, 4, name="digits")
    return keras.Sequential(
        [
            keras.Input([8, 8, 1]),
            layers.PrimaryCaps(2, 4, 3, name="primary"),
            routed,
            layers.Length(),
        ]
    )


def _routed(model):
    (found,) = inq.routing.routed(model)
    return found


def _assert_equal(found, expected):
    for ours, theirs in zip(*map(tf.nest.flatten, (found, expected)), strict=True):
        np.testing.assert_array_equal(ours, theirs)
        assert np.abs(theirs).max() > 0


def _error(found, expected):
    pairs = zip(*map(tf.nest.flatten, (found, expected)), strict=True)
    return max(np.abs(a - b).max() for a, b in pairs)


@pytest.mark.parametrize("activation_bits", [None, 8])
@pytest.mark.parametrize("all_kinds", [False, True])
def test_a_copy_routes_in_few_bits(tmp_path, activation_bits, all_kinds):
    model = quantize(_capsnet())
    errors = []
    for bits in (8, 2):
        copy = inq.convert(
            *(model, 4, False, all_kinds, activation_bits, _IMAGES),
            routing_bits=bits,
        )
        layer = _routed(copy)
        assert isinstance(layer, layers.DigitCaps) and layer.routing_bits == bits
        assert layer.bits == (4 if all_kinds else None)
        errors.append(_error(copy(_IMAGES), model(_IMAGES)))
        copy.save(tmp_path / "copy.keras")
        loaded = keras.saving.load_model(tmp_path / "copy.keras")
        _assert_equal(loaded(_IMAGES), copy(_IMAGES))
        again = inq.convert(copy, all_kinds=True)
        assert _routed(again).routing_bits == bits
        _assert_equal(again(_IMAGES), copy(_IMAGES))
    assert errors[0] < 0.05 < errors[1]


def test_in_two_calls_activations_keep_their_ranges():
    model = quantize(_sequential())
    first = inq.convert(
        *(model, 4), all_kinds=True, activation_bits=8, calibration=_IMAGES
    )
    second = inq.convert(
        first, all_kinds=True, routing_bits=4, calibration=_IMAGES[:3] / 2
    )
    ranges = [
        [each.get_weights() for each in copy.layers if type(each) is layers.FakeQuant]
        for copy in (first, second)
    ]
    assert ranges[0] == ranges[1] and len(ranges[0]) == 3
    # Calibration has seen what the rounded activations of the first copy cause.
    sequential = keras.Sequential([keras.Input([8, 8, 1]), *first.layers[:-3]])
    layer = layers.DigitCaps(3, 4, routing_bits=4)
    capsules = sequential(_IMAGES[:3] / 2)
    layer(capsules)
    layer.kernel.assign(model.layers[1].kernel)
    with layer.calibrating():
        layer(capsules)
    found = _routed(second).routing_ranges
    np.testing.assert_allclose(found, layer.routing_ranges, atol=1e-5)
    # And a further call calibrates anew.
    third = inq.convert(second, all_kinds=True, routing_bits=3, calibration=_IMAGES)
    assert _routed(third).routing_bits == 3
    assert not np.allclose(_routed(third).routing_ranges, found, atol=1e-3)


def test_other_layers_that_route():
    poses, activations = keras.Input([5, 2, 3]), keras.Input([5])
    rule = routing.Dynamic(iterations=2)
    dense = layers.DenseCaps(4, (2, 3), routing=rule, name="dense")
    model = keras.Model([poses, activations], dense([poses, activations]))
    random = np.random.default_rng(1)
    inputs = [random.normal(size=[7, 5, 2, 3]), random.random([7, 5])]
    copy = inq.convert(model, routing_bits=8, calibration=inputs)
    assert _routed(copy).routing_ranges.shape == (2, 4, 2)
    assert 0 < _error(copy(inputs), model(inputs)) < 0.05
    model = models.segcaps((8, 8, 1), 2, size="small")
    copy = inq.convert(model, routing_bits=8, calibration=_IMAGES)
    routed = [each for each in copy.network.layers if isinstance(each, SlimCaps)]
    assert inq.routing.routed(copy) == routed
    assert 0 < _error(copy(_IMAGES), model(_IMAGES)) < 0.05


def test_the_copy_trains_with_rounded_routing():
    model = inq.convert(
        _sequential(), activation_bits=8, routing_bits=4, calibration=_IMAGES
    )
    ranges = _routed(model).routing_ranges.numpy()
    before = _routed(model).kernel.numpy()
    model.compile("adam", "mse")
    steps = inq.IncrementalQuantization(model, 4, (0.5, 1))
    targets = np.eye(3)[np.arange(9) % 3]
    model.fit(_IMAGES, targets, epochs=2, verbose=0, callbacks=[steps])
    assert not np.array_equal(_routed(model).kernel, inq.quantize(before, 4))
    np.testing.assert_array_equal(_routed(model).routing_ranges, ranges)
    converted = inq.convert(model, 4, all_kinds=True)
    assert _routed(converted).bits == 4
    np.testing.assert_array_equal(_routed(converted).routing_ranges, ranges)
    assert _error(converted(_IMAGES), model(_IMAGES)) < 0.02


def test_reports_name_the_bits():
    model = quantize(_sequential())
    found = inq.report(model, all_kinds=True, routing_bits=5)
    assert [each.routing_bits for each in found] == [None, 5]
    header, *rows = str(found).splitlines()
    assert header.split()[3:5] == ["bits", "routing"]
    assert rows[1].split()[3:5] == ["4", "5"]
    assert "routing" not in str(inq.report(model))
    copy = inq.convert(model, routing_bits=3, calibration=_IMAGES)
    assert [each.routing_bits for each in inq.report(copy)] == [None, 3]


@keras.saving.register_keras_serializable("test")
class _Inside(keras.layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.digits = layers.DigitCaps(3, 4, name="digits")

    def call(self, inputs):
        return self.digits(inputs)


def test_mistakes_are_named():
    model = _sequential()
    given = {"calibration": _IMAGES}
    few = {"routing_bits": 4, **given}
    poses = keras.Sequential(
        [keras.Input([8, 8, 1]), layers.PoseCaps(2, (3, 3)), layers.ClassCaps(3)]
    )
    convolved = keras.Sequential([keras.Input([8, 8, 1]), keras.layers.Conv2D(2, 3)])
    for network, arguments, text in (
        (model, {"routing_bits": 9, **given}, "routing_bits must be an integer from 2"),
        (model, {"routing_bits": True, **given}, "routing_bits must be an integer"),
        (model, {"routing_bits": 4}, "routing_bits needs calibration, images such as"),
        (model, given, "calibration needs activation_bits or routing_bits, got None"),
        (model, {**few, "calibration": 3}, "calibration: it must be arrays or a tf"),
        (
            *(model, {**few, "calibration": _IMAGES[:0]}),
            "calibration: DigitCaps digits: calibration has no numbers",
        ),
        (
            *(model, {**few, "calibration": np.nan * _IMAGES}),
            "calibration: DigitCaps digits: numbers in routing must be finite",
        ),
        (poses, few, "routing_bits: ClassCaps class_caps.* routes by EM: only DigitCa"),
        (convolved, few, "routing_bits: no layer of the model routes capsules"),
        (
            *(_sequential(_Inside(name="inside")), few),
            "routing_bits: DigitCaps digits is inside of _Inside inside, which is",
        ),
    ):
        with pytest.raises(ValueError, match=f"convert: {text}"):
            inq.convert(network, **arguments)
    with pytest.raises(ValueError, match="report: routing_bits must be an integer fro"):
        inq.report(model, routing_bits=1)
