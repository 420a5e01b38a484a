# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""IncrementalQuantization beside other callbacks, and what it says about the rest."""

import warnings

import keras
import numpy as np
import pytest

from tf_capsops import inq


def _model():
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input([6, 6, 2]),
            keras.layers.SeparableConv2D(4, 3, depth_multiplier=2, name="separable"),
            keras.layers.Flatten(),
            keras.layers.Dense(3, name="dense"),
        ],
        name="small",
    )
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse", run_eagerly=True)
    return model


def _fit(model, *callbacks, epochs=2):
    random = np.random.default_rng(1)
    inputs, outputs = random.normal(size=[8, *model.input_shape[1:]]), np.ones([8, 3])
    model.fit(inputs, outputs, 4, epochs, verbose=0, callbacks=list(callbacks))


def _steps(layers, fractions=(0.5, 1)):
    return inq.IncrementalQuantization(layers, 4, fractions)


def test_both_kernels_of_a_separable_convolution_are_quantized():
    model = _model()
    steps = _steps(model)
    _fit(model, steps, epochs=3)
    names = ["small/separable/depthwise_kernel", "small/separable/pointwise_kernel"]
    assert [each.variable.path for each in steps.kernels[:2]] == names
    for kernel in steps.kernels:
        weights = kernel.variable.numpy()
        expected = inq.quantize(weights, 4, kernel.top_exponent)
        np.testing.assert_array_equal(weights, expected)


@pytest.mark.parametrize("choose", ["other", "same"])
def test_two_callbacks_on_one_kernel_are_refused(choose):
    model = _model()
    first = _steps(model)
    second = first if choose == "same" else _steps(model.get_layer("dense"))
    before = model.get_weights()
    quantized_twice = {"other": "small/dense/kernel", "same": "small/separable/depth"}
    with pytest.raises(
        ValueError, match=f"{quantized_twice[choose]}.* by two callbacks of one fit"
    ):
        _fit(model, first, second)
    for now, then in zip(model.get_weights(), before):
        np.testing.assert_array_equal(now, then)
    _fit(model, first)
    _fit(model, _steps(model))


def test_two_callbacks_on_kernels_of_their_own():
    model = _model()
    first, second = (_steps(model.get_layer(each)) for each in ("separable", "dense"))
    _fit(model, first, second)
    for kernel in (*first.kernels, *second.kernels):
        assert kernel.fraction == 1 and kernel.variable.constraint is None


class _Interrupt(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        raise KeyboardInterrupt


def test_a_callback_after_an_interrupted_one():
    model = _model()
    kernel = model.get_layer("dense").kernel
    kernel.constraint = own = keras.constraints.MaxNorm(100)
    with pytest.raises(KeyboardInterrupt):
        _fit(model, _steps(model), _Interrupt())
    assert kernel.constraint is not own
    steps = _steps(model)
    _fit(model, steps)
    assert kernel.constraint is own
    assert all(each.fraction == 1 for each in steps.kernels)


def test_training_that_ends_before_the_last_step_is_said():
    model = _model()
    stop = keras.callbacks.EarlyStopping("loss", mode="max", start_from_epoch=0)
    steps = _steps(model, (0.25, 0.5, 0.75, 1))
    with pytest.warns(UserWarning, match=r"after 2 of 4 steps, with 50.0% of the wei"):
        _fit(model, stop, steps, epochs=4)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        _fit(model, steps, epochs=2)


def test_trained_weights_that_are_no_kernels_are_named():
    model = keras.Sequential(
        [
            keras.Input([5], dtype="int32"),
            keras.layers.Embedding(8, 4, name="words"),
            keras.layers.LSTM(4, name="lstm"),
            keras.layers.Dense(3),
        ],
        name="text",
    )
    model.compile("sgd", "mse", run_eagerly=True)
    left = r"text/words/embeddings, text/lstm/lstm_cell/recurrent_kernel will not be q"
    with pytest.warns(UserWarning, match=left):
        _fit(model, _steps(model))
