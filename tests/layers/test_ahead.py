# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Batches are copied ahead and steps are grouped, and nobody sees a difference."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_capsops.models import Unrolled, grouping, unrolled
from tf_capsops.models.ahead import Ahead, Taken, gpu_of

SAMPLES, BATCH = 23, 2
X = np.random.default_rng(1).random((SAMPLES, 3), np.float32)
Y = X.sum(axis=1)


class Dense(Unrolled, keras.Sequential):
    pass


class Batches(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.numbers = []

    def on_train_batch_end(self, batch, logs=None):
        self.numbers.append(batch)


class Bar(keras.callbacks.ProgbarLogger, Batches):
    """What the progress bar sees."""

    def __init__(self):
        keras.callbacks.ProgbarLogger.__init__(self)
        self.numbers = []

    on_train_batch_end = Batches.on_train_batch_end


def dense():
    keras.utils.set_random_seed(1)
    model = Dense([keras.Input([3]), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def fit(callbacks=(), **arguments):
    model, bar = dense(), Bar()
    given = {"batch_size": BATCH, "verbose": 0, "epochs": 2, "shuffle": False}
    callbacks = [bar, *callbacks]
    history = model.fit(X, Y, callbacks=callbacks, **{**given, **arguments}).history
    assert model.steps_per_execution == 1
    return history, bar.numbers, [weight.tolist() for weight in model.get_weights()]


@pytest.fixture
def as_on_a_gpu(monkeypatch, device):
    """Models believe to be on a GPU, which is their device."""
    for module in (unrolled, grouping):
        monkeypatch.setattr(module, "gpu_of", lambda model: device)
    return device


def test_the_gpu_of_a_model(device):
    assert gpu_of(dense()) == (device if device.startswith("GPU") else None)


def test_an_iterators_batches_are_taken_once_and_in_order(device):
    batches = tf.data.Dataset.range(7).batch(2)
    with tf.device("CPU:0"):
        iterator = iter(batches)
    next(iterator)
    ahead = Ahead(device)
    copies = ahead.of(iterator)
    assert ahead.of(iterator) is copies is not iterator
    assert [batch.numpy().tolist() for batch in copies] == [[2, 3], [4, 5], [6]]
    assert Ahead(None).of(iterator) is iterator


def test_batches_are_taken_for_the_next_execution():
    taken, drawn = Taken(), []

    def numbers(count):
        for number in range(count):
            drawn.append(number)
            yield number

    iterator = numbers(7)
    assert taken.of(iterator, 2, True) == [0, 1]
    assert taken.of(iterator, 3, True) == [2, 3, 4]
    taken._thread.submit(int).result()  # after what the thread has to do
    assert drawn == [*range(7)]
    assert taken.of(iterator, 3, True) == [5, 6]
    assert taken.of(iterator, 3, True) == []
    assert taken.of(numbers(5), 2, False) == [0, 1] and drawn[7:] == [0, 1]


def test_a_failing_data_set_says_so():
    def broken():
        yield 1
        raise ValueError("no second picture")

    taken, iterator = Taken(), broken()
    assert taken.of(iterator, 1, True) == [1]
    with pytest.raises(ValueError, match="no second picture"):
        taken.of(iterator, 1, True)


@pytest.mark.parametrize("epochs, steps", [(2, None), (3, 4), (1, 11)])
def test_grouped_steps_train_alike(as_on_a_gpu, epochs, steps, monkeypatch):
    arguments = {"epochs": epochs, "steps_per_epoch": steps}
    grouped = fit(**arguments)
    monkeypatch.setattr(grouping, "gpu_of", lambda model: None)
    alone = fit(**arguments)
    assert grouped[0] == alone[0] and grouped[2] == alone[2]
    size = 12 if steps is None else steps
    assert alone[1] == [*range(size)] * epochs
    assert grouped[1] == [19 if steps is None else size - 1] * epochs


def test_callbacks_of_batches_see_each(as_on_a_gpu):
    batches = Batches()
    _, bar, _ = fit([batches], epochs=1)
    assert bar == batches.numbers == [*range(12)]


@pytest.mark.parametrize("frequency, grouped", [("epoch", True), (5, False)])
def test_checkpoints_of_epochs_see_no_batches(
    as_on_a_gpu, frequency, grouped, tmp_path
):
    path = str(tmp_path / "best.keras")
    saved = keras.callbacks.ModelCheckpoint(path, save_freq=frequency)
    _, bar, weights = fit([saved], epochs=1)
    assert bar == ([19] if grouped else [*range(12)])
    if grouped:
        kept = keras.models.load_model(path, {"Dense": Dense})
        assert [each.tolist() for each in kept.get_weights()] == weights
        assert int(kept.optimizer.iterations) == 12 and kept.loss == "mse"


def test_another_fit_may_group_otherwise(as_on_a_gpu):
    model, batches = dense(), Batches()
    arguments = {"batch_size": BATCH, "verbose": 0, "shuffle": False}
    losses = []
    for callbacks in ([], [batches], []):
        model.fit(X, Y, callbacks=callbacks, **arguments)
        losses.append(model.evaluate(X, Y, verbose=0))
    assert batches.numbers == [*range(12)]
    assert int(model.optimizer.iterations) == 36
    assert losses == sorted(losses, reverse=True)


class Seen(grouping.Bar):
    def on_train_batch_end(self, batch, logs=None):
        super().on_train_batch_end(batch, logs)
        self.losses = [*getattr(self, "losses", []), logs["loss"]]


def test_the_bar_shows_the_execution_before(as_on_a_gpu, monkeypatch):
    arguments = {"batch_size": BATCH, "verbose": 0, "shuffle": False, "epochs": 2}
    losses = []
    for gpu in (as_on_a_gpu, None):
        monkeypatch.setattr(grouping, "gpu_of", lambda model, gpu=gpu: gpu)
        model, bar = dense(), Seen()
        model.compile("sgd", "mse", steps_per_execution=3)
        history = model.fit(X, Y, callbacks=[bar], **arguments).history
        losses.append((bar.losses, history["loss"]))
    (late, late_epochs), (exact, exact_epochs) = losses
    assert late_epochs == exact_epochs
    first, second = exact[:4], exact[4:]
    # Nothing comes before the first execution of an epoch.
    assert late == [first[0], *first[:3], second[0], *second[:3]]


def test_logs_of_ones_own_are_not_late(as_on_a_gpu):
    class Own(Dense):
        def train_step(self, data):
            super().train_step(data)
            return {"steps": tf.cast(self.optimizer.iterations, tf.float32)}

    model = Own([keras.Input([3]), keras.layers.Dense(1)])
    model.compile("sgd", "mse", steps_per_execution=3)
    history = model.fit(X, Y, batch_size=BATCH, verbose=0, epochs=2).history
    assert history["steps"] == [12, 24]


def test_the_bar_ends_where_the_epoch_does(as_on_a_gpu, capsys):
    model = dense()
    model.compile("sgd", "mse", steps_per_execution=5)
    model.fit(X, Y, batch_size=BATCH, verbose=1)
    printed = capsys.readouterr().out
    assert "12/12" in printed and "15/12" not in printed


def test_compile_may_ask_for_steps(as_on_a_gpu):
    model = dense()
    model.compile("sgd", "mse", steps_per_execution=3)
    bar = Bar()
    model.fit(X, Y, batch_size=BATCH, verbose=0, callbacks=[bar])
    assert bar.numbers == [2, 5, 8, 11] and model.steps_per_execution == 3
