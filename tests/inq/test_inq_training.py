# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""IncrementalQuantization: what is fixed keeps every bit, and the rest is trained."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from quantized import Recorder

import tf_capsops
from tf_capsops import inq

_STEPS = (0.5, 0.75, 0.875, 1.0)


def _data(samples=12):
    random = np.random.default_rng(2)
    images = random.normal(size=[samples, 6, 6, 2]).astype(np.float32)
    return images, random.integers(0, 3, samples)


def _model(**kernel):
    keras.utils.set_random_seed(1)
    return keras.Sequential(
        [
            keras.Input([6, 6, 2]),
            keras.layers.Conv2D(4, 3, activation="relu", name="conv", **kernel),
            keras.layers.DepthwiseConv2D(3, name="depthwise"),
            keras.layers.Flatten(),
            keras.layers.Dense(3, name="dense"),
        ]
    )


def _train(model, optimizer="sgd", bits=4, epochs=5, fit=None, **compiled):
    """Fits with a callback that is not the last to say what weights are.

    Unless `compiled` says otherwise, eagerly, which takes less time than tracing.
    """
    images, labels = _data()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, **{"run_eagerly": True, **compiled})
    steps = inq.IncrementalQuantization(model, bits, _STEPS)
    recorder = Recorder(steps)
    model.fit(
        images,
        labels,
        batch_size=4,
        epochs=epochs,
        verbose=0,
        callbacks=[steps, recorder],
        **(fit or {}),
    )
    return steps, recorder


def _assert_fixed_from_then_on(steps, recorder):
    """Every fixed weight is a power, and the same in all later records to the bit."""
    final = [each.variable.numpy() for each in steps.kernels]
    moved = 0
    for record, later in zip(recorder.records[:-1], recorder.records[1:]):
        for kernel, last, now, then in zip(steps.kernels, final, record, later):
            mask, values = now
            assert mask[~then[0]].sum() == 0
            fixed = values[mask]
            np.testing.assert_array_equal(
                fixed.view(np.uint32), last[mask].view(np.uint32)
            )
            expected = inq.quantize(fixed, kernel.bits, kernel.top_exponent)
            np.testing.assert_array_equal(fixed, expected)
            moved += np.count_nonzero(values[~mask] != then[1][~mask])
    assert moved > 100
    for kernel in steps.kernels:
        assert kernel.mask.all() and kernel.fraction == 1


_OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "momentum": lambda: keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True),
    "adam": lambda: keras.optimizers.Adam(0.01, amsgrad=True),
    "adamw": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1),
    "decayed": lambda: keras.optimizers.SGD(0.05, momentum=0.9, weight_decay=0.2),
    "averaged": lambda: keras.optimizers.Adam(0.01, use_ema=True, ema_momentum=0.7),
    "overwritten": lambda: keras.optimizers.SGD(
        0.1, use_ema=True, ema_momentum=0.7, ema_overwrite_frequency=2
    ),
    "accumulating": lambda: keras.optimizers.Adam(0.01, gradient_accumulation_steps=2),
    "clipped": lambda: keras.optimizers.RMSprop(0.01, global_clipnorm=0.5),
    "lion": lambda: keras.optimizers.Lion(0.01),
    "ftrl": lambda: keras.optimizers.Ftrl(0.1, l1_regularization_strength=0.01),
    "scaled": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)),
}


# Others have what these have: "decayed" momentum, "adamw" the moments of Adam.
_SLOW = ("momentum", "adam", "clipped", "lion")


@pytest.mark.ci
@pytest.mark.parametrize(
    "optimizer",
    [
        pytest.param(each, marks=pytest.mark.slow if each in _SLOW else ())
        for each in _OPTIMIZERS
    ],
)
def test_fixed_weights_keep_every_bit(optimizer):
    model = _model()
    branches = optimizer in ("overwritten", "accumulating")  # which are of a graph
    steps, recorder = _train(model, _OPTIMIZERS[optimizer](), run_eagerly=not branches)
    _assert_fixed_from_then_on(steps, recorder)
    for name in ("conv", "dense"):
        bias = model.get_layer(name).bias.numpy()
        assert np.any(bias != inq.quantize(bias, 4))


@pytest.mark.ci
@pytest.mark.parametrize(
    "compiled",
    [
        {},
        {"steps_per_execution": 4},
        {"steps_per_execution": 4, "jit_compile": True},
    ],
)
def test_fixed_weights_keep_every_bit_in_graphs(compiled):
    compiled["run_eagerly"] = False
    optimizer = keras.optimizers.AdamW(0.01, weight_decay=0.1)
    _assert_fixed_from_then_on(*_train(_model(), optimizer, **compiled))


def test_a_training_step_traced_before_is_replaced_and_after_replaced_again():
    model = _model()
    images, labels = _data()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss)
    model.fit(images, labels, verbose=0)
    steps = inq.IncrementalQuantization(model, 4, _STEPS)
    recorder = Recorder(steps)
    callbacks = [steps, recorder]
    model.fit(images, labels, 4, 4, verbose=0, callbacks=callbacks)
    _assert_fixed_from_then_on(steps, recorder)
    before = model.get_layer("conv").kernel.numpy()
    model.fit(images, labels, 4, 1, verbose=0)
    assert np.all(model.get_layer("conv").kernel.numpy() != before)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision_quantizes_the_float32_weights(policy):
    steps, recorder = _train(_model(dtype=policy))
    assert steps.kernels[0].variable.dtype == "float32"
    _assert_fixed_from_then_on(steps, recorder)


def test_works_with_our_layers():
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input([6, 6, 2]),
            keras.layers.Reshape([6, 6, 2, 1, 1]),
            tf_capsops.layers.CapsuleConv2D(2, (1, 8), 2, name="capsules"),
            keras.layers.Reshape([5, 5, 16]),
            tf_capsops.layers.PrimaryCaps(2, 4, 3, name="primary"),
            tf_capsops.layers.DigitCaps(3, 4, logits_trainable=True, name="digits"),
            tf_capsops.layers.Length(),
        ]
    )
    images, labels = _data()
    margin = tf_capsops.losses.MarginLoss()
    model.compile(keras.optimizers.Adam(0.01), margin, run_eagerly=True)
    steps = inq.IncrementalQuantization(model, 5, _STEPS)
    recorder = Recorder(steps)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        model.fit(images, labels, 4, 5, verbose=0, callbacks=[steps, recorder])
    names = [each.layer.name for each in steps.kernels]
    assert names == ["capsules", "conv", "digits"]
    _assert_fixed_from_then_on(steps, recorder)
    logits = model.get_layer("digits").logits.numpy()
    assert np.any(logits != inq.quantize(logits, 5))


class _Composite(keras.layers.Layer):
    """Holds layers in every way that Keras tracks."""

    def __init__(self):
        super().__init__()
        first, *others = (keras.layers.Dense(2, name=name) for name in "abcd")
        self.one = first
        self.several = [others[0], (others[1],)]
        self.named = {"last": others[2], "first": first}

    def build(self, input_shape):
        for layer in inq.kernels.layers_in(self)[1:]:
            layer.build(input_shape)


def test_layers_are_found_wherever_another_layer_holds_them():
    inputs = keras.Input([4, 3])
    rnn = keras.layers.Bidirectional(keras.layers.GRU(2))
    inner = keras.Sequential([keras.Input([4]), keras.layers.Dense(3, name="inner")])
    model = keras.Model(inputs, inner(rnn(inputs)))
    pairs = inq.kernels.layers_and_kernels(model)
    assert [layer.name for layer, _ in pairs] == ["gru_cell", "gru_cell", "inner"]
    composite = _Composite()
    composite.build([None, 3])
    pairs = inq.kernels.layers_and_kernels(composite)
    assert [layer.name for layer, _ in pairs] == ["a", "b", "c", "d"]
    assert {id(kernel) for _, kernel in pairs} < {
        id(each) for each in composite.weights
    }


def test_each_step_fixes_the_largest_free_weights():
    model = _model()
    kernel = model.get_layer("conv").kernel
    values = np.random.default_rng(3).normal(size=kernel.shape)
    kernel.assign(values)
    _, recorder = _train(model, keras.optimizers.SGD(0.0))
    masks = [record[0][0] for record in recorder.records]
    counts = sorted({np.count_nonzero(mask) for mask in masks})
    assert counts == [36, 54, 63, 72]
    for mask in masks:
        if not mask.all():
            assert np.abs(values[mask]).min() > np.abs(values[~mask]).max()
    expected = inq.quantize(values.astype(np.float32), 4)
    np.testing.assert_array_equal(kernel.numpy(), expected)


def test_equal_weights_are_fixed_in_order():
    layer = keras.layers.Dense(2)
    layer.build([None, 4])
    layer.kernel.assign(np.full([4, 2], 0.3))
    fixed = inq.kernels.PartlyFixedKernel(layer, layer.kernel, 5)
    for fraction, count in ((0.375, 3), (0.375, 3), (0.5, 4), (1, 8)):
        fixed.fix(fraction)
        np.testing.assert_array_equal(fixed.mask.reshape(-1), np.arange(8) < count)


def test_top_exponent_is_that_of_the_first_step():
    layer = keras.layers.Dense(1, use_bias=False)
    layer.build([None, 4])
    layer.kernel.assign([[1.0], [0.5], [0.25], [0.125]])
    fixed = inq.kernels.PartlyFixedKernel(layer, layer.kernel, 3)
    fixed.fix(0.5)
    assert fixed.top_exponent == 0
    # A free weight outgrows all fixed ones, one turns small and one turns round.
    layer.kernel.assign([[9.0], [9.0], [7.0], [-0.2]])
    fixed.fix(0.75)
    fixed.fix(1.0)
    assert fixed.top_exponent == 0
    np.testing.assert_array_equal(layer.kernel.numpy()[:, 0], [1, 0.5, 1, 0])


def test_a_kernel_of_zeros_waits_for_its_top_exponent():
    layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    layer.build([None, 4])
    fixed = inq.kernels.PartlyFixedKernel(layer, layer.kernel, 3)
    fixed.fix(0.5)
    assert fixed.top_exponent is None
    layer.kernel.assign([[0.0], [0.0], [0.0], [-0.01]])
    fixed.fix(1.0)
    assert fixed.top_exponent == -7
    np.testing.assert_array_equal(layer.kernel.numpy()[:, 0], [0, 0, 0, -(2.0**-7)])


def test_constraints_of_the_layer_hold_for_free_weights_and_come_back():
    constraint = keras.constraints.NonNeg()
    model = _model(kernel_constraint=constraint)
    kernel = model.get_layer("conv").kernel
    kernel.assign(np.abs(kernel.numpy()))
    steps, recorder = _train(model, keras.optimizers.SGD(0.5))
    _assert_fixed_from_then_on(steps, recorder)
    assert all(np.all(record[0][1] >= 0) for record in recorder.records)
    assert kernel.constraint is constraint
    assert model.get_layer("dense").kernel.constraint is None


def test_a_second_fit_goes_on():
    model = _model()
    images, labels = _data()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, run_eagerly=True)
    steps = inq.IncrementalQuantization(model, 4, _STEPS, epochs_per_step=2)
    recorder = Recorder(steps)

    class Stop(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.stop_training = epoch == 2

    options = {"epochs": 7, "verbose": 0}
    with pytest.warns(UserWarning, match=r"ended after 2 of 4 steps, with 75.0% of"):
        model.fit(images, labels, callbacks=[steps, recorder, Stop()], **options)
    assert steps.steps_taken == 2
    assert [each.fraction for each in steps.kernels] == [0.75] * 3
    with pytest.raises(ValueError, match=r"2 of them taken, .* need 4 epochs or more"):
        model.fit(images, labels, callbacks=[steps], epochs=3, verbose=0)
    options = {"epochs": 7, "initial_epoch": 3, "verbose": 0}
    model.fit(images, labels, callbacks=[steps, recorder], **options)
    assert steps.steps_taken == 4
    _assert_fixed_from_then_on(steps, recorder)
    model.fit(images, labels, callbacks=[steps, recorder], epochs=1, verbose=0)
    _assert_fixed_from_then_on(steps, recorder)


def test_steps_are_epochs_apart():
    model = _model()
    model.compile("sgd", "sparse_categorical_crossentropy", run_eagerly=True)
    steps = inq.IncrementalQuantization(model.layers[0], 4, (0.5, 1), epochs_per_step=3)
    fractions = []
    see = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda *_: fractions.append(steps.kernels[0].fraction)
    )
    images, labels = _data()
    model.fit(images, labels, epochs=5, verbose=0, callbacks=[steps, see])
    assert fractions == [0.5, 0.5, 0.5, 1, 1]
    assert len(steps.kernels) == 1


def test_a_layer_used_twice_counts_once():
    inputs = keras.Input([3])
    dense = keras.layers.Dense(3)
    model = keras.Model(inputs, dense(dense(inputs)))
    model.compile("sgd", "mse", run_eagerly=True)
    steps = inq.IncrementalQuantization([model, dense, dense], 4, [1])
    model.fit(np.ones([2, 3]), np.ones([2, 3]), verbose=0, callbacks=[steps])
    assert [each.layer for each in steps.kernels] == [dense]


def test_a_layer_that_is_not_trained_is_quantized():
    model = _model()
    model.get_layer("conv").trainable = False
    steps, recorder = _train(model)
    _assert_fixed_from_then_on(steps, recorder)


@pytest.mark.parametrize(
    "arguments, text",
    [
        ({"bits": 9}, "bits must be an integer from 2 to 8, got 9"),
        ({"steps": ()}, "steps must be fractions that rise from above 0 to at most 1"),
        ({"steps": 0.5}, "steps must be fractions .* got 0.5"),
        ({"steps": (0.5, 0.5)}, r"steps must be fractions .* got \(0.5, 0.5\)"),
        ({"steps": (0.0, 1)}, "steps must be fractions"),
        ({"steps": (0.5, 1.1)}, "steps must be fractions"),
        ({"steps": (0.5, np.nan)}, "steps must be fractions"),
        ({"epochs_per_step": 0}, "epochs_per_step must be an integer >= 1, got 0"),
        ({"layers_or_model": None}, "must be a model, a layer or a list of them, got"),
        ({"layers_or_model": []}, r"must be a model, a layer or a list .* got \[\]"),
        ({"layers_or_model": ["conv"]}, "must hold layers, got 'conv'"),
    ],
)
def test_bad_arguments_are_named(arguments, text):
    with pytest.raises(ValueError, match=f"IncrementalQuantization: .*{text}"):
        inq.IncrementalQuantization(
            **{"layers_or_model": keras.layers.Dense(1), **arguments}
        )


@pytest.mark.parametrize(
    "choose, text",
    [
        (lambda model: keras.layers.Dense(2), "has no weights yet: build it"),
        (lambda model: model.layers[2], "has no kernel to quantize"),
        (lambda model: _model(), "conv is not a part of "),
    ],
)
def test_wrong_layers_are_named(choose, text):
    model = _model()
    model.compile("sgd", "mse")
    steps = inq.IncrementalQuantization(choose(model), 4, [1])
    with pytest.raises(ValueError, match=text):
        model.fit(*_data(), verbose=0, callbacks=[steps])


def test_too_few_epochs_are_refused_and_change_nothing():
    model = _model()
    before = model.get_weights()
    with pytest.raises(
        ValueError, match=r"4 steps, 0 of them taken, .* need 4 epochs or more, got 3$"
    ):
        _train(model, epochs=3)
    assert model.get_layer("conv").kernel.constraint is None
    for now, then in zip(model.get_weights(), before):
        np.testing.assert_array_equal(now, then)


def test_weights_that_are_not_finite_are_refused():
    model = _model()
    model.get_layer("dense").kernel.assign(tf.fill([16, 3], np.nan))
    with pytest.raises(ValueError, match=r"dense/kernel must be finite"):
        _train(model)
