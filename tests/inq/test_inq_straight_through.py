# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""IncrementalQuantization(straight_through=True): weights train from code to code."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_capsops import inq
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
        assert np.any(once != inq.quantize(once * 0 + 1, 3))


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
    assert isinstance(model.layers[0].kernel.constraint, keras.constraints.NonNeg)


def test_convert_computes_the_same():
    model = _model()
    steps = _steps(model, per_channel=True)
    _fit(model, steps, keras.optimizers.Adam(0.05), 3)
    small = inq.convert(model, all_kinds=True, bits=3, per_channel=True)
    images, _ = _data()
    np.testing.assert_allclose(small(images), model(images), rtol=1e-5, atol=1e-6)


def test_three_bits_lose_little():
    """What fixed weights lose, for which the option exists."""
    sklearn = pytest.importorskip("sklearn.datasets")
    digits = sklearn.load_digits()
    images, labels = digits.images[..., None].astype(np.float32) / 16, digits.target
    train, test = (images[:1400], labels[:1400]), (images[1400:], labels[1400:])
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
