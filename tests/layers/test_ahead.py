# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Batches are copied ahead and steps are grouped, and nobody sees a difference."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_capsops.cli.callbacks import Boards, Hold
from tf_capsops.models import Unrolled, ahead, grouping, replicas
from tf_capsops.models.ahead import gpu_of

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


def dense():
    keras.utils.set_random_seed(1)
    model = Dense([keras.Input([3]), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


@pytest.fixture
def as_on_a_gpu(monkeypatch, device):
    """Makes models take their device for a GPU."""
    for module in (ahead, grouping):
        monkeypatch.setattr(module, "gpu_of", lambda model: device)
    monkeypatch.setattr(grouping, "has_gpus", lambda: True)
    return device


@pytest.fixture
def seen(monkeypatch):
    """Returns what progress bars see: numbers of batches and losses."""
    pairs, update = [], grouping.Bar.on_train_batch_end

    def see(bar, batch, logs=None):
        pairs.append((batch, logs.get("loss")))
        update(bar, batch, logs)

    monkeypatch.setattr(grouping.Bar, "on_train_batch_end", see)
    return pairs


@pytest.fixture
def fit(seen):
    """Returns a function that trains, and returns history, batches seen and weights."""

    def train(callbacks=(), **arguments):
        model = dense()
        given = {"batch_size": BATCH, "verbose": 0, "epochs": 2, "shuffle": False}
        callbacks = [grouping.Bar(), *callbacks]
        history = model.fit(X, Y, callbacks=callbacks, **{**given, **arguments}).history
        assert model.steps_per_execution == 1
        numbers = [batch for batch, _ in seen]
        seen.clear()
        return history, numbers, [weight.tolist() for weight in model.get_weights()]

    return train


def test_the_gpu_of_a_model(device):
    assert gpu_of(dense()) == (device if device.startswith("GPU") else None)


@pytest.mark.parametrize("epochs, steps", [(2, None), (3, 4), (1, 11)])
def test_grouped_steps_train_alike(as_on_a_gpu, fit, epochs, steps, monkeypatch):
    arguments = {"epochs": epochs, "steps_per_epoch": steps}
    grouped = fit(**arguments)
    monkeypatch.setattr(grouping, "gpu_of", lambda model: None)
    alone = fit(**arguments)
    assert grouped[0] == alone[0] and grouped[2] == alone[2]
    size = 12 if steps is None else steps
    assert alone[1] == [*range(size)] * epochs
    # The last of 12 batches is smaller, so 11 make an execution.
    assert grouped[1] == ([10, 21] if steps is None else [size - 1]) * epochs


@pytest.mark.parametrize(
    "batches, steps",
    [(1, 1), (7, 7), (20, 20), (23, 11), (117, 13), (468, 18), (937, 18), (1000, 20)],
)
def test_executions_leave_few_batches_over(as_on_a_gpu, batches, steps):
    assert grouping.steps_at_once(batches) == steps
    whole, rest = np.zeros([2 * batches, 3]), np.zeros([2 * batches + 1, 3])
    for x in whole, rest:
        data = tf.data.Dataset.from_tensor_slices(x).batch(2, drop_remainder=x is whole)
        assert grouping.plan(dense(), {"x": data}).steps == steps
        assert grouping.plan(dense(), {"x": x, "batch_size": 2}).steps == steps
    assert grouping.plan(dense(), {"x": data.repeat()}).steps == 20


def test_callbacks_of_commands_do_not_see_batches(as_on_a_gpu, tmp_path):
    callbacks = [Hold(), Boards(tmp_path), keras.callbacks.TensorBoard(tmp_path)]
    plans = [grouping.plan(dense(), {"callbacks": [each]}) for each in callbacks]
    assert [plan.late for plan in plans] == [True, True, False]


def test_processes_take_batches_in_step(as_on_a_gpu, monkeypatch):
    assert grouping.plan(dense(), {}).ahead
    processes = object.__new__(tf.distribute.MultiWorkerMirroredStrategy)
    monkeypatch.setattr(Dense, "distribute_strategy", processes)
    assert not grouping.plan(dense(), {}).ahead


@pytest.mark.parametrize("steps", [1, 5, 30])
def test_epochs_of_arrays_are_those_of_keras(as_on_a_gpu, monkeypatch, steps):
    """12 batches, of which the last is smaller, in groups of 5 or one by one."""
    monkeypatch.setattr(grouping, "_STEPS", 5)
    found = []
    for make in (Dense, keras.Sequential):
        keras.utils.set_random_seed(1)
        model = make([keras.Input([3]), keras.layers.Dense(1)])
        alone = make is keras.Sequential
        model.compile("sgd", "mse", steps_per_execution=1 if alone else steps)
        given = {"batch_size": BATCH, "epochs": 3, "shuffle": False, "verbose": 0}
        history = model.fit(X, Y, validation_split=0.1, **given).history
        found.append([*model.get_weights(), history["loss"], history["val_loss"]])
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


@pytest.mark.parametrize("kind", ["subclass", "lambda", "of a checkpoint"])
def test_callbacks_of_batches_see_each(as_on_a_gpu, fit, kind, tmp_path):
    class Checkpoint(keras.callbacks.ModelCheckpoint):
        on_train_batch_end = Batches.on_train_batch_end
        numbers = ()

    numbers = []
    callback = {
        "subclass": Batches(),
        "lambda": keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: numbers.append(batch)
        ),
        "of a checkpoint": Checkpoint(str(tmp_path / "each.keras")),
    }[kind]
    callback.numbers = numbers
    _, bar, _ = fit([callback], epochs=1)
    assert bar == numbers == [*range(12)]


@pytest.mark.parametrize("frequency, grouped", [("epoch", True), (5, False)])
def test_checkpoints_of_epochs_see_no_batches(
    as_on_a_gpu, fit, frequency, grouped, tmp_path
):
    path = str(tmp_path / "best.keras")
    saved = keras.callbacks.ModelCheckpoint(path, save_freq=frequency)
    _, bar, weights = fit([saved], epochs=1)
    assert bar == ([10, 21] if grouped else [*range(12)])
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


def test_the_bar_shows_the_execution_before(as_on_a_gpu, seen, monkeypatch):
    arguments = {"batch_size": BATCH, "verbose": 0, "shuffle": False, "epochs": 2}
    losses = []
    for gpu in (as_on_a_gpu, None):
        monkeypatch.setattr(grouping, "gpu_of", lambda model, gpu=gpu: gpu)
        model = dense()
        model.compile("sgd", "mse", steps_per_execution=3)
        history = model.fit(X, Y, callbacks=[grouping.Bar()], **arguments).history
        losses.append(([loss for _, loss in seen], history["loss"]))
        seen.clear()
    (late, late_epochs), (exact, exact_epochs) = losses
    assert late_epochs == exact_epochs
    first, second = exact[:4], exact[4:]
    # Nothing comes before the first execution of an epoch.
    assert late == [None, *first[:3], None, *second[:3]]


def test_logs_of_ones_own_are_not_late(as_on_a_gpu):
    class Own(Dense):
        def train_step(self, data):
            super().train_step(data)
            return {"steps": tf.cast(self.optimizer.iterations, tf.float32)}

    model = Own([keras.Input([3]), keras.layers.Dense(1)])
    model.compile("sgd", "mse", steps_per_execution=3)
    history = model.fit(X, Y, batch_size=BATCH, verbose=0, epochs=2).history
    assert history["steps"] == [12, 24]


@pytest.mark.parametrize("length", ["known", "unknown"])
def test_the_bar_ends_where_the_epoch_does(as_on_a_gpu, length, capsys):
    model = dense()
    model.compile("sgd", "mse", steps_per_execution=5)
    batches = tf.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH)
    if length == "unknown":
        batches = batches.filter(lambda *_: True)
    model.fit(batches, verbose=1)
    printed = capsys.readouterr().out
    assert "12/12" in printed and "15/" not in printed.split("\n")[-2]


def test_only_training_is_grouped(as_on_a_gpu):
    """Validation, and what callbacks call, have the user's steps."""
    inputs = np.arange(200, dtype=np.float32)[:, None]
    batches = tf.data.Dataset.from_tensor_slices((inputs, inputs)).batch(2)

    class Calls(keras.callbacks.Callback):
        tests, sizes, nested = 0, (), None

        def on_test_batch_end(self, batch, logs=None):
            self.tests += 1

        def on_epoch_end(self, epoch, logs=None):
            predict = self.model.predict
            every = predict(inputs, batch_size=2, verbose=0)
            some = predict(batches.repeat(), steps=3, verbose=0)
            self.sizes = len(every), len(some)
            self.losses = self.model.train_on_batch(inputs[:4], inputs[:4])
            if self.nested is None:
                self.nested = int(self.model.optimizer.iterations)
                self.model.fit(batches.repeat(), steps_per_epoch=5, verbose=0)
                self.nested = int(self.model.optimizer.iterations) - self.nested

    keras.utils.set_random_seed(1)
    model = Dense([keras.Input([1]), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(1e-6), "mse")
    assert len(model.predict(inputs[:10], verbose=0)) == 10
    calls = Calls()
    validation = {"validation_data": batches.repeat(), "validation_steps": 5}
    model.fit(batches, epochs=2, verbose=0, callbacks=[calls], **validation)
    assert calls.tests == 10 and calls.sizes == (200, 6) and calls.nested == 5
    assert int(model.optimizer.iterations) == 200 + 2 + 5
    assert model.steps_per_execution == 1 and model.train_function.run is None


@pytest.mark.parametrize("workers", [1, 2])
def test_a_data_set_with_workers_ends_with_its_epoch(as_on_a_gpu, workers):
    class Endless(keras.utils.PyDataset):
        def __getitem__(self, index):
            return X[:BATCH], Y[:BATCH]

        @property
        def num_batches(self):
            return None

    model = dense()
    data = Endless(workers=workers)
    model.fit(data, steps_per_epoch=7, epochs=4, verbose=0)
    assert int(model.optimizer.iterations) == 28


def test_a_limit_on_the_steps_of_all_epochs(as_on_a_gpu):
    model = dense()
    keras.config.set_max_steps_per_epoch(5)
    try:
        with pytest.warns(UserWarning, match="Limiting steps_per_epoch to 5"):
            model.fit(X, Y, batch_size=BATCH, verbose=0)
    finally:
        keras.config.set_max_steps_per_epoch(None)
    assert int(model.optimizer.iterations) == 5


def test_a_model_may_refuse_groups(as_on_a_gpu, seen):
    model = dense()
    model.groups_steps = False
    model.fit(X, Y, batch_size=BATCH, verbose=0, callbacks=[grouping.Bar()])
    assert [batch for batch, _ in seen] == [*range(12)]


@pytest.mark.parametrize(
    "asked, compiled", [({}, True), ({"jit_compile": False}, False)]
)
def test_replicas_on_gpus_are_compiled_by_default(monkeypatch, asked, compiled):
    monkeypatch.setattr(replicas, "on_gpus", lambda strategy: True)
    model = dense()
    model.compile("sgd", "mse", **asked)
    assert model.jit_compile == compiled
    assert model.get_compile_config()["jit_compile"] == compiled


def test_sparse_batches_under_a_strategy_of_one_device():
    x = tf.sparse.from_dense(X)
    with tf.distribute.OneDeviceStrategy("CPU:0").scope():
        model = Dense([keras.Input([3], sparse=True), keras.layers.Dense(1)])
        model.compile("sgd", "mse", jit_compile=False)
    batches = tf.data.Dataset.from_tensor_slices((x, Y)).batch(BATCH)
    model.fit(batches, verbose=0)
    assert int(model.optimizer.iterations) == 12


def test_an_iterator_serves_one_fit_after_the_other(as_on_a_gpu):
    def pairs():
        for _ in range(100):  # Keras prefetches an unspecified number
            yield X[:BATCH], Y[:BATCH]

    model, iterator = dense(), pairs()
    assert not grouping.plan(model, {"x": iterator}).ahead
    for _ in range(2):
        model.fit(iterator, steps_per_epoch=9, verbose=0)
    assert int(model.optimizer.iterations) == 18


class OwnStep(Dense):
    """Has batches and logs of its own."""

    def train_step(self, data):
        inputs = data["image"] if isinstance(data, dict) else data[0]
        kernel, bias = self.trainable_variables
        sums = tf.reduce_sum(inputs, axis=1)
        gradients = [tf.zeros_like(kernel), tf.reduce_sum(sums)[None]]
        self.optimizer.apply(gradients, [kernel, bias])
        return {"sums": sums}


@pytest.mark.parametrize("form", ["four parts", "dictionary"])
def test_steps_and_batches_of_ones_own(as_on_a_gpu, form):
    model = OwnStep([keras.Input([3]), keras.layers.Dense(1)])
    model.compile("sgd", "mse", steps_per_execution=2)
    batch = (X, X, X, Y) if form == "four parts" else {"image": X, "label": Y}
    batches = tf.data.Dataset.from_tensor_slices(batch).batch(BATCH)
    model.fit(batches, verbose=0)
    assert int(model.optimizer.iterations) == 12
    bias = model.get_weights()[1]
    np.testing.assert_allclose(bias, [-0.01 * X.sum()], rtol=1e-5)


def test_a_part_of_the_inputs_may_be_nothing(as_on_a_gpu):
    class Part(Unrolled, keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, inputs):
            return self.dense(inputs["b"])

    def pairs():
        for _ in range(3):
            yield {"a": None, "b": X[:BATCH]}, Y[:BATCH]

    model = Part()
    model.compile("sgd", "mse")
    model.fit(pairs(), verbose=0)
    assert int(model.optimizer.iterations) == 3


@pytest.mark.parametrize("steps", [None, 12])
def test_a_data_set_may_have_nothing_for_weights(as_on_a_gpu, fit, steps):
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH)
    data = data.map(lambda x, y: (x, y, None)).repeat(1 if steps is None else None)
    model = dense()
    model.fit(data, epochs=2, steps_per_epoch=steps, verbose=0)
    assert [weight.tolist() for weight in model.get_weights()] == fit()[2]


def test_the_bar_keeps_its_steps_in_validation(as_on_a_gpu, capsys):
    batches = tf.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH)
    unknown = batches.filter(lambda *_: True)
    dense().fit(unknown, validation_data=batches, verbose=1)
    assert "12/12" in capsys.readouterr().out.split("\n")[-2]


def test_compile_may_ask_for_steps(as_on_a_gpu, seen):
    model = dense()
    model.compile("sgd", "mse", steps_per_execution=3)
    model.fit(X, Y, batch_size=BATCH, verbose=0, callbacks=[grouping.Bar()])
    assert [batch for batch, _ in seen] == [2, 5, 8, 11]
    assert model.steps_per_execution == 3


@pytest.mark.parametrize("epochs, steps", [(2, None), (3, 4)])
def test_a_callback_may_have_the_step_traced_again(as_on_a_gpu, fit, epochs, steps):
    class Again(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.model.make_train_function(force=True)

    arguments = {"epochs": epochs, "steps_per_epoch": steps}
    assert fit([Again()], **arguments) == fit(**arguments)
