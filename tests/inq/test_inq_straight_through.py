# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""IncrementalQuantization(straight_through=True): weights train from code to code."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_capsops import data, inq
from tf_capsops.inq.kernels import channel_axes

_LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def _data(samples=24):
    random = np.random.default_rng(3)
    images = random.normal(size=[samples, 5]).astype(np.float32)
    return images, np.arange(samples) % 3


def _model(**kernel):
    keras.utils.set_random_seed(4)
    first = keras.layers.Dense(7, activation="relu", **kernel)
    return keras.Sequential([keras.Input([5]), first, keras.layers.Dense(3)])


def _steps(model, steps=(1,), bits=3, **options):
    return inq.IncrementalQuantization(
        model, bits, steps, straight_through=True, **options
    )


def _fit(model, steps, optimizer="sgd", epochs=4, compiled=None, **fit):
    model.compile(optimizer, _LOSS, **(compiled or {"run_eagerly": True}))
    options = {"batch_size": 8, "epochs": epochs, "shuffle": False, "verbose": 0}
    model.fit(*_data(), **{**options, **fit}, callbacks=[steps])


def _assert_codes(steps):
    for kernel in steps.kernels:
        weights = kernel.variable.numpy()
        axes = channel_axes(kernel.layer, kernel.variable) if kernel.axes else ()
        codes = inq.quantize(weights, kernel.bits, kernel.top_exponent, axes)
        np.testing.assert_array_equal(weights, codes)
        assert kernel.mask.all() and kernel.fraction == 1


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("per_channel", [False, True])
def test_a_step_moves_what_the_weights_were_before_they_were_rounded(bits, per_channel):
    model = _model()
    images, labels = _data(8)
    rate = 1.0
    steps = _steps(model, bits=bits, per_channel=per_channel)
    latent = [each.numpy() for _, each in inq.kernels.layers_and_kernels(model)]
    axes = (-1,) if per_channel else ()
    tops = [inq.top_exponent(each, axes) for each in latent]
    rounded = _model()
    for (_, kernel), weights, top in zip(
        inq.kernels.layers_and_kernels(rounded), latent, tops
    ):
        kernel.assign(inq.quantize(weights, bits, top, axes))
    with tf.GradientTape() as tape:
        loss = _LOSS(labels, rounded(images))
    kernels = [each for _, each in inq.kernels.layers_and_kernels(rounded)]
    gradients = tape.gradient(loss, [each.value for each in kernels])
    optimizer = keras.optimizers.SGD(rate)
    model.compile(optimizer, _LOSS, run_eagerly=True)
    model.fit(images, labels, 8, 1, verbose=0, callbacks=[steps])
    moved = 0
    for kernel, weights, top, gradient in zip(steps.kernels, latent, tops, gradients):
        expected = inq.quantize(weights - rate * gradient.numpy(), bits, top, axes)
        np.testing.assert_array_equal(kernel.variable.numpy(), expected)
        np.testing.assert_array_equal(kernel.top_exponent, top)
        moved += np.count_nonzero(expected != inq.quantize(weights, bits, top, axes))
    assert moved > 0


_OPTIMIZERS = {
    "adamw": lambda: keras.optimizers.AdamW(0.05, weight_decay=0.1),
    "averaged": lambda: keras.optimizers.Adam(0.05, use_ema=True, ema_momentum=0.7),
    "accumulating": lambda: keras.optimizers.Adam(0.05, gradient_accumulation_steps=2),
    "scaled": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.5)),
}


@pytest.mark.parametrize("optimizer", _OPTIMIZERS)
def test_weights_stay_in_their_books_under_any_optimizer(optimizer):
    model = _model()
    steps = _steps(model, (0.5, 1))
    compiled = {"run_eagerly": optimizer != "accumulating"}
    _fit(model, steps, _OPTIMIZERS[optimizer](), 2, compiled)
    _assert_codes(steps)
    before = [each.variable.numpy() for each in steps.kernels]
    _fit(model, steps, _OPTIMIZERS[optimizer](), 3, compiled)
    _assert_codes(steps)
    for kernel, weights in zip(steps.kernels, before):
        assert np.any(kernel.variable.numpy() != weights)


@pytest.mark.ci
@pytest.mark.parametrize("jit", [False, True])
def test_many_batches_in_an_execution(jit):
    kernels = []
    for compiled in (
        {"run_eagerly": True},
        {"steps_per_execution": 3, "jit_compile": jit},
    ):
        model = _model()
        steps = _steps(model, (0.6, 1), per_channel=True)
        _fit(model, steps, keras.optimizers.SGD(0.4), 4, compiled)
        _assert_codes(steps)
        kernels.append([each.variable.numpy() for each in steps.kernels])
    for eager, compiled in zip(*kernels):
        np.testing.assert_array_equal(eager, compiled)


def test_further_fits_continue_with_the_latent_numbers():
    kernels = []
    for epochs in ((6,), (1,) * 6):
        model = _model()
        steps = _steps(model)
        for count in epochs:
            _fit(model, steps, keras.optimizers.SGD(0.1), count)
        kernels.append([each.variable.numpy() for each in steps.kernels])
    for once, often in zip(*kernels):
        np.testing.assert_array_equal(once, often)
    # Each fit begins where the last one ended, and not at the codes.
    assert np.any(kernels[0][0] != _rounded_at_once(_model())[0])


def _rounded_at_once(model):
    return [
        inq.quantize(each, 3, inq.top_exponent(each))
        for _, each in inq.kernels.layers_and_kernels(model)
    ]


def test_an_earlier_epoch_that_early_stopping_restores_is_kept():
    model = _model()
    steps = _steps(model)
    stopping = keras.callbacks.EarlyStopping(
        "loss", mode="max", patience=9, restore_best_weights=True
    )
    first = []  # weights after the epoch of the greatest loss, which is the first

    class Keep(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 0:
                first.extend(self.model.get_weights())

    model.compile(keras.optimizers.SGD(0.3), _LOSS, run_eagerly=True)
    fit = {"epochs": 6, "verbose": 0, "shuffle": False, "callbacks": []}
    callbacks = [stopping, steps, Keep()]
    model.fit(*_data(), 8, **{**fit, "callbacks": callbacks})
    for weights, expected in zip(model.get_weights(), first, strict=True):
        np.testing.assert_array_equal(weights, expected)
    # A further fit starts there.
    for kernel, weights in zip(steps.kernels, [first[0], first[2]]):
        axes = kernel.bits, kernel.top_exponent
        np.testing.assert_array_equal(inq.quantize(kernel._latent, *axes), weights)


@pytest.mark.ci
def test_the_fit_after_an_interruption_starts_where_that_was():
    model = _model()
    steps = _steps(model)
    weights = []

    class Interrupt(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 1:
                weights.extend(self.model.get_weights())
                raise KeyboardInterrupt

    model.compile(keras.optimizers.SGD(0.5), _LOSS)
    with pytest.raises(KeyboardInterrupt):
        model.fit(*_data(), 8, verbose=0, callbacks=[steps, Interrupt()])
    assert np.any(weights[0] != _rounded_at_once(_model())[0])
    began = []

    class Begin(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            began.extend([] if began else self.model.get_weights())

    model.fit(*_data(), 8, verbose=0, callbacks=[steps, Begin()])
    for before, after in zip(weights, began, strict=True):
        np.testing.assert_array_equal(before, after)
    _assert_codes(steps)


def test_a_kernel_that_is_full_before_the_last_step_waits_for_it():
    model = _model()
    steps = _steps(model, (0.99, 1))  # of 21 and 35 weights all, rounded

    class Stop(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.stop_training = True

    model.compile("sgd", _LOSS, run_eagerly=True)
    with pytest.warns(UserWarning, match="after 1 of 2 steps"):
        model.fit(*_data(), 8, 2, verbose=0, callbacks=[steps, Stop()])
    full = [each for each in steps.kernels if each.mask.all()]
    assert full
    before = [each.variable.numpy() for each in full]
    _fit(model, steps, keras.optimizers.SGD(0.5), 3)
    _assert_codes(steps)
    assert any(
        np.any(each.variable.numpy() != weights) for each, weights in zip(full, before)
    )


def test_channels_and_kernels_of_zeros_stay_zero():
    model = _model()
    first, second = (each for _, each in inq.kernels.layers_and_kernels(model))
    small = first.numpy() / 64
    small[:, 2] = 0
    first.assign(small)
    second.assign(second * 0)
    steps = _steps(model, per_channel=True)
    model.layers[0].bias.assign(np.ones(7))
    _fit(model, steps, keras.optimizers.SGD(0.5), 3)
    assert not np.any(first.numpy()[:, 2]) and not np.any(second.numpy())
    _assert_codes(steps)


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_kernels_of_other_types(dtype):
    model = _model(dtype=dtype)
    steps = _steps(model, per_channel=True)
    before = model.layers[0].kernel.numpy()
    _fit(model, steps, keras.optimizers.SGD(0.5), 3)
    assert steps.kernels[0].variable.dtype == dtype
    _assert_codes(steps)
    assert np.any(model.layers[0].kernel.numpy() != inq.quantize(before, 3, axes=(-1,)))


def test_one_callback_for_a_kernel():
    model = _model()
    model.compile("sgd", _LOSS, run_eagerly=True)
    both = [_steps(model), _steps(model)]
    with pytest.raises(ValueError, match="is quantized by two callbacks of one fit"):
        model.fit(*_data(), 8, verbose=0, callbacks=both)


def test_latent_numbers_do_not_leave_the_book():
    model = _model()
    steps = _steps(model)
    _fit(model, steps, keras.optimizers.SGD(0.1), 1)
    kernel = steps.kernels[0]
    kernel.hold(object())
    hold = kernel.variable.constraint
    for _ in range(5):  # a weight is driven far beyond 2^n1, and one step back counts
        hold(kernel.variable.numpy() + 1000.0)
    top = 2.0**kernel.top_exponent
    np.testing.assert_array_equal(hold(kernel.variable * 0 + top), top)
    np.testing.assert_array_equal(hold(kernel.variable * 0 + top * 0.2), top / 2)
    kernel.release()
    assert kernel.variable.constraint is None


def test_a_constraint_of_ones_own_comes_first():
    model = _model(kernel_constraint=keras.constraints.NonNeg())
    steps = _steps(model)
    _fit(model, steps, keras.optimizers.SGD(0.5), 4)
    _assert_codes(steps)
    kernel = model.layers[0].kernel
    assert np.all(kernel.numpy() >= 0) and np.any(kernel.numpy())
    assert isinstance(kernel.constraint, keras.constraints.NonNeg)


def test_convert_computes_the_same():
    model = _model()
    steps = _steps(model, per_channel=True)
    _fit(model, steps, keras.optimizers.Adam(0.05), 3)
    small = inq.convert(model, all_kinds=True, bits=3, per_channel=True)
    images, _ = _data()
    np.testing.assert_allclose(small(images), model(images), rtol=1e-5, atol=1e-6)


def test_few_bits_lose_less_than_with_fixed_weights():
    digits = data.load("digits")
    train, test = (
        part.make(np.arange(len(part)), None) for part in (digits.train, digits.test)
    )
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input([8, 8, 1]),
            keras.layers.Conv2D(8, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(10),
        ]
    )

    def compile_and_fit(**options):
        model.compile(keras.optimizers.Adam(2e-3), _LOSS, metrics=["accuracy"])
        model.fit(*train, 32, verbose=0, **options)
        return model.evaluate(*test, verbose=0)[1]

    compile_and_fit(epochs=8)
    weights = model.get_weights()
    accuracies = []
    for straight_through in (False, True):
        model.set_weights(weights)
        steps = inq.IncrementalQuantization(
            model, 2, (1,), straight_through=straight_through
        )
        accuracies.append(compile_and_fit(epochs=4, callbacks=[steps]))
    assert accuracies[1] > accuracies[0] + 0.05


def test_the_last_step_must_take_all_weights():
    text = r"straight_through trains quantized weights, so steps must end with 1, got"
    with pytest.raises(ValueError, match=text):
        _steps(_model(), (0.5, 0.9))
    with pytest.raises(ValueError, match="straight_through must be True or False"):
        inq.IncrementalQuantization(_model(), straight_through="yes")
