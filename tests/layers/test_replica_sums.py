# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Gradients of replicas in two sums: the same numbers, in an order that XLA is told."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_capsops.models import replica_sums
from tf_capsops.models.replica_sums import overlapped


def _model(functional=False):
    keras.utils.set_random_seed(1)
    first = keras.layers.Dense(4, activation="relu", name="first")
    rest = keras.Sequential([keras.layers.Dense(3), keras.layers.Dense(2)])
    if not functional:
        return keras.Sequential([keras.Input([5]), first, rest])
    inputs = keras.Input([5])
    return keras.Model(inputs, rest(keras.Sequential([first])(inputs)))


def _run(step):
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    with strategy.scope():
        return strategy.run(tf.function(step, autograph=False))


@pytest.fixture
def sums(monkeypatch):
    """The shapes in each sum of two replicas, which are equal; of any size."""
    found = []

    def all_reduce(self, operation, values, options=None):
        assert operation == tf.distribute.ReduceOp.SUM
        found.append([each.shape for each in values])
        return [2 * each for each in values]

    monkeypatch.setattr(tf.distribute.ReplicaContext, "all_reduce", all_reduce)
    monkeypatch.setattr(replica_sums, "_FEWEST_BYTES", 0)
    return found


def _trained(model, is_overlapped, gradients=lambda gradients: gradients):
    """Returns the weights after a step of training, from the same ones each time."""
    images = np.random.default_rng(2).normal(size=[6, 5]).astype(np.float32)
    initial = model.get_weights()

    def step():
        with overlapped(model) if is_overlapped else contextlib.nullcontext():
            _train(model, images, gradients)

    _run(step)
    weights = model.get_weights()
    model.set_weights(initial)
    return weights


def _train(model, x, gradients):
    variables = model.trainable_variables
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(x) ** 2)
    own = tape.gradient(loss, [each.value for each in variables])
    own = gradients(own)
    context = tf.distribute.get_replica_context()
    summed = context.all_reduce(tf.distribute.ReduceOp.SUM, own)
    for variable, gradient in zip(variables, summed):
        variable.assign_sub(0.1 * gradient)


@pytest.mark.parametrize("functional", [False, True])
def test_two_sums_are_the_same_as_one(functional, sums):
    model = _model(functional)
    expected, weights = (_trained(model, each) for each in (False, True))
    once = [(5, 4), (4,), (4, 3), (3,), (3, 2), (2,)]
    assert sums == [once, once[2:], once[:2]]
    for one, two in zip(expected, weights):
        np.testing.assert_array_equal(one, two)
        assert np.all(np.isfinite(two))


def test_the_first_layers_sum_waits_for_the_other_one(sums):
    """A number that is not finite tells what depends on it."""

    def spoiled(gradients):
        return [*gradients[:-1], gradients[-1] + float("nan")]

    kernel, *others, last = _trained(_model(), True, spoiled)
    assert len(sums) == 2
    assert np.all(np.isnan(kernel)) and np.all(np.isnan(last))
    assert all(np.all(np.isfinite(each)) for each in others)


def test_the_other_sum_waits_for_the_gradient_of_the_first_layers_output(sums):
    class Spoiling(keras.layers.Layer):
        def call(self, inputs):
            @tf.custom_gradient
            def call(inputs):
                return inputs + 0, lambda upstream: upstream + float("nan")

            return call(inputs)

    keras.utils.set_random_seed(1)
    dense = [keras.layers.Dense(4), Spoiling(), keras.layers.Dense(3)]
    weights = _trained(keras.Sequential([keras.Input([5]), *dense]), True)
    assert [np.all(np.isnan(each)) for each in weights] == [True, True, True, False]


def test_one_sum_of_few_or_of_other_gradients(sums, monkeypatch):
    def step():
        context = tf.distribute.get_replica_context()
        with overlapped(model):
            for values in ([tf.ones(2)] * 5, [tf.ones(each.shape) for each in own]):
                context.all_reduce(tf.distribute.ReduceOp.SUM, values)

    model = _model()
    own = model.trainable_variables
    _run(step)  # no gradient came from the layer
    assert [*map(len, sums)] == [5, 6]
    monkeypatch.setattr(replica_sums, "_FEWEST_BYTES", 1 << 20)
    _trained(model, True)
    assert [*map(len, sums)] == [5, 6, 6]


def test_a_layer_whose_call_was_replaced_is_left_alone(sums):
    model = _model()
    layer = model.layers[0]
    own = layer.call
    layer.call = lambda inputs: own(inputs)
    replaced = layer.call
    _trained(model, True)
    assert len(sums) == 1 and layer.call is replaced
    del layer.call
    _trained(model, True)
    assert len(sums) == 3 and "call" not in vars(layer)


def test_eager_steps_have_one_sum(sums):
    model = _model()
    with tf.distribute.OneDeviceStrategy("CPU:0").scope() as strategy:
        strategy.run(lambda: _eager(model))
    assert len(sums) == 1


def _eager(model):
    with overlapped(model):
        _train(model, np.ones([2, 5], np.float32), lambda gradients: gradients)


def test_other_sums_than_those_of_gradients_are_left_alone(sums):
    def of_samples(gradients):
        context = tf.distribute.get_replica_context()
        for shape in ([None], None, [0]):
            each = tf.raw_ops.PlaceholderWithDefault(input=tf.zeros(0), shape=shape)
            context.all_reduce(tf.distribute.ReduceOp.SUM, [each] * 3)
        return gradients

    _trained(_model(), True, of_samples)
    assert len(sums) == 5
