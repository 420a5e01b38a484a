# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Runs of `train` that are stopped or killed: nothing is lost, and they go on."""

import json
import os
import pathlib
import shutil
import signal
import time

import fresh
import keras
import noise
import numpy as np
import pytest

from tf_capsops import data
from tf_capsops.__main__ import main
from tf_capsops.cli import callbacks, networks, resume, runs

_PATIENCE = 120  # seconds
# Tracing would take longer than the steps.
_COMMAND = f"""
import tensorflow as tf
tf.config.run_functions_eagerly(True)
{fresh.COMMAND}"""

pytestmark = pytest.mark.usefixtures("eagerly")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder with noise.npz and runs/noise, of four epochs; and the arguments."""
    folder = tmp_path_factory.mktemp("finished")
    noise.save(folder, 40, 8)
    arguments = ["train", "--data", "noise.npz", "--batch-size", "4"]
    arguments += ["--epochs", "4", "--seed", "7", "--reconstruction-weight", "0.1"]
    fresh.finish(fresh.start(fresh.UNDRAWN + _COMMAND, *arguments, cwd=folder))
    return folder, arguments


@pytest.fixture
def stopped(finished, tmp_path, monkeypatch):
    """Starts the same run in a folder of its own, and ends it by a signal.

    Returns:
      A function from the signal to the process and the run's directory.
    """
    folder, arguments = finished
    shutil.copy(folder / "noise.npz", tmp_path)
    monkeypatch.chdir(tmp_path)

    def stop(number):
        process = fresh.start(_COMMAND, *arguments, cwd=tmp_path)
        run = tmp_path / "runs" / "noise"
        latest = time.monotonic() + _PATIENCE
        while runs.newest_checkpoint(run)[1] is None and process.poll() is None:
            assert time.monotonic() < latest
            time.sleep(0.01)
        process.send_signal(number)
        return process, run

    return stop


def _history(run):
    return json.loads((run / "history.json").read_text())


@pytest.mark.slow
def test_a_killed_run_goes_on_as_if_nothing_had_been(finished, stopped):
    process, run = stopped(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    done, path = runs.newest_checkpoint(run)
    assert 1 <= done <= len(_history(run)["loss"])
    assert keras.saving.load_model(path).name == "caps_net"
    (run / "partial.keras").write_bytes(b"what a kill leaves while a file is written")
    printed = fresh.finish(fresh.start(_COMMAND, "train", "--resume", "runs/noise"))
    assert f"on from epoch {done} of 4" in printed and "test accuracy" in printed
    whole = finished[0] / "runs" / "noise"
    assert _history(run) == _history(whole)
    models = [keras.saving.load_model(each / "model.keras") for each in (run, whole)]
    for ours, theirs in zip(*(model.get_weights() for model in models), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert {path.name for path in run.iterdir()} == {p.name for p in whole.iterdir()}


def test_dropout_goes_on_as_if_nothing_had_been(tmp_path):
    x = np.random.default_rng(1).random([6, 3], np.float32)

    def made(seed):
        keras.utils.set_random_seed(seed)
        dense = keras.layers.Dense(3, kernel_initializer="ones")
        model = keras.Sequential([keras.Input([3]), dense, keras.layers.Dropout(0.5)])
        model.compile("adam", "mse", metrics=["mae"])
        return model

    def trained(model, first, epochs):
        given = {"batch_size": 2, "shuffle": False, "verbose": 0}
        given |= {"initial_epoch": first, "epochs": epochs}
        model.fit(x, x, callbacks=[callbacks.Draws(7)], **given)
        return model

    trained(made(1), 0, 1).save(tmp_path / "model.keras")
    again = trained(keras.saving.load_model(tmp_path / "model.keras"), 1, 3)
    whole = trained(made(2), 0, 3)
    for ours, theirs in zip(again.get_weights(), whole.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.ci
def test_a_run_killed_after_its_last_checkpoint_is_finished(
    finished, undrawn, tmp_path, monkeypatch
):
    shutil.copytree(finished[0] / "runs", tmp_path / "runs")
    shutil.copy(finished[0] / "noise.npz", tmp_path)
    monkeypatch.chdir(tmp_path)
    run = pathlib.Path("runs/noise")
    _config(deterministic=False)(run)  # which would hold for the tests that follow
    (run / "model.keras").rename(run / "checkpoint-4.keras")
    before = json.loads((run / "result.json").read_text())
    (run / "result.json").unlink()
    assert main(["train", "--resume", "runs/noise"]) == 0
    after = json.loads((run / "result.json").read_text())
    assert before["seconds_per_epoch"] > 0 and after["seconds_per_epoch"] is None
    for name in ("images", "wrong", "parameters"):
        assert after[name] == before[name]
    assert runs.newest_checkpoint(run)[1] is None
    assert keras.saving.load_model(run / "model.keras").name == "caps_net"


@pytest.mark.ci
def test_a_run_killed_before_its_first_checkpoint_starts_again(
    finished, undrawn, tmp_path, monkeypatch, capsys
):
    shutil.copy(finished[0] / "noise.npz", tmp_path)
    monkeypatch.chdir(tmp_path)
    pathlib.Path("noise").mkdir()
    whole = finished[0] / "runs/noise"
    shutil.copy(whole / "config.json", "noise")
    _config(deterministic=False, data="noise.npz")(pathlib.Path("noise"))
    pathlib.Path("noise/history.json").write_text("{}")  # comes before the checkpoint
    assert main(["predict", "noise", "noise.npz"]) == 2
    assert "`tf-capsops train --resume noise` goes on" in capsys.readouterr().err
    assert main(["train", "--resume", "noise"]) == 0
    assert "noise: no checkpoint yet, from epoch 0 of 4\n" in capsys.readouterr().out
    again = _history(pathlib.Path("noise"))
    for name, values in _history(whole).items():
        np.testing.assert_allclose(again[name], values, rtol=1e-3, err_msg=name)


@pytest.mark.parametrize(
    "source, size", [("pictures", (9, 9)), ("segmented_mnist:digits", (16, 24))]
)
def test_data_of_a_run_is_read_as_before(source, size, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number in range(6):
        path = tmp_path / "pictures" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        keras.utils.save_img(path, np.full([12, 12, 3], number * 40), scale=False)
    loaded = data.load(source, image_size=size)
    config = {"data": data.absolute(source), **networks.described(loaded)}
    (tmp_path / "config.json").write_text(json.dumps(config))
    again = resume._data(tmp_path)
    assert again.image_shape == loaded.image_shape
    assert again.class_names == loaded.class_names
    assert len(again.test) == len(loaded.test)


def test_ctrl_c_saves_everything_and_ends(stopped):
    process, run = stopped(signal.SIGINT)
    printed, errors = process.communicate()
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    done = len(_history(run)["loss"])
    assert f"stopped in epoch {min(done + 1, 4)} of 4" in printed
    assert "train --resume " in printed and "test accuracy" in printed
    for name in ("model.keras", "curves.png", "reconstructions.png", "config.json"):
        assert (run / name).stat().st_size > 0, name
    assert main(["evaluate", str(run)]) == 0


def _press_ctrl_c():
    os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture
def heeds_ctrl_c():
    """A shell that starts tests in the background has them ignore Ctrl-C."""
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, handler)


@pytest.mark.usefixtures("heeds_ctrl_c")
def test_ctrl_c_waits_for_the_end_of_a_batch_or_of_the_block(capsys):
    done = []
    with pytest.raises(KeyboardInterrupt), callbacks.Hold():
        _press_ctrl_c()
        done.append("block")
    with pytest.raises(KeyboardInterrupt), callbacks.Hold() as hold:
        _press_ctrl_c()
        done.append("batch")
        hold.on_train_batch_end(0)
        done.append("another batch")
    with pytest.raises(KeyboardInterrupt), callbacks.Hold():
        _press_ctrl_c()
        _press_ctrl_c()
        done.append("what may never end")
    assert done == ["block", "batch"]
    assert capsys.readouterr().err.count("Ctrl-C again stops at once") == 3
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_is_left_to_who_handles_it():
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with callbacks.Hold():
            _press_ctrl_c()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, handler)


def test_weights_of_reconstructions(finished):
    config = json.loads((finished[0] / "runs/noise/config.json").read_text())
    assert config["network"]["reconstruction_weight"] == 0.1


def _damage(path, content):
    def damage(run):
        (run / path).write_text(content)

    return damage


def _config(**entries):
    def damage(run):
        config = json.loads((run / "config.json").read_text())
        (run / "config.json").write_text(json.dumps({**config, **entries}))

    return damage


def _without_an_epoch(run):
    (run / "history.json").unlink()
    (run / "result.json").unlink()


def _quantized(run):
    (run / "result.json").unlink()
    _config(source="runs/a")(run)


@pytest.mark.parametrize(
    "damage, arguments, said",
    [
        (None, [], "nothing to resume in runs/noise: it is trained"),
        (
            lambda run: (run / "config.json").unlink(),
            [],
            "in runs/noise: it is no run, without config.json and checkpoints",
        ),
        (_without_an_epoch, [], "in runs/noise: it was stopped in its first epoch"),
        (_quantized, [], "in runs/noise: it has no checkpoint: quantize again"),
        (None, ["--epochs", "9"], "the arguments of the run: no --epochs"),
        (None, ["--data", "digits"], "the arguments of the run: no --data"),
        (_damage("checkpoint-2.keras", ""), [], "holds no model that loads"),
        (
            lambda run: shutil.copy(run / "model.keras", run / "checkpoint-9.keras"),
            [],
            "history.json is no history of 9 epochs",
        ),
        (_config(seed="x"), [], "config.json: seed must be an integer >= 0, got 'x'"),
        (_config(jit=3), [], "config.json: jit must be true or false, got 3"),
        (
            _config(steps_per_execution=0),
            [],
            "steps_per_execution must be an integer >= 1, got 0",
        ),
    ],
)
def test_what_cannot_go_on(
    finished, tmp_path, monkeypatch, capsys, damage, arguments, said
):
    shutil.copytree(finished[0] / "runs", tmp_path / "runs")
    shutil.copy(finished[0] / "noise.npz", tmp_path)
    monkeypatch.chdir(tmp_path)
    run = pathlib.Path("runs/noise")
    _config(deterministic=False)(run)  # which would hold for the tests that follow
    if damage:
        damage(run)
        if "in runs/noise: " not in said and runs.newest_checkpoint(run)[1] is None:
            shutil.copy(run / "model.keras", run / "checkpoint-2.keras")
    assert main(["train", "--resume", "runs/noise", *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error and "Traceback" not in error


@pytest.mark.parametrize(
    "entries, said",
    [
        ({"model": "net"}, "config.json: model must be one of capsnet, p_capsnet, "),
        ({"routing": "fm"}, "config.json: routing must be one of em, vb, dynamic, "),
        (
            {"network": {"width": 3}},
            "config.json describes no network that can be made",
        ),
        ({"network": 3}, "config.json describes no network that can be made: "),
        ({"network": {}}, "config.json describes no network that can be made: "),
    ],
)
def test_a_network_that_was_changed_by_hand(
    finished, tmp_path, monkeypatch, capsys, entries, said
):
    """Only a run without a checkpoint makes it anew."""
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "noise"
    run.mkdir()
    shutil.copy(finished[0] / "runs/noise/config.json", run)
    data_file = str(finished[0] / "noise.npz")
    _config(data=data_file, deterministic=False, **entries)(run)
    assert main(["train", "--resume", "noise"]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
