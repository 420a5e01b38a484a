# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""`pip install -e .` makes the source tree usable from other directories."""

import shutil
import subprocess
import zipfile

import fresh
import pytest
from hatchling import build

from tf_capsops.models.pretrained import SHIPPED, load_pretrained

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


def test_a_wheel_has_the_networks_that_ship(tree, tmp_path, monkeypatch):
    monkeypatch.setattr(subprocess, "run", lambda command, **_: None)
    (tree / "tf_capsops" / "libtf_capsops.so").touch()
    shutil.copytree(SHIPPED, tree / "tf_capsops" / "models" / "shipped")
    wheel = tmp_path / build.build_wheel(str(tmp_path))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    folder = tmp_path / "installed" / "tf_capsops" / "models" / "shipped"
    names = [path.name for path in SHIPPED.iterdir()]
    assert sorted(names) == sorted(path.name for path in folder.iterdir())
    assert load_pretrained("p_capsnet-digits", folder).count_params() == 67_488
