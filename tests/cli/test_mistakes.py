# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Commands that cannot do what they were asked say so in one line and write nothing."""

import json
import os
import sys

import keras
import pytest
import tensorflow as tf

from tf_capsops.__main__ import main
from tf_capsops.cli import networks


@pytest.fixture
def work(tmp_path, monkeypatch):
    """An empty working directory."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def run(work):
    """The directory of a run whose model classifies digits."""
    folder = work / "run"
    folder.mkdir()
    model = keras.Sequential(
        [keras.Input([8, 8, 1]), keras.layers.Flatten(), keras.layers.Dense(10)]
    )
    model.compile("sgd", "sparse_categorical_crossentropy")
    model.save(folder / "model.keras")
    return folder


def _assert_refused(arguments, text, capsys):
    assert main(arguments) == 2
    errors = capsys.readouterr().err
    assert errors.startswith(f"tf-capsops {arguments[0]}: error: ")
    assert text in errors
    assert errors.count("\n") == 1


@pytest.mark.parametrize("output", [".", "..", "/", "./", "runs/.."])
def test_output_without_a_name(work, capsys, output):
    text = "--output must name a new directory, got "
    _assert_refused(["train", "--output", output], text, capsys)
    assert not list(work.iterdir())
    assert [path.name for path in work.parent.iterdir()] == ["work"]


@pytest.mark.parametrize("content", [b"", b"PK\3\4 no archive", b"[]"])
def test_damaged_model(run, capsys, content):
    (run / "model.keras").write_bytes(content)
    arguments = ["evaluate", "run", "--data", "digits"]
    _assert_refused(arguments, "run/model.keras holds no model that loads: ", capsys)


@pytest.mark.parametrize(
    "target, text",
    [
        ("folder", "folder is no run: it has no model.keras, but folder/new has"),
        ("folder/empty", "folder/empty is no run: it has no model.keras\n"),
        ("folder/new.png", "folder/new.png is not a .keras file: give a run's dir"),
        ("folder/new/config.json", "config.json is not a .keras file: give a run's"),
        (
            "folder/stopped",
            "the training of folder/stopped was stopped: `tf-capsops train --resume "
            "folder/stopped` goes on",
        ),
        ("folder/empty.keras", "folder/empty.keras holds no model that loads: "),
    ],
)
@pytest.mark.parametrize("command", ["evaluate", "reconstruct", "quantize"])
def test_what_is_no_run(work, capsys, command, target, text):
    for number, name in enumerate(("old", "new", "stopped", "empty")):
        (work / "folder" / name).mkdir(parents=True)
        if name in ("old", "new"):
            model = work / "folder" / name / "model.keras"
            model.touch()
            os.utime(model, (number, number))
    (work / "folder" / "new" / "config.json").write_text("{}")
    (work / "folder" / "stopped" / "checkpoint-3.keras").touch()
    (work / "folder" / "new.png").write_bytes(b"\x89PNG")
    (work / "folder" / "empty.keras").touch()
    _assert_refused([command, target], text, capsys)


@pytest.mark.parametrize("source", [5, None, ["digits"], {}, True])
def test_data_of_a_run_that_is_no_name(run, capsys, source):
    (run / "config.json").write_text(json.dumps({"data": source}))
    text = "run/config.json does not name the data: give --data"
    _assert_refused(["evaluate", "run"], text, capsys)


@pytest.mark.parametrize(
    "entry, text",
    [
        ({"epochs": "50"}, "run/config.json: epochs must be an integer >= 1, got '50'"),
        ({"epochs": 0}, "epochs must be an integer >= 1, got 0"),
        ({"batch_size": 1.5}, "batch_size must be an integer >= 1, got 1.5"),
        (
            {"learning_rate": [0.1]},
            "learning_rate must be a positive number, got [0.1]",
        ),
        ({"learning_rate": float("nan")}, "learning_rate must be a positive number"),
        (
            {"distortion": [1]},
            "run/config.json: distortion must be an object of shift, degrees, zoom",
        ),
        ({"distortion": {"shift": "1"}}, "numbers >= 0, got {'shift': '1'}"),
        ({"distortion": {"shear": 1}}, "got {'shear': 1}"),
        ({"distortion": {"zoom": -1}}, "got {'zoom': -1}"),
        ({"distortion": {"zoom": 10**400}}, "numbers >= 0, got {'zoom': 1000"),
        ({"learning_rate": 10**400}, "learning_rate must be a positive number, got 10"),
    ],
    ids=str,
)
def test_training_of_a_run_of_odd_types(run, capsys, entry, text):
    (run / "config.json").write_text(json.dumps({"data": "digits", **entry}))
    _assert_refused(["quantize", "run"], text, capsys)
    assert {path.name for path in run.parent.iterdir()} == {"run"}


@pytest.mark.parametrize("command", ["evaluate", "quantize"])
@pytest.mark.parametrize("content", ["[]", "{", "\0", "5", "[" * 100_000])
def test_configuration_that_is_no_object(run, capsys, command, content):
    (run / "config.json").write_text(content)
    _assert_refused([command, "run"], "run/config.json", capsys)


@pytest.mark.parametrize("given", [["--data", "digits"], []])
@pytest.mark.parametrize("content", [b"{", b"\xff", b"[" * 100_000])
def test_configuration_that_is_no_json(run, capsys, content, given):
    (run / "config.json").write_bytes(content)
    for command in ("quantize", "evaluate"):
        text = "run/config.json is not JSON: "
        _assert_refused([command, "run", *given], text, capsys)


@pytest.mark.parametrize(
    "module, name, arguments",
    [
        ("sklearn", "scikit-learn", ["train"]),
        ("sklearn", "scikit-learn", ["evaluate", "run", "--data", "digits"]),
        ("sklearn", "scikit-learn", ["denoise"]),
        ("scipy", "SciPy", ["denoise"]),
        ("matplotlib", "matplotlib", ["denoise"]),
        ("matplotlib", "matplotlib", ["train"]),
        ("matplotlib", "matplotlib", ["reconstruct", "run"]),
        ("matplotlib", "matplotlib", ["bench"]),
        ("tensorboard", "TensorBoard", ["train"]),
        ("rich", "rich", ["bench", "--suite", "smoke"]),
    ],
)
def test_missing_packages(run, monkeypatch, capsys, module, name, arguments):
    monkeypatch.setitem(sys.modules, module, None)
    text = f"this needs {name}: run `pip install 'tf-capsops[demo]'`"
    _assert_refused(arguments, text, capsys)
    assert {path.name for path in run.parent.iterdir()} == {"run"}


def test_bench_names_a_directory_that_it_cannot_make(work, capsys):
    (work / "notes.txt").write_text("no directory")
    arguments = ["bench", "--output", "notes.txt/bench"]
    _assert_refused(arguments, "notes.txt/bench", capsys)


_Exhausted = tf.errors.ResourceExhaustedError


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        _Exhausted(None, None, "OOM when allocating tensor with shape[9,9]"),
        _Exhausted(None, None, "Out of memory while trying to allocate 99 bytes."),
    ],
)
def test_out_of_memory(run, monkeypatch, capsys, error):
    def load(path):
        raise error

    monkeypatch.setattr(networks, "load", load)
    text = "out of memory: smaller images or smaller batches need less"
    _assert_refused(["evaluate", "run", "--data", "digits"], text, capsys)


def test_other_errors_of_exhausted_resources(run, monkeypatch):
    def load(path):
        raise _Exhausted(None, None, "too many files are open")

    monkeypatch.setattr(networks, "load", load)
    with pytest.raises(_Exhausted, match="too many files"):
        main(["evaluate", "run", "--data", "digits"])
