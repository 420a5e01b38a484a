# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Help and mistakes: what they say of every command, and that TensorFlow is not met."""

import argparse
import json
import os
import subprocess
import sys
import zipfile

import fresh
import pytest

import tf_capsops
from tf_capsops import __version__, models
from tf_capsops.__main__ import main, make_parser
from tf_capsops.bench import cases, layers, networks, options
from tf_capsops.cli import presets
from tf_capsops.cli.networks import RULES

(_COMMANDS,) = (
    action.choices
    for action in make_parser()._actions
    if isinstance(action, argparse._SubParsersAction)
)
_ANSWERS = [
    ([], 0, "usage: tf-capsops"),
    (["--help"], 0, "usage: tf-capsops"),
    (["--version"], 0, __version__),
    (["trian"], 2, "did you mean train?"),
    (["train", "--modle", "capsnet"], 2, "did you mean --model?"),
    (["train", "--recipe", "nope"], 2, "--recipe must be one of"),
    (["train", "--image-size", "1", "2", "3"], 2, "one number, or height and width"),
    (["train", "--data", "cells/none"], 2, "no data at 'cells/none': there is no such"),
    (["train", "--data", "multimnist:a.npz"], 2, "no data at 'a.npz': there is no"),
    (["train", "--recipe", "inq5-digits", "--epochs", "3"], 2, "no --epochs, which"),
    (
        ["train", "--resume", "nowhere"],
        2,
        "takes a run's directory: nowhere is not one",
    ),
    (["evaluate", "nowhere"], 2, "no model at nowhere"),
    (["predict", "nowhere", "a.png"], 2, "no model at nowhere"),
    (["predict", "model.keras", "none.png"], 2, "there is no file none.png"),
    (["reconstruct", "nowhere"], 2, "no model at nowhere"),
    (["quantize", "--steps", "0.5"], 2, "--steps must end with 1, got 0.5"),
    (["quantize", "--steps", "1", "1"], 2, "fractions that rise, got 1 1"),
    (["report", "nope"], 2, "RECIPE must be one of"),
    (["report", "--runs", "no", "--read-only"], 2, "--runs: there is no no, and"),
    (["bench", "--threads", "1", "2", "--against", "x"], 2, "one number of --threads"),
    *(([name, "--help"], 0, f"usage: tf-capsops {name}") for name in _COMMANDS),
]
# The program `tf-capsops`, for one command line after the other.
_SCRIPT = """
import contextlib, importlib.abc, io, json, sys

class Refusal(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name in ("tensorflow", "keras", "numpy"):
            raise AssertionError(f"{name} is imported")

sys.meta_path.insert(0, Refusal())
from tf_capsops.__main__ import main

answers = []
for arguments in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        with contextlib.redirect_stderr(io.StringIO()) as errors:
            status = main(arguments)
    answers.append([status, printed.getvalue(), errors.getvalue()])
print(json.dumps(answers))
"""


@pytest.mark.parametrize("name", _COMMANDS)
def test_every_option_of_every_command_has_a_text(name):
    command = _COMMANDS[name]
    assert command.description.endswith(".")
    bare = [each.dest for each in command._actions if not each.help]
    assert bare == []


@pytest.mark.parametrize("name", _COMMANDS)
def test_misspelled_options_are_followed_by_the_right_one(name, capsys):
    others = (each for each in _COMMANDS[name]._actions if each.option_strings)
    required = ["run", "picture.png"] if name == "predict" else []
    for option in (each.option_strings[-1] for each in others):
        assert main([name, *required, f"{option}x"]) == 2
        said, lists = capsys.readouterr().err.splitlines()
        assert said.startswith(f"tf-capsops {name}: error: unrecognized arguments: ")
        assert said.endswith(f"; did you mean {option}?")
        assert lists == f"`tf-capsops {name} --help` lists the options"


@pytest.mark.parametrize("name", _COMMANDS)
def test_no_option_takes_an_empty_text(name, capsys):
    """It would mean the working directory, or that the option is not given."""
    required = ["run", "picture.png"] if name == "predict" else []
    for action in _COMMANDS[name]._actions:
        if action.option_strings and action.nargs != 0:
            counted = range(action.nargs if isinstance(action.nargs, int) else 1)
            given = [action.option_strings[-1], *("" for _ in counted)]
            assert main([name, *required, *given]) == 2
            said = capsys.readouterr().err
            assert f"error: argument {'/'.join(action.option_strings)}: " in said


@pytest.mark.parametrize(
    "given, argument",
    [
        (["evaluate", ""], "RUN_OR_MODEL"),
        (["predict", "run", ""], "FILE|FOLDER"),
        (["report", ""], "RECIPE"),
        (["train", "--output", ""], "--output"),
        (["bench", "--output", ""], "--output"),
    ],
)
def test_empty_arguments(given, argument, capsys):
    assert main(given) == 2
    assert f"argument {argument}: must not be empty\n" in capsys.readouterr().err


def test_integers_of_more_than_32_bits(capsys):
    assert main(["evaluate", "--batch-size", "9" * 20]) == 2
    said = "argument --batch-size: must be at most 2147483647, got '999"
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("name", _COMMANDS)
def test_misspelled_commands_are_followed_by_the_right_one(name, capsys):
    assert main([f"{name}e"]) == 2
    said, lists = capsys.readouterr().err.splitlines()
    assert said.endswith(f"; did you mean {name}?")
    assert lists == "`tf-capsops --help` lists the options"


def test_tables_of_the_parser_name_what_there_is():
    """It has names of its own, for it cannot import the networks themselves."""
    assert list(options.NETWORKS) == list(networks.NETWORKS)
    assert options.LAYERS == layers.LAYERS
    assert cases.ops() == sorted(cases.suites())
    assert all(callable(getattr(models, name)) for name in presets.PRESETS)
    assert list(presets.RULES) == list(RULES)


def test_commands_answer_without_tensorflow(tmp_path):
    script = tmp_path / "tf-capsops"
    script.write_text(_SCRIPT)
    zipfile.ZipFile(tmp_path / "model.keras", "w").close()  # as far as they look
    given = json.dumps([arguments for arguments, _, _ in _ANSWERS])
    done = subprocess.run(
        [sys.executable, script, given],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(fresh.ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    for (_, status, text), (ended, printed, errors) in zip(_ANSWERS, answers):
        assert ended == status and text in (errors if status else printed)


def test_code_of_a_model_finds_the_whole_package(monkeypatch, capsys):
    """A command imports it later than other processes do."""
    monkeypatch.delattr(tf_capsops, "capsule_routing")
    assert main(["info"]) == 0
    assert callable(tf_capsops.capsule_routing)


def test_the_module_answers_without_tensorflow():
    command = ["-X", "importtime", "-m", "tf_capsops", "train", "--help"]
    done = subprocess.run(
        [sys.executable, *command], cwd=fresh.ROOT, capture_output=True, text=True
    )
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "tf_capsops.cli.train" in imported
    assert not imported & {"tensorflow", "keras", "numpy"}
    assert done.returncode == 0 and "--recipe NAME" in done.stdout
