# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""FakeQuant against integers in float64, and as a Keras layer."""

import contextlib

import keras
import layer_testing
import numpy as np
import pytest
import tensorflow as tf
import tolerances
from reference import fake_quant as reference

import tf_capsops
from tf_capsops.layers import FakeQuant

RANGES = [(-1.0, 2.0), (0.0, 6.0), (-3.1, 0.0), (-0.3, 0.7), (1.0, 3.0), (-1e-3, 1e4)]
every_mode = pytest.mark.parametrize(
    "mode", [contextlib.nullcontext, tf_capsops.portable]
)


class LayersTest(layer_testing.TestCase):
    def test_a_range_that_is_learned(self):
        self.run_layer_test(
            FakeQuant,
            {"bits": 4},
            input_shape=(2, 3, 5),
            expected_output_shape=(2, 3, 5),
            expected_num_trainable_weights=2,
        )

    def test_a_range_that_follows(self):
        self.run_layer_test(
            FakeQuant,
            {"momentum": 0.5},
            input_shape=(7,),
            expected_output_shape=(7,),
            expected_num_non_trainable_weights=2,
        )


def _layer(lo, hi, bits, dtype="float32"):
    layer = FakeQuant(bits, dtype=dtype)
    layer.build(None)
    layer.set_weights([np.float32(lo), np.float32(hi)])
    return layer


def _between_ties(lo, hi, bits, dtype):
    """Numbers in and out of a range, none about halfway between two integers."""
    random = np.random.default_rng(1)
    scale, _ = reference.scale_and_zero_point(np.float32(lo), np.float32(hi), bits)
    steps = random.integers(-(2**bits) - 3, 2**bits + 3, [7, 11])
    numbers = (steps + random.uniform(-0.3, 0.3, [7, 11])) * scale
    return tf.constant(numbers, dtype)


@every_mode
@pytest.mark.parametrize("bits", [2, 3, 7, 8])
@pytest.mark.parametrize("lo, hi", RANGES)
def test_values(device, mode, bits, lo, hi):
    numbers = _between_ties(lo, hi, bits, "float32")
    with mode():
        found = _layer(lo, hi, bits)(numbers)
    lo, hi = np.float32(lo), np.float32(hi)
    truth = reference.fake_quant(numbers, lo, hi, bits)
    plain = tf.quantization.fake_quant_with_min_max_vars(
        numbers, min(lo, 0), max(hi, 0), bits
    )
    tolerances.assert_close(found, truth, plain, np.full_like(truth, hi - lo))


@every_mode
@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_other_types_are_rounded_in_float32(device, mode, dtype):
    numbers = _between_ties(-1, 2, 4, dtype)
    with mode():
        found = _layer(-1, 2, 4, dtype)(numbers)
        wide = _layer(-1, 2, 4)(tf.cast(numbers, tf.float32))
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, tf.cast(wide, dtype))


@pytest.mark.parametrize("bits", [2, 5, 8])
@pytest.mark.parametrize("lo, hi", RANGES)
def test_scale_and_zero_point(bits, lo, hi):
    layer = _layer(lo, hi, bits)
    scale, zero_point = (float(each) for each in layer.scale_and_zero_point())
    truth = reference.scale_and_zero_point(np.float32(lo), np.float32(hi), bits)
    np.testing.assert_allclose([scale, zero_point], truth, rtol=1e-6)
    integers = np.arange(2**bits)
    values = ((integers - zero_point) * scale).astype(np.float32)
    np.testing.assert_allclose(layer(values), values, rtol=0, atol=1e-6 * (hi - lo))
    np.testing.assert_array_equal(
        reference.integers(values, np.float32(lo), np.float32(hi), bits), integers
    )


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_range_that_follows_skips_what_is_not_finite(value):
    layer = FakeQuant(momentum=0.5)
    for batch in ([-1.0, 3.0], [value, 1.0], [-2.0, 5.0]):
        layer(tf.constant(batch), training=True)
    lo, hi = layer.get_weights()
    assert np.isfinite([lo, hi]).all() and lo < 0 and hi > 2
    assert np.isfinite(layer(tf.constant([1.0]))).all()


@pytest.mark.parametrize("graph", [False, True, "XLA"])
def test_a_range_of_nothing_gives_zeros(device, graph):
    layer = call = _layer(0, 0, 8)
    if graph:
        call = tf.function(layer, jit_compile=graph == "XLA")
    np.testing.assert_array_equal(call(tf.constant([-1.0, 0, 3])), [0, 0, 0])
    assert [float(each) for each in layer.scale_and_zero_point()] == [0, 0]


@every_mode
def test_gradients_are_straight_through(device, mode):
    layer = _layer(-1, 2, 8)
    numbers = tf.constant([-3.0, -1.5, -0.5, 0.0, 1.3, 2.5, 9.0])
    weights = tf.constant([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0])
    with tf.GradientTape() as tape, mode():
        tape.watch(numbers)
        total = tf.reduce_sum(weights * layer(numbers))
    found = tape.gradient(total, [numbers, layer.lo.value, layer.hi.value])
    np.testing.assert_array_equal(found[0], [0, 0, 4, 8, 16, 0, 0])
    assert [float(each) for each in found[1:]] == [3, 96]


def test_gradients_are_deterministic():
    """TensorFlow refuses the gradient of its op on a GPU if they must be."""
    layer = _layer(-1, 2, 8)

    @tf.function
    def gradients(numbers):
        return tf.gradients(layer(numbers), [numbers, layer.lo.value, layer.hi.value])

    graph = gradients.get_concrete_function(tf.TensorSpec([3])).graph
    kinds = {each.type for each in graph.get_operations()}
    assert "FakeQuantWithMinMaxVars" in kinds
    assert "FakeQuantWithMinMaxVarsGradient" not in kinds


@pytest.mark.parametrize("graph", [False, True, "XLA"])
def test_a_range_follows_the_batches_of_training(device, graph):
    layer = FakeQuant(momentum=0.75)
    layer.build(None)
    call = layer
    if graph:
        call = tf.function(layer, jit_compile=graph == "XLA")
    first, second = tf.constant([-1.0, 0.4, 2.0]), tf.constant([0.5, 3.0, 10.0])
    np.testing.assert_array_equal(call(first), first)
    assert not layer.has_range()
    np.testing.assert_allclose(
        call(first, training=True), reference.fake_quant(first, -1, 2, 8), rtol=1e-6
    )
    call(second, training=True)
    np.testing.assert_allclose(layer.get_weights(), [-0.75, 4.0])
    call(first)
    layer.trainable = False
    layer(first, training=True)
    np.testing.assert_allclose(layer.get_weights(), [-0.75, 4.0])


def test_calibration_takes_the_smallest_and_the_largest():
    layer = FakeQuant()
    layer.calibrate([np.array([0.5, 3.0]), tf.constant([[-2.0]]), np.zeros([0, 3])])
    assert layer.get_weights() == [-2, 3]
    layer.calibrate([np.array([0.5, 3.0])])
    assert layer.get_weights() == [0, 3]
    for batches, text in (
        ([], "calibration has no numbers"),
        ([np.zeros([0])], "calibration has no numbers"),
        ([np.array([1, np.nan])], "activations must be finite"),
        ([np.array([np.inf])], "activations must be finite"),
    ):
        with pytest.raises(ValueError, match=f"FakeQuant {layer.name}: {text}"):
            layer.calibrate(batches)
    assert layer.get_weights() == [0, 3]


def test_learns_its_range():
    model = keras.Sequential([keras.Input([4]), FakeQuant(name="fake")])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    numbers = np.full([32, 4], 9.0, np.float32)
    model.fit(numbers, numbers, epochs=60, verbose=0)
    lo, hi = model.get_layer("fake").get_weights()
    assert lo == -6 and abs(hi - 9) < 0.1


@pytest.mark.parametrize(
    "arguments, text",
    [
        ({"bits": 1}, "bits must be an integer from 2 to 8, got 1"),
        ({"bits": 9}, "bits must be an integer from 2 to 8, got 9"),
        (
            {"momentum": 1},
            "momentum must be a number from 0 to below 1, or None, got 1",
        ),
        ({"momentum": "a"}, "momentum must be a number .*, got 'a'"),
    ],
)
def test_mistakes_are_named(arguments, text):
    with pytest.raises(ValueError, match=f"FakeQuant: {text}"):
        FakeQuant(**arguments)
