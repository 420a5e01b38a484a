# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""A folder with finished runs of recipes, and copies of it; what takes long, left out."""

import contextlib
import pathlib
import shutil
import subprocess

import pytest
import tensorflow as tf
from reports import CAPSNET, EFFICIENT, QUANTIZED, here, quickly

from tf_capsops.__main__ import main
from tf_capsops.cli import canvas


@contextlib.contextmanager
def _eager():
    tf.config.run_functions_eagerly(True)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(False)


@pytest.fixture(scope="module")
def eagerly():
    """Functions run eagerly: tracing takes seconds where a training has a few steps.

    test_cli, test_recipes and test_train_options train in graphs, as users do.
    """
    with _eager():
        yield


@contextlib.contextmanager
def _without_pictures():
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(canvas, "save", lambda figure, path: pathlib.Path(path).touch())
        yield


@pytest.fixture(scope="module")
def undrawn():
    """Pictures are empty files, for Matplotlib takes up to a second for each."""
    with _without_pictures():
        yield


@pytest.fixture(scope="session")
def reported(tmp_path_factory):
    """A folder with runs, results and a release; and the commands that were started."""
    folder, started = tmp_path_factory.mktemp("reported"), []
    with pytest.MonkeyPatch.context() as patched, _eager():
        patched.chdir(folder)
        quickly(patched)
        patched.setattr(subprocess, "call", here(started))
        with _without_pictures():  # the last report draws one
            assert main(["report", EFFICIENT, "--seeds", "1..2"]) == 0
            rest = ["report", CAPSNET, QUANTIZED, "--seeds", "1"]
            assert main([*rest, "--release", "released"]) == 0
        assert main(["report", EFFICIENT, "--seeds", "1", "--release", "released"]) == 0
    return folder, started


@pytest.fixture
def work(reported, eagerly, undrawn, tmp_path, monkeypatch):
    """A copy of that folder, as the working directory, where nothing is trained."""
    shutil.copytree(reported[0], tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")
    quickly(monkeypatch)
    monkeypatch.setattr(subprocess, "call", None)
    return tmp_path / "work"
