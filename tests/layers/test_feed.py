# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Batches come in groups, in order, and each once."""

import threading
import time

import fresh
import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_capsops.models import (
    Unrolled,
    ahead,
    epochs,
    grouping,
    loop,
    shares,
    unrolled,
)
from tf_capsops.models.ahead import Feed


def groups(data, steps, ahead_of_time=False, check=lambda batch: None):
    """Returns what a `Feed` gives: numbers of steps and batches, as lists."""
    model = keras.Sequential()
    feed = Feed(model, iter(data), steps, None, ahead_of_time, check)
    taken = iter(feed.next, None)
    return [(group.steps, group.shares[0].numpy().tolist()) for group in taken]


@pytest.mark.parametrize("ahead_of_time", [False, True])
def test_batches_are_taken_once_and_in_order(ahead_of_time):
    checked = []
    data = tf.data.Dataset.range(11).batch(2)
    taken = groups(data, 2, ahead_of_time, lambda batch: checked.append(batch.numpy()))
    stacked = [(2, [[0, 1], [2, 3]]), (2, [[4, 5], [6, 7]])]
    assert taken == [*stacked, (1, [8, 9]), (1, [10])]
    assert [batch.tolist() for batch in checked] == [[0, 1]]


@pytest.mark.parametrize("ahead_of_time", [False, True])
@pytest.mark.parametrize("length", [1, 2, 5])
def test_no_group_has_batches_of_two_epochs(length, ahead_of_time):
    data = tf.data.Dataset.range(length).repeat(3)
    arguments = 2, length, ahead_of_time, lambda batch: None
    taken = iter(Feed(keras.Sequential(), iter(data), *arguments).next, None)
    epoch = [[i, i + 1] for i in range(0, length - 1, 2)] + [length - 1] * (length % 2)
    assert [group.shares[0].numpy().tolist() for group in taken] == epoch * 3


def test_large_batches_make_smaller_groups(monkeypatch):
    monkeypatch.setattr(ahead, "_MOST_BYTES", 7 * 8)
    taken = groups(tf.data.Dataset.range(16).batch(2), 4)
    assert [steps for steps, _ in taken] == [2, 2, 2, 2]
    monkeypatch.setattr(ahead, "_MOST_BYTES", 1)
    assert [steps for steps, _ in groups(tf.data.Dataset.range(3), 3)] == [1, 1, 1]


def test_batches_of_other_shapes_come_alone():
    data = tf.data.Dataset.range(1, 5).map(lambda size: tf.range(size))
    expected = [(1, [*range(size)]) for size in range(1, 5)]
    assert groups(data, 2) == expected


def test_what_cannot_be_stacked_comes_alone():
    data = tf.data.Dataset.from_tensor_slices(tf.sparse.eye(6)).batch(2)
    feed = Feed(keras.Sequential(), iter(data), 3, None, False, lambda batch: None)
    taken = [*iter(feed.next, None)]
    assert [group.steps for group in taken] == [1, 1, 1]
    rows = [tf.sparse.to_dense(group.shares[0]).numpy() for group in taken]
    np.testing.assert_array_equal(np.concatenate(rows), np.eye(6))


def test_processes_make_groups_of_batches_of_any_size(monkeypatch):
    """Each knows its own shares only, and all must run as many steps at a time."""
    monkeypatch.setattr(ahead.shares, "several_processes", lambda strategy: True)
    data = tf.data.Dataset.range(5).batch(2).map(lambda row: (row, None)).repeat()
    feed = Feed(keras.Sequential(), iter(data), 4, 4, False, lambda batch: None)
    for first in ([[0, 1], [2, 3], [4], [0, 1]], [[2, 3], [4], [0, 1], [2, 3]]):
        group = feed.next()
        assert group.steps == 4
        rows = [loop.nth(group.shares[0], tf.constant(i)) for i in range(4)]
        assert [(row.numpy().tolist(), none) for row, none in rows] == [
            (row, None) for row in first
        ]


def test_no_batch_is_lost_between_executions():
    """Without copies ahead each execution takes its own, and not one batch more."""
    iterator = iter(tf.data.Dataset.range(7))
    for expected in ([0, 1, 2], [3, 4, 5]):
        feed = Feed(keras.Sequential(), iterator, 3, None, False, lambda batch: None)
        assert feed.next().shares[0].numpy().tolist() == expected
    assert next(iterator) == 6


def test_a_failing_data_set_says_so_at_its_step():
    def broken():
        yield tf.constant(1.0)
        yield tf.constant(2.0)
        raise ValueError("no third picture")

    feed = Feed(keras.Sequential(), broken(), 1, None, True, lambda batch: None)
    assert [float(feed.next().shares[0]) for _ in range(2)] == [1, 2]
    with pytest.raises(ValueError, match="no third picture"):
        feed.next()


X = np.ones([7, 3], np.float32)


class Dense(Unrolled, keras.Sequential):
    pass


def fit(x, **arguments):
    model = Dense([keras.Input([3]), keras.layers.Dense(3)])
    model.compile("sgd", "mse")
    y = x if isinstance(x, np.ndarray) else None
    model.fit(x, y, shuffle=False, verbose=0, **arguments)


def test_only_data_sets_of_the_users_own_are_tuned(monkeypatch):
    tuned, begin = [], tf.data.Dataset.__iter__

    def spy(data_set):
        tuned.append(data_set.options().autotune.enabled)
        return begin(data_set)

    monkeypatch.setattr(tf.data.Dataset, "__iter__", spy)
    fit(X, batch_size=2, epochs=3)
    assert tuned == [False]  # one iterator for all epochs
    tuned.clear()
    fit(tf.data.Dataset.from_tensor_slices((X, X)).batch(2))
    assert {*tuned} == {None}


def test_no_epoch_waits_for_the_end_of_an_iterator(monkeypatch):
    where = []

    class Ending:
        def __del__(self):
            where.append(threading.current_thread() is threading.main_thread())

    make = grouping.Run.leave_feed

    def leave(run):
        if run.feed:
            run.feed.ending = Ending()
        make(run)

    monkeypatch.setattr(grouping.Run, "leave_feed", leave)
    data_set = tf.data.Dataset.from_tensors((X, X))
    fit(data_set, epochs=3, validation_data=(X, X))
    deadline = time.monotonic() + 60
    while len(where) < 6 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert where == [False] * 6


def test_the_end_of_a_process_waits_for_those_of_iterators():
    ended = []

    class Ending:
        def close(self):
            pass

        def __del__(self):
            time.sleep(0.1)
            ended.append(True)

    run = grouping.Run(Dense(), grouping.Plan(1))
    run.feed = Ending()
    run.leave_feed()
    ahead._wait_for_threads()
    assert ended


@pytest.mark.parametrize("wrong", [{"batch_size": "2"}, {"validation_split": 2.0}])
def test_arguments_that_keras_refuses_are_left_to_it(wrong):
    arguments = {"x": X, "batch_size": 2, **wrong}
    taken = epochs.Epochs(tf.distribute.get_strategy(), arguments, True)
    taken.close()
    assert taken.length is None


def test_a_process_ends_though_its_data_does_not():
    program = """
import queue, keras, numpy as np, tensorflow as tf
from tf_capsops.models import Unrolled, ahead, grouping
grouping.has_gpus = lambda: True
waiting = queue.Queue()
for _ in range(4): waiting.put((np.ones([2, 3], "f"), np.ones(2, "f")))
def pairs():
    while True: yield waiting.get()
spec = tf.TensorSpec([2, 3]), tf.TensorSpec([2])
data = tf.data.Dataset.from_generator(pairs, output_signature=spec)
class Model(Unrolled, keras.Sequential): pass
model = Model([keras.Input([3]), keras.layers.Dense(1)])
model.compile("sgd", "mse", run_eagerly=True)
model.fit(data, steps_per_epoch=2, verbose=0)
print("trained")
"""
    assert fresh.run(program).split()[-1] == "trained"


def test_a_compile_of_ones_own_is_left_to_the_user(tmp_path):
    class Own(Dense):
        def compile(self, temperature, **arguments):
            super().compile(**arguments)

    model = Own([keras.Input([3]), keras.layers.Dense(1)])
    model.compile(1.0, optimizer="sgd", loss="mse")
    model.save(tmp_path / "own.keras")
    with pytest.warns(UserWarning, match="was not called as part of model loading"):
        loaded = keras.models.load_model(tmp_path / "own.keras", {"Own": Own})
    assert getattr(loaded, "optimizer", None) is None


def test_what_is_copied_keeps_its_type_and_values():
    labels, rows = tf.constant([[1, 2], [3, 4]]), [[[1.0], [2.0, 3.0]], []]
    ragged = tf.ragged.constant(rows)
    sparse = tf.sparse.from_dense([[0, 7]])
    on_device, *others = (
        ahead._copy(value, "CPU:0", stacked=True).result()
        for value in (labels, tf.constant([0.5]), ragged, None, sparse)
    )
    assert isinstance(on_device, loop.Int32OnDevice)
    for index, expected in ((0, [1, 2]), (None, [[1, 2], [3, 4]])):
        found = loop.nth(on_device, index)
        assert found.dtype == tf.int32 and found.numpy().tolist() == expected
    spec = shares.spec_of_any_size(on_device)
    assert spec.as_int64 == tf.TensorSpec([None, 2], tf.int64)
    assert others[0].numpy() == 0.5 and others[1].to_list() == rows
    assert others[2] is None
    assert tf.sparse.to_dense(others[3]).numpy().tolist() == [[0, 7]]
    alone = ahead._copy(labels, "CPU:0", stacked=False).result()
    assert alone.dtype == tf.int32


def test_what_is_on_a_gpu_is_not_copied_from_the_host(monkeypatch, device):
    copier, called = ahead._copier, []
    monkeypatch.setattr(
        ahead, "_copier", lambda *key: called.append(key) or copier(*key)
    )
    with tf.device(device):
        value = tf.constant([0.5])
    copy = ahead._copy(value, device, stacked=False).result()
    assert copy.numpy() == 0.5 and bool(called) == ("CPU" in device)


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_a_model_without_weights_compiles_its_loop_once(monkeypatch, dtype):
    """The first batches are copied before it has a device."""
    monkeypatch.setattr(ahead, "has_gpus", lambda: True)
    monkeypatch.setattr(grouping, "has_gpus", lambda: True)
    for module in (ahead, grouping):
        where = lambda model: "CPU:0" if model.variables else None  # noqa: E731
        monkeypatch.setattr(module, "gpu_of", where)
    traced, seen = [], []
    repeat = unrolled.repeat
    monkeypatch.setattr(
        unrolled, "repeat", lambda *each: (traced.append(1), repeat(*each))[1]
    )

    class Model(Unrolled, keras.Sequential):
        def train_step(self, data):
            seen.append(data[1].dtype)
            return super().train_step(data)

    model = Model([keras.layers.Dense(1)])
    model.compile("sgd", "mse", steps_per_execution=5)
    x, y = np.ones([40, 3], np.float32), np.ones([40], dtype)
    model.fit(x, y, batch_size=2, verbose=0)
    assert int(model.optimizer.iterations) == 20
    assert len(traced) == 1 and {*seen} == {tf.as_dtype(dtype)}
