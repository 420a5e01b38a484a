# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""A folder with finished runs of recipes, and copies of it."""

import shutil
import subprocess

import pytest
import quick
from reports import CAPSNET, EFFICIENT, QUANTIZED, here, quickly

from tf_capsops.__main__ import main


@pytest.fixture(scope="session")
def reported(tmp_path_factory):
    """A folder with runs, results and a release; and the commands that were started."""
    folder, started = tmp_path_factory.mktemp("reported"), []
    with pytest.MonkeyPatch.context() as patched, quick.eager():
        patched.chdir(folder)
        quickly(patched)
        patched.setattr(subprocess, "call", here(started))
        with quick.undrawn():  # the last report draws one
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
