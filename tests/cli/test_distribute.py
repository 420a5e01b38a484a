# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""`train --distribute`: several devices, and several processes, train as one does."""

import json
import pathlib
import signal
import socket
import time
import types

import fresh
import keras
import noise
import numpy as np
import pytest
import tensorflow as tf

from tests import tolerances
from tf_capsops.__main__ import main
from tf_capsops.cli import distribution, runs
from tf_capsops.models import shares

# Python code between the imports and the command.
_TWO_CPUS = """
import tensorflow as tf
cpu, = tf.config.list_physical_devices("CPU")
two = [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(cpu, two)
tf.config.set_visible_devices([], "GPU")
"""
_PATIENCE = 120  # seconds
EPOCHS = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with noise.npz, whose shares are not all of one size."""
    folder = tmp_path_factory.mktemp("distributed")
    noise.save(folder, 23, 9)
    return folder


def _start(folder, run, *options, code="", **environment):
    arguments = ["train", "--data", "noise.npz", "--batch-size", "5", "--epochs"]
    arguments += [EPOCHS, "--output", f"runs/{run}", *options]
    environment = {"CUDA_VISIBLE_DEVICES": "-1", **environment}
    return fresh.start(code + fresh.COMMAND, *arguments, cwd=folder, **environment)


def _worker(folder, run, index, ports, *options):
    workers = [f"localhost:{port}" for port in ports]
    task = {"type": "worker", "index": index}
    config = json.dumps({"cluster": {"worker": workers}, "task": task})
    options = ["--distribute", "multiworker", *options]
    return _start(folder, run, *options, TF_CONFIG=config)


def _free_ports():
    with socket.socket() as one, socket.socket() as two:
        for each in (one, two):
            each.bind(("localhost", 0))
        return [each.getsockname()[1] for each in (one, two)]


@pytest.fixture(scope="module")
def alone(folder):
    """The run of one device."""
    eagerly = "import tensorflow as tf; tf.config.run_functions_eagerly(True)\n"
    code = fresh.UNDRAWN + eagerly
    fresh.finish(_start(folder, "alone", "--jit", "off", code=code))
    return folder / "runs" / "alone"


def _history(run):
    return json.loads((run / "history.json").read_text())


def _weights(run):
    return keras.saving.load_model(run / "model.keras").get_weights()


def _assert_same_training(run, expected):
    rounding = tolerances.ulp("float32")
    for name in ("loss", "lengths_accuracy", "val_loss", "val_lengths_accuracy"):
        ours, theirs = (_history(each)[name] for each in (run, expected))
        np.testing.assert_allclose(ours, theirs, rtol=8 * EPOCHS * rounding)
    for ours, theirs in zip(_weights(run), _weights(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=8 * EPOCHS * rounding)


@pytest.mark.ci
@pytest.mark.parametrize(
    "jit, steps", [("off", "1"), pytest.param("on", "2", marks=pytest.mark.slow)]
)
def test_two_devices_train_as_one(folder, alone, jit, steps):
    options = ["--distribute", "mirrored", "--jit", jit, "--steps-per-execution", steps]
    code = _TWO_CPUS + fresh.UNDRAWN
    printed = fresh.finish(_start(folder, f"jit-{jit}", *options, code=code))
    assert "on 2 devices" in printed and ("with XLA" in printed) == (jit == "on")
    run = folder / "runs" / f"jit-{jit}"
    _assert_same_training(run, alone)
    assert {each.name for each in run.iterdir()} == {p.name for p in alone.iterdir()}


@pytest.mark.slow
def test_two_processes_train_as_one(folder, alone):
    options = ["--jit", "on", "--steps-per-execution", "3"]
    ports = _free_ports()
    processes = [_worker(folder, "workers", i, ports, *options) for i in range(2)]
    chief, other = (fresh.finish(process) for process in processes)
    assert "on 2 devices" in chief and "wrote runs/workers" in chief
    assert other == ""
    assert not (folder / "runs" / "workers-2").exists()
    run = folder / "runs" / "workers"
    _assert_same_training(run, alone)
    assert {each.name for each in run.iterdir()} == {p.name for p in alone.iterdir()}


_ARRAYS = """
import sys
import keras, numpy as np, tensorflow as tf
from tf_capsops import models
class Model(models.Unrolled, keras.Sequential):
    pass
strategy = tf.distribute.get_strategy()
if sys.argv[1] != "alone":
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
for rows in map(int, sys.argv[2:]):
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = Model([keras.Input([3]), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    x = np.random.default_rng(1).random([rows, 3], np.float32)
    given = {"batch_size": 4, "epochs": 2, "shuffle": False, "verbose": 0}
    try:
        fitted = model.fit(x, x[:, :1], **given)
    except ValueError as error:
        sys.exit(print(error))
    losses, weights = fitted.history["loss"], model.get_weights()[0][:, 0]
    print(model.optimizer.iterations.numpy(), *losses, *weights)
    if rows == 11:  # 3 batches, the last of which is smaller, but 5 make an epoch
        sparse = tf.sparse.from_dense(x)
        for inputs in x, sparse:
            data = tf.data.Dataset.from_tensor_slices((inputs, x[:, :1])).batch(4)
            options = tf.data.Options()
            policy = tf.data.experimental.AutoShardPolicy.DATA
            options.experimental_distribute.auto_shard_policy = policy
            data = data.repeat().with_options(options)
            model.steps_per_execution = 2
            model.fit(data, epochs=2, steps_per_epoch=5, verbose=0)
            print(model.optimizer.iterations.numpy(), *model.get_weights()[0][:, 0])
"""


@pytest.mark.ci
def test_two_processes_train_on_arrays(folder):
    """A batch may leave a process without a sample, or be smaller in one."""
    ports = _free_ports()
    cluster = {"worker": [f"localhost:{port}" for port in ports]}
    environment = {"cwd": folder, "CUDA_VISIBLE_DEVICES": "-1"}
    started = [fresh.start(_ARRAYS, "alone", "9", "11", **environment)]
    for index in range(2):
        task = {"type": "worker", "index": index}
        config = json.dumps({"cluster": cluster, "task": task})
        rows = "9", "11", str(8 + 4 * index)  # at last not those of the other process
        started.append(
            fresh.start(_ARRAYS, "shared", *rows, TF_CONFIG=config, **environment)
        )
    alone, *shared = (fresh.finish(each).splitlines() for each in started)
    for index, (*lines, last) in enumerate(shared):
        assert f"this one gives {8 + 4 * index} samples" in last
        for ours, theirs in zip(lines, alone, strict=True):
            ours, theirs = ([*map(float, line.split())] for line in (ours, theirs))
            np.testing.assert_allclose(ours, theirs, rtol=8 * tolerances.ulp("float32"))


def _wait_for_a_checkpoint(run, process):
    latest = time.monotonic() + _PATIENCE
    while runs.newest_checkpoint(run)[1] is None:
        assert process.poll() is None and time.monotonic() < latest
        time.sleep(0.01)


@pytest.mark.slow
def test_a_stopped_run_of_two_devices_goes_on(folder, alone):
    process = _start(folder, "resumed", "--distribute", "mirrored", code=_TWO_CPUS)
    run = folder / "runs" / "resumed"
    _wait_for_a_checkpoint(run, process)
    process.send_signal(signal.SIGINT)
    printed, errors = process.communicate()
    assert process.returncode == 130 and "Traceback" not in errors, errors
    assert "stopped in epoch " in printed and "goes on" in printed
    assert (run / "reconstructions.png").stat().st_size > 0
    command = _TWO_CPUS + fresh.COMMAND
    resume = ["train", "--resume", "runs/resumed"]
    environment = {"CUDA_VISIBLE_DEVICES": "-1"}
    again = fresh.start(command, *resume, cwd=folder, **environment)
    assert "on from epoch " in fresh.finish(again)
    _assert_same_training(run, alone)


@pytest.mark.slow
def test_a_run_whose_worker_was_killed_goes_on(folder, alone):
    ports = _free_ports()
    chief, other = (_worker(folder, "killed", i, ports) for i in range(2))
    run = folder / "runs" / "killed"
    _wait_for_a_checkpoint(run, chief)
    for process in (other, chief):
        process.send_signal(signal.SIGKILL)
        process.communicate()
    command = ["train", "--resume", "runs/killed"]
    workers = [f"localhost:{port}" for port in _free_ports()]
    processes = []
    for index in range(2):
        task = {"type": "worker", "index": index}
        config = json.dumps({"cluster": {"worker": workers}, "task": task})
        environment = {"TF_CONFIG": config, "CUDA_VISIBLE_DEVICES": "-1"}
        processes.append(
            fresh.start(fresh.COMMAND, *command, cwd=folder, **environment)
        )
    printed, other = (fresh.finish(process) for process in processes)
    assert "on from epoch " in printed and other == ""
    _assert_same_training(run, alone)


_GOOD = {"worker": ["localhost:1", "localhost:2"]}


class Processes(tf.distribute.MultiWorkerMirroredStrategy):
    """A strategy of two processes of a device each, which does not wait for the other.

    Its replica is the second one.
    """

    extended = None
    num_replicas_in_sync = 2

    def __init__(self, communication_options=None):
        self.options = communication_options
        self.extended = types.SimpleNamespace(worker_devices=("CPU:0",))

    def experimental_distribute_dataset(self, dataset, options=None):
        return dataset

    def experimental_distribute_values_from_function(self, value_fn):
        return value_fn(types.SimpleNamespace(replica_id_in_sync_group=1))

    def experimental_local_results(self, value):
        return value.values


class Share(tf.distribute.DistributedValues):
    def __init__(self, value):
        self.values = [value]


@pytest.mark.parametrize("gpus, how", [([], "AUTO"), (["GPU:0"], "NCCL")])
def test_processes_with_gpus_use_nccl(monkeypatch, gpus, how):
    config = {"cluster": _GOOD, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: gpus)
    monkeypatch.setattr(tf.distribute, "MultiWorkerMirroredStrategy", Processes)
    strategy = distribution.strategy("multiworker")
    assert strategy.options.implementation.value == how


def test_a_process_computes_on_all_of_its_share():
    """It may have the one replica, whose share looks like a batch to be divided."""
    strategy = Processes()
    for batch, expected in ((Share(tf.range(3)), [0, 1, 2]), (tf.range(3), [1, 2])):
        (own,) = shares.divide(strategy, shares.parts(strategy, batch))
        assert own.numpy().tolist() == expected


@pytest.mark.parametrize(
    "options, config, said",
    [
        (["multiworker"], None, "multiworker needs the environment variable TF_CONFIG"),
        (["multiworker"], "workers", "TF_CONFIG must name two workers or more"),
        (["multiworker"], "{}", "TF_CONFIG must name two workers or more"),
        (
            ["multiworker"],
            json.dumps({"cluster": _GOOD, "task": {"type": "worker", "index": 2}}),
            "and the index of this one",
        ),
        (
            ["multiworker"],
            json.dumps({"cluster": _GOOD, "task": {"type": "chief", "index": 0}}),
            "and the index of this one",
        ),
        (["parameter_server"], None, "invalid choice: 'parameter_server'"),
    ],
)
def test_mistakes(folder, monkeypatch, capsys, options, config, said):
    monkeypatch.chdir(folder)
    monkeypatch.delenv("TF_CONFIG", raising=False)
    if config is not None:
        monkeypatch.setenv("TF_CONFIG", config)
    assert main(["train", "--data", "noise.npz", "--distribute", *options]) == 2
    error = capsys.readouterr().err
    assert said in error and "Traceback" not in error
    assert not pathlib.Path("runs/noise").exists()


@pytest.mark.parametrize(
    "code, options, said",
    [
        ("", [], "needs two devices of a kind or more, but there is only CPU:0"),
        (_TWO_CPUS, ["--batch-size", "1"], "a batch of 1 is too small for 2 devices"),
        (_TWO_CPUS, ["--batch-size", "11"], "23 images has 1 of them, too few for 2"),
    ],
)
def test_devices_without_a_share(folder, code, options, said):
    options = ["--distribute", "mirrored", *options]
    process = _start(folder, "without", *options, code=code)
    _, errors = process.communicate()
    assert process.returncode == 2
    assert said in errors and "Traceback" not in errors
    assert not (folder / "runs" / "without").exists()
