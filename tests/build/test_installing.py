# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""`pip install -e .` makes the source tree usable from other directories."""

import shutil
import subprocess
import zipfile

import fresh
import pytest
from hatchling import build

_FILES = ("pyproject.toml", "README.md", "LICENSE", "THIRD_PARTY_LICENSES.md")
_FILES += ("tools/hatch_build.py", "tf_capsops/_version.py")


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """What hatchling reads of a source tree, without the library; the directory."""
    root = tmp_path / "tree"
    for name in _FILES:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(fresh.ROOT / name, root / name)
    monkeypatch.chdir(root)
    return root


@pytest.mark.parametrize("built", [True, False])
def test_installed_in_place(tree, tmp_path, monkeypatch, built):
    started = []
    monkeypatch.setattr(subprocess, "run", lambda command, **_: started.append(command))
    if built:
        (tree / "tf_capsops" / "libtf_capsops.so").touch()
    wheel = tmp_path / build.build_editable(str(tmp_path))
    # It is the developer's own library, which only `make build` compiles again.
    assert started == ([] if built else [["make", "-C", str(tree), "build"]])
    with zipfile.ZipFile(wheel) as archive:
        files = {
            name.rpartition("/")[2]: archive.read(name) for name in archive.namelist()
        }
    assert files["_tf_capsops.pth"].decode() == str(tree)
    assert b"tf-capsops = tf_capsops.__main__:main" in files["entry_points.txt"]
    assert "libtf_capsops.so" not in files
