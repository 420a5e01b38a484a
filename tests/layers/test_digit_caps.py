# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""DigitCaps and digit_caps against the routing reference, and as Keras layers."""

import inspect

import finite_differences
import keras
import layer_testing
import numpy as np
import pytest
import tensorflow as tf
import tolerances
from parameterized import parameterized
from reference import capsule_routing

import tf_capsops
from tf_capsops.layers import DigitCaps, digit_caps


def _arguments(batch, in_caps, out_caps, out_dim, in_dim):
    random = np.random.default_rng(7)
    return (
        random.normal(size=[batch, in_caps, in_dim]),
        random.normal(size=[in_caps, out_caps, out_dim, in_dim]),
        random.normal(size=[in_caps, out_caps]),
    )


def _layer(sizes, dtype, iterations):
    """Returns a layer and its inputs, with random numbers in all of them."""
    inputs, weights, logits = _arguments(*sizes)
    _, out_caps, out_dim, _ = weights.shape
    layer = DigitCaps(out_caps, out_dim, iterations, logits_trainable=True, dtype=dtype)
    layer.build(inputs.shape)
    layer.set_weights([weights, logits])
    return layer, tf.constant(inputs, dtype)


@pytest.mark.parametrize("iterations", [1, 2, 3, 5])
@pytest.mark.parametrize(
    "sizes", [(1, 1, 1, 1, 1), (3, 7, 5, 4, 6), (2, 33, 10, 16, 8)]
)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_values(device, dtype, sizes, iterations):
    layer, inputs = _layer(sizes, dtype, iterations)
    result = layer(inputs)
    assert result.dtype == dtype
    operands = inputs, *(tf.convert_to_tensor(weight) for weight in layer.weights)
    truth = capsule_routing.forward(
        *(operand.numpy().astype(np.float64) for operand in operands), iterations
    )
    with tf_capsops.portable():
        plain = layer(inputs)
    tolerances.assert_close(result, truth, plain, magnitude=np.ones_like(truth))


@pytest.mark.parametrize("iterations", [1, 4])
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_coefficients_are_those_of_the_op(device, policy, iterations):
    inputs, *weights = _arguments(3, 7, 5, 4, 6)
    layer = DigitCaps(5, 4, iterations, dtype=policy)
    layer.build(inputs.shape)
    layer.set_weights(weights)
    operands = [tf.cast(each, layer.compute_dtype) for each in (inputs, *weights)]
    expected = tf_capsops.routing_coefficients(*operands, iterations)
    np.testing.assert_array_equal(layer.coefficients(operands[0]), expected)


@pytest.mark.parametrize("iterations", [1, 3])
def test_gradients_flow_through_every_iteration(device, iterations):
    layer, inputs = _layer((2, 3, 4, 3, 2), "float64", iterations)

    def compute(inputs, *weights):
        return layer.stateless_call(weights, [], inputs)[0]

    finite_differences.assert_gradients_agree(
        compute, [inputs, *(weight.numpy() for weight in layer.weights)]
    )


def test_zero_capsules_have_finite_gradients(device):
    layer, inputs = _layer((2, 3, 4, 3, 2), "float32", 3)
    with tf.GradientTape() as tape:
        inputs = tf.zeros_like(inputs)
        tape.watch(inputs)
        result = layer(inputs)
    sources = [inputs, *(weight.value for weight in layer.weights)]
    for gradient in tape.gradient(result, sources):
        assert np.isfinite(gradient).all()


def test_empty_batch(device):
    layer = DigitCaps(4, 3)
    assert layer(tf.zeros([0, 5, 2])).shape == (0, 4, 3)


class DigitCapsTest(layer_testing.TestCase):
    @parameterized.expand([("fixed", False, 1), ("trainable", True, 2)])
    def test_layer(self, _, logits_trainable, trainable_weights):
        self.run_layer_test(
            DigitCaps,
            {
                "num_capsules": 4,
                "capsule_dim": 3,
                "routing_iterations": 2,
                "logits_trainable": logits_trainable,
                "kernel_initializer": "he_normal",
                "kernel_regularizer": "l2",
                "kernel_constraint": "unit_norm",
                "logits_initializer": "ones",
            },
            input_shape=(2, 6, 5),
            expected_output_shape=(2, 4, 3),
            expected_num_trainable_weights=trainable_weights,
            expected_num_non_trainable_weights=2 - trainable_weights,
            expected_num_losses=1,
        )


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision_keeps_weights_and_logits_in_float32(device, policy):
    layer = DigitCaps(4, 3, dtype=policy)
    result = layer(tf.ones([2, 6, 5]))
    assert result.dtype == policy.removeprefix("mixed_")
    assert [w.dtype for w in layer.weights] == ["float32", "float32"]


def test_saved_model_takes_any_batch(tmp_path):
    inputs = keras.Input([6, 5])
    model = keras.Model(inputs, DigitCaps(4, 3)(inputs))
    model.export(tmp_path / "saved", verbose=False)
    saved = tf.saved_model.load(tmp_path / "saved")
    for batch in (1, 3):
        capsules = tf.random.stateless_normal([batch, 6, 5], [batch, 2])
        np.testing.assert_array_equal(saved.serve(capsules), model(capsules))


def test_function_computes_once_more_than_it_updates(device):
    capsules = tf.random.stateless_normal([2, 6, 5], [1, 2])
    ones = {"kernel_initializer": keras.initializers.RandomNormal(seed=3)}
    function = digit_caps(capsules, 4, 3, routing_iters=3, **ones)
    layer = DigitCaps(4, 3, routing_iterations=4, **ones)
    np.testing.assert_array_equal(function, layer(capsules))


def test_function_takes_the_papers_arguments_in_its_order(device):
    names = list(inspect.signature(digit_caps).parameters)[:7]
    assert names == [
        *("incoming", "n_digit_caps", "dim_digit_caps", "name"),
        *("neuron_axis", "capsule_axis", "routing_iters"),
    ]
    capsules = tf.random.stateless_normal([2, 6, 5], [1, 2])
    same = {"kernel_initializer": keras.initializers.RandomNormal(seed=3)}
    expected = digit_caps(capsules, 4, 3, routing_iters=2, **same)
    swapped = tf.transpose(capsules, [0, 2, 1])
    result = digit_caps(swapped, 4, 3, "Caps", -2, -1, 2, **same)
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("more, name", [({}, "DigitCaps"), ({"name": "Old"}, "Old")])
def test_function_takes_iterations_where_earlier_releases_had_them(more, name):
    inputs = keras.Input([6, 5])
    text = "fourth argument is name now, as in the paper; pass routing_iters=2 by name"
    with pytest.warns(DeprecationWarning, match=text) as caught:
        outputs = digit_caps(inputs, 4, 3, 2, **more)
    assert caught[0].filename == __file__
    *_, layer = keras.Model(inputs, outputs).layers
    assert (layer.name, layer.routing_iterations) == (name, 3)
    twice = pytest.raises(TypeError, match="'routing_iters'")
    with pytest.warns(DeprecationWarning), twice:
        digit_caps(inputs, 4, 3, 2, routing_iters=3)


def test_function_has_the_papers_initializer():
    """Glorot's bound for the shape that the paper's weights have with its op."""
    inputs = keras.Input([60, 5])
    *_, layer = keras.Model(inputs, digit_caps(inputs, 4, 3)).layers
    bound = np.sqrt(6 / (60 * 4 * (3 + 5)))
    assert 0.98 * bound < np.abs(layer.kernel).max() <= bound
    outputs = digit_caps(inputs, 4, 3, kernel_initializer="ones")
    *_, layer = keras.Model(inputs, outputs).layers
    assert np.all(layer.kernel == np.ones([60, 4, 3, 5]))


def test_function_makes_a_layer_of_a_model(tmp_path):
    inputs = keras.Input([6, 5])
    outputs = digit_caps(inputs, 4, 3, name="Caps", logits_trainable=True)
    model = keras.Model(inputs, outputs)
    assert [w.path for w in model.trainable_weights] == ["Caps/kernel", "Caps/logits"]
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    capsules = tf.random.stateless_normal([2, 6, 5], [1, 2])
    np.testing.assert_array_equal(loaded(capsules), model(capsules))


@pytest.mark.parametrize(
    "changes, text",
    [
        ({"num_capsules": 0}, "num_capsules must be an integer >= 1, got 0"),
        ({"capsule_dim": "3"}, "capsule_dim must be an integer >= 1, got '3'"),
        (
            {"routing_iterations": 0},
            "routing_iterations must be an integer from 1 to 2147483647, got 0",
        ),
        (
            {"routing_iterations": 2**63},
            f"routing_iterations must be an integer from 1 to 2147483647, got {2**63}",
        ),
    ],
)
def test_bad_arguments_are_named(changes, text):
    with pytest.raises(ValueError, match=text):
        DigitCaps(**{"num_capsules": 4, "capsule_dim": 3, **changes})


@pytest.mark.parametrize(
    "arguments, text",
    [
        (
            {"routing_iters": -1},
            "routing_iters must be an integer from 0 to 2147483646, got -1",
        ),
        ({"capsule_axis": 0}, "must be the two axes after the batch, got 0 and -1"),
        ({"neuron_axis": 5}, "neuron_axis must be an integer from -3 to 2, got 5"),
        ({"neuron_axis": "a"}, "neuron_axis must be an integer from -3 to 2, got 'a'"),
    ],
)
def test_bad_arguments_of_the_function_are_named(arguments, text):
    with pytest.raises(ValueError, match=text):
        digit_caps(tf.ones([2, 6, 5]), 4, 3, **arguments)


def test_bad_shapes_are_named():
    with pytest.raises(ValueError, match=r"must be \[batch, in_caps, in_dim\], got"):
        DigitCaps(4, 3).build((None, 6))
    with pytest.raises(ValueError, match="only the batch size"):
        DigitCaps(4, 3).build((None, None, 5))
    with pytest.raises(ValueError, match=r"axes batch, capsules and neurons, got"):
        digit_caps(tf.ones([2, 6]), 4, 3)


@pytest.mark.parametrize(
    "weights, text",
    [
        (np.ones([2, 4, 5, 3]), r"got one array of shape \(2, 4, 5, 3\)"),
        (tf.ones([2, 4, 5, 3]), r"got one array of shape \(2, 4, 5, 3\)"),
        ([np.ones([2, 4, 5, 3])], "got a list of 1"),
        ([], "got a list of 0"),
    ],
)
def test_weights_must_be_a_list_of_all(weights, text):
    layer = DigitCaps(4, 5, name="caps")
    with pytest.raises(ValueError, match="DigitCaps caps has no weights yet: build it"):
        layer.set_weights(weights)
    layer.build((None, 2, 3))
    with pytest.raises(
        ValueError, match=rf"DigitCaps caps: weights must be \[kernel, logits\], {text}"
    ):
        layer.set_weights(weights)


def test_weights_may_be_an_array_of_arrays():
    layer = DigitCaps(4, 5)
    layer.build((None, 2, 3))
    weights = [np.full([2, 4, 5, 3], 2.0), np.full([2, 4], 3.0)]
    both = np.empty(2, object)
    both[:] = weights
    layer.set_weights(both)
    np.testing.assert_array_equal(layer.kernel, weights[0])
    np.testing.assert_array_equal(layer.logits, weights[1])


def test_coefficients_need_weights():
    layer = DigitCaps(2, 3, name="caps")
    with pytest.raises(ValueError, match="DigitCaps caps has no weights yet"):
        layer.coefficients(np.ones([1, 4, 5], np.float32))
