# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Runs of `quantize` that are stopped go on, as if nothing had been."""

import io
import json

import keras
import numpy as np
import pytest

from tf_capsops.__main__ import main
from tf_capsops.cli import callbacks, quantization, runs

pytestmark = pytest.mark.usefixtures("eagerly")
OPTIONS = {
    "steps": ["--bits", "3", "--steps", "0.4", "0.7", "1", "--epochs-per-step", "2"],
    "straight_through": [
        *("--bits", "2", "--straight-through", "--activation-bits", "8"),
        *("--per-channel", "--epochs-per-step", "4"),
    ],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with model.keras and images.npz."""
    folder = tmp_path_factory.mktemp("folder")
    keras.utils.set_random_seed(1)
    layers = [keras.Input([6, 6, 1]), keras.layers.Conv2D(3, 3, activation="relu")]
    layers += [keras.layers.Dropout(0.3), keras.layers.Flatten()]
    layers += [keras.layers.Dense(4, activation="softmax")]
    model = keras.Sequential(layers)
    loss = keras.losses.SparseCategoricalCrossentropy()
    model.compile("sgd", loss, metrics=["accuracy"])
    model.save(folder / "model.keras")
    random = np.random.default_rng(1)
    x, y = random.random([2, 40, 6, 6], np.float32), np.arange(40) % 4
    arrays = {"x_train": x[0], "y_train": y, "x_test": x[1], "y_test": y}
    np.savez(folder / "images.npz", **arrays)
    return folder


@pytest.fixture
def work(folder, tmp_path, monkeypatch):
    """An empty working directory with those files."""
    for path in folder.glob("*.*"):
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _quantize(options, output):
    given = ["model.keras", "--data", "images.npz", "--batch-size", "8"]
    # Deterministic kernels would hold for the tests that follow.
    given += ["--seed", "5", "--nondeterministic"]
    return main(["quantize", *given, *options, "--output", output])


@pytest.fixture
def stopped(work, monkeypatch):
    """A function that quantizes up to an epoch, and is stopped then."""

    def stop(options, epoch, error=KeyboardInterrupt):
        with monkeypatch.context() as patch:
            patch.setattr(callbacks, "_PAUSE", 0)  # a checkpoint every epoch

            def begin(self, number, logs=None):
                if number == epoch:
                    raise error

            patch.setattr(callbacks.Clock, "on_epoch_begin", begin)
            patch.setattr(callbacks.Clock, "on_epoch_end", lambda *_: None)
            assert _quantize(options, "stopped") == 130
        return work / "stopped"

    return stop


def _read(run, name):
    return json.loads((run / name).read_text())


# In the middle of a step, and between two.
@pytest.mark.parametrize(
    "name, epoch, command",
    [("steps", 1, "quantize"), ("steps", 2, "train"), ("straight_through", 3, "train")],
)
def test_goes_on_as_if_nothing_had_been(work, stopped, capsys, name, epoch, command):
    options = OPTIONS[name]
    if command == "train":  # epochs that are shorter than the images would make them
        (work / "config.json").write_text(json.dumps({"steps_per_epoch": 3}))
    run = stopped(options, epoch)
    assert runs.newest_checkpoint(run)[0] == epoch
    said = "`tf-capsops quantize --resume stopped` goes on"
    assert said in capsys.readouterr().out
    assert main([command, "--resume", "stopped"]) == 0
    assert f"stopped: on from epoch {epoch} of" in capsys.readouterr().out
    assert _quantize(options, "whole") == 0
    whole = work / "whole"
    assert {each.name for each in run.iterdir()} == {
        each.name for each in whole.iterdir()
    }
    assert _read(run, "history.json") == _read(whole, "history.json")
    ours, theirs = (_read(each, "report.json") for each in (run, whole))
    assert ours.pop("seconds") > 0 < theirs.pop("seconds")
    for report in (ours, theirs):
        report.pop("bytes_of_file")  # of compressed files, with the time in them
    assert ours == theirs
    for file in (runs.MODEL, quantization.CODES):
        models = [keras.saving.load_model(each / file) for each in (run, whole)]
        for one, other in zip(*(each.get_weights() for each in models), strict=True):
            np.testing.assert_array_equal(one, other)


def test_what_cannot_go_on(stopped, capsys):
    run = stopped(OPTIONS["steps"], 2)
    state = run / "checkpoint-2.npz"
    kept = state.read_bytes()
    capsys.readouterr()

    def fails(text, *more):
        assert main(["quantize", "--resume", "stopped", *more]) == 2
        assert text in capsys.readouterr().err

    fails("the arguments of the run: no --bits", "--bits", "4")
    fails("the arguments of the run: no RUN_OR_MODEL", "model.keras")
    state.write_bytes(kept[:100])
    fails(f"cannot read stopped/{state.name}: ")
    state.unlink()
    fails(f"cannot read stopped/{state.name}: ")
    with np.load(io.BytesIO(kept)) as arrays:
        np.savez(state, **{k: v for k, v in arrays.items() if "kernel_1" not in k})
    fails("the state to resume has no 'mask': it is of another model")
    state.write_bytes(kept)
    config = _read(run, runs.CONFIG)
    for changed, text in (
        ({"bits": 9}, "bits must be "),
        ({"bits": 4}, "the state to resume is of bits=3, steps=(0.4, 0.7, 1.0), "),
        ({"seed": "x"}, "stopped/config.json: seed must be an integer >= 0, got 'x'"),
    ):
        runs.write_json(run / runs.CONFIG, {**config, **changed})
        fails(text)
    del config["steps"]
    runs.write_json(run / runs.CONFIG, config)
    fails("stopped/config.json has no 'steps'")
    runs.remove_checkpoints(run)
    fails("nothing to resume in stopped: it has no checkpoint: quantize again")
