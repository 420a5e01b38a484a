# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Layers train to the same losses, but for rounding, with and without XLA."""

import textwrap

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_capsops
from tests import fresh, tolerances
from tf_capsops.layers import (
    CapsuleConv2D,
    Conv2D,
    DigitCaps,
    FakeQuant,
    HighOrderConv1D,
    HighOrderConv2D,
    InqConv2D,
    InqDense,
    InqDepthwiseConv2D,
    Length,
    PrimaryCaps,
    SlimCaps2D,
)

LAYERS = {
    "DigitCaps": (lambda: DigitCaps(4, 3, logits_trainable=True), (6, 5)),
    "CapsuleConv2D": (lambda: CapsuleConv2D(2, (2, 3), 3, strides=2), (6, 5, 1, 2, 2)),
    "Conv2D": (lambda: Conv2D(4, 3), (6, 5, 2)),
    "HighOrderConv1D": (lambda: HighOrderConv1D(3), (6, 2)),
    "HighOrderConv2D": (lambda: HighOrderConv2D(3), (6, 5, 2)),
    "InqConv2D": (lambda: InqConv2D(4, 3), (6, 5, 2)),
    "InqDense": (lambda: InqDense(3), (5,)),
    "InqDepthwiseConv2D": (lambda: InqDepthwiseConv2D(3), (6, 5, 2)),
    "PrimaryCaps": (lambda: PrimaryCaps(2, 4, 3), (6, 5, 2)),
    "SlimCaps2D": (lambda: SlimCaps2D(3, 4, 2, leaky=True), (6, 5, 2, 3)),
    "FakeQuant": (FakeQuant, (6, 5)),
    "Length": (Length, (6, 5)),
}
EPOCHS, SAMPLES, BATCH = 3, 7, 4  # the last batch of an epoch is smaller


def train(name, policy="float32", samples=SAMPLES, **compiling):
    """Trains a network of one layer; returns the losses of the epochs."""
    make, shape = LAYERS[name]
    keras.utils.set_random_seed(1)
    keras.config.set_dtype_policy(policy)
    try:
        model = keras.Sequential([keras.Input(shape), make(), keras.layers.Flatten()])
        model.add(keras.layers.Dense(2, dtype="float32"))
    finally:
        keras.config.set_dtype_policy("float32")
    optimizer = keras.optimizers.SGD(0.01)
    if policy == "mixed_float16":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    model.compile(optimizer, "mse", **compiling)
    rng = np.random.default_rng(2)
    images = rng.normal(size=(samples, *shape)).astype("float32")
    labels = rng.normal(size=(samples, 2)).astype("float32")
    fitted = model.fit(images, labels, BATCH, EPOCHS, shuffle=False, verbose=0)
    return model, fitted.history["loss"]


# Of half types by default; the other layers, and the other type, are slow.
_HALVES = {("DigitCaps", "mixed_float16"), ("CapsuleConv2D", "mixed_bfloat16")}


def _policies():
    for name in LAYERS:
        yield name, "float32"
        for half in ("mixed_float16", "mixed_bfloat16"):
            marks = () if (name, half) in _HALVES else pytest.mark.slow
            yield pytest.param(name, half, marks=marks)


@pytest.mark.ci
@pytest.mark.parametrize("name, policy", _policies())
def test_losses_are_the_same(device, name, policy):
    # Each shape of a batch is compiled: one more of two layers, whose ops differ most.
    uneven = policy == "float32" and name in ("DigitCaps", "CapsuleConv2D")
    samples = SAMPLES if uneven else BATCH
    _, expected = train(name, policy, samples, run_eagerly=True)
    model, losses = train(name, policy, samples, jit_compile=True)
    # Keras goes on without XLA, and warns, where a layer does not support it.
    assert model.jit_compile
    # XLA rounds once where it fuses the ops around ours.
    rounding = tolerances.ulp(policy.removeprefix("mixed_"))
    np.testing.assert_allclose(losses, expected, rtol=8 * EPOCHS * rounding)


def test_steps_per_execution(device):
    _, expected = train("DigitCaps", jit_compile=True)
    _, losses = train("DigitCaps", jit_compile=True, steps_per_execution=2)
    np.testing.assert_array_equal(losses, expected)


@pytest.mark.parametrize("make", [InqConv2D, InqDepthwiseConv2D])
def test_another_top_exponent_is_compiled_anew(device, make):
    layer = make(3, kernel_size=1) if make is InqConv2D else make(1)
    model = keras.Sequential([keras.Input([5, 5, 3]), layer])
    model.compile(jit_compile=True)
    kernel = np.ones(layer.codes.shape)
    images = tf.random.stateless_normal([2, 5, 5, 3], [1, 2])
    results = []
    for scale in (1, 0.25):
        layer.set_kernel(scale * kernel)
        results.append(model.predict(images, verbose=0))
        np.testing.assert_array_equal(results[-1], layer(images))
    np.testing.assert_array_equal(results[1], 0.25 * results[0])


def test_incremental_quantization(device):
    images = np.random.default_rng(3).normal(size=(16, 6, 6, 2)).astype("float32")
    labels = np.arange(16) % 3
    losses, predictions = [], []
    for jit_compile in (False, True):
        keras.utils.set_random_seed(4)
        model = keras.Sequential([keras.Input([6, 6, 2]), keras.layers.Conv2D(4, 3)])
        model.add(keras.layers.Flatten())
        model.add(keras.layers.Dense(3))
        compiling = {"jit_compile": jit_compile, "steps_per_execution": 2}
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.01), loss, **compiling)
        steps = tf_capsops.inq.IncrementalQuantization(model)
        fitted = model.fit(images, labels, 4, 5, verbose=0, callbacks=[steps])
        converted = tf_capsops.inq.convert(model)
        converted.jit_compile = jit_compile
        codes = [layer.codes.numpy() for layer in converted.layers if layer.weights]
        fitted_on = converted.fit(images, labels, 4, 2, shuffle=False, verbose=0)
        for layer, before in zip(converted.layers[::2], codes, strict=True):
            np.testing.assert_array_equal(layer.codes, before)
        losses.append(fitted.history["loss"] + fitted_on.history["loss"])
        predictions.append(converted.predict(images, verbose=0))
    for results in (losses, predictions):
        allowed = 8 * 7 * tolerances.ulp("float32")  # of seven epochs
        np.testing.assert_allclose(*results, rtol=allowed, atol=allowed)


def gradients_of(name):
    """Compiles loss and gradients of a layer; returns them, called twice."""
    make, shape = LAYERS[name]
    keras.utils.set_random_seed(1)
    layer = make()
    layer.build((None, *shape))

    @tf.function(jit_compile=True)
    def compute(images):
        with tf.GradientTape() as tape:
            tape.watch(images)
            loss = tf.reduce_sum(layer(images) ** 2)
        return [loss, *tape.gradient(loss, [images, *layer.trainable_variables])]

    images = tf.random.stateless_normal([SAMPLES, *shape], [2, 3])
    return [[each.numpy() for each in compute(images)] for _ in range(2)]


def test_determinism(device):
    """Keras refuses XLA where determinism is asked for; TensorFlow does not."""
    text = """
        import sys
        import numpy as np
        import tensorflow as tf
        from tests.layers import test_xla
        tf.config.experimental.enable_op_determinism()
        with tf.device(sys.argv[1]):
            for name in test_xla.LAYERS:
                for once, again in zip(*test_xla.gradients_of(name)):
                    np.testing.assert_array_equal(once, again)
    """
    fresh.run(textwrap.dedent(text), device)


def test_shapes_that_depend_on_data_are_refused(device):
    def compute(inputs, chosen):
        weights = tf.ones([3, 4, 5, 2])
        return tf_capsops.capsule_prediction(tf.boolean_mask(inputs, chosen), weights)

    arguments = tf.ones([2, 3, 2]), tf.constant([True, False])
    assert tf.function(compute)(*arguments).shape == [1, 3, 4, 5]
    with pytest.raises(tf.errors.UnimplementedError, match="XLA must know the shapes"):
        tf.function(compute, jit_compile=True)(*arguments)
