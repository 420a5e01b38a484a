# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The loader and the library file: found, checked, loaded once, and clean."""

import importlib.util
import json
import pathlib
import re
import subprocess

import fresh
import pytest
import tensorflow as tf

import tf_capsops
from tf_capsops import _library

MARKER = b"tf_capsops-build-info:"

# Prints the path of the library, and whether it is mapped into the process before
# and after the package is imported.
_IMPORT = """
import pathlib
import sys
import tensorflow as tf
def loaded(path):
    return path in pathlib.Path("/proc/self/maps").read_text()
before = loaded(sys.argv[1])
import tf_capsops
print(tf_capsops.library_path(), before, loaded(sys.argv[1]))
"""

# Uses the package as far as that goes without a library.
_IMPORT_WITHOUT = """
import numpy as np
import tf_capsops
print(tf_capsops.squash(np.zeros([3])).shape)
try:
    tf_capsops.capsule_prediction(np.ones((1, 1, 1)), np.ones((1, 1, 1, 1)))
except ImportError as error:
    print(error)
"""

# Needs tf_capsops for nothing but the path it is given.
_BARE = """
import sys
import tensorflow as tf
bare = tf.load_op_library(sys.argv[1])
x, w = tf.ones((2, 3, 6)), tf.ones((3, 4, 5, 6))
y = bare.capsule_prediction(x, w)
v = bare.capsule_routing(x, w, tf.zeros((3, 4)), iterations=2)
for result in y, *bare.capsule_prediction_grad(y, x, w), v:
    print(*result.shape)
try:
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = bare.capsule_prediction(x, w)
    tape.gradient(y, x)
except LookupError:
    print("no gradient")
print("tf_capsops" in sys.modules)
"""


@pytest.fixture
def loader():
    """A copy of `tf_capsops._library` that has loaded nothing yet."""
    name = "tf_capsops._library_under_test"
    spec = importlib.util.spec_from_file_location(name, _library.__file__)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def library_bytes():
    return pathlib.Path(tf_capsops.library_path()).read_bytes()


def _use(monkeypatch, path, content=None):
    if content is not None:
        path.write_bytes(content)
    monkeypatch.setenv("TF_CAPSOPS_LIBRARY", str(path))


def test_library_is_loaded_at_import_from_where_the_variable_says(
    tmp_path, library_bytes
):
    copy = tmp_path / "renamed.so"
    copy.write_bytes(library_bytes)
    printed = fresh.run(_IMPORT, copy, TF_CAPSOPS_LIBRARY=str(copy)).splitlines()
    assert printed == [f"{copy} False True"]


def test_without_a_library_the_first_use_of_an_op_is_refused():
    printed = fresh.run(_IMPORT_WITHOUT, TF_CAPSOPS_LIBRARY="/no/such.so").splitlines()
    assert printed[0] == "(3,)"
    assert "the operator library /no/such.so" in printed[1]
    assert "make build" in printed[1]


def test_bare_ops_without_the_package_have_no_gradients():
    printed = fresh.run(_BARE, tf_capsops.library_path()).splitlines()
    shapes = ["2 3 4 5", "2 3 6", "3 4 5 6", "2 4 5"]
    assert printed == [*shapes, "no gradient", "False"]


def test_load_gives_the_same_module_every_time():
    assert _library.load() is _library.load()


def test_missing_file(loader, monkeypatch, tmp_path):
    missing = tmp_path / "missing.so"
    _use(monkeypatch, missing)
    for function in (loader.library_path, loader.build_info, loader.load):
        with pytest.raises(ImportError) as caught:
            function()
        assert str(missing) in str(caught.value)
        assert "TF_CAPSOPS_LIBRARY" in str(caught.value)
        assert "make build" in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"no library"], ids=["empty", "text"])
def test_file_of_another_kind(content, loader, monkeypatch, tmp_path):
    other = tmp_path / "other.so"
    _use(monkeypatch, other, content)
    for function in (loader.build_info, loader.load):
        with pytest.raises(ImportError, match=re.escape(str(other))):
            function()


def _with_information(content, text):
    """Returns a library's bytes with another text for its build information."""
    begin = content.index(MARKER) + len(MARKER)
    end = content.index(b"\0", begin)
    assert len(text) <= end - begin
    return content[:begin] + text.ljust(end - begin) + content[end:]


def _changed(entry, value):
    return json.dumps({**_library.build_info(), entry: value}).encode()


@pytest.mark.parametrize(
    "entry, name", [("tensorflow", "TensorFlow"), ("version", "tf_capsops")]
)
def test_library_for_another_version(
    entry, name, loader, monkeypatch, tmp_path, library_bytes
):
    ours = _library.build_info()[entry]
    major, minor, *rest = ours.split(".")
    other = ".".join([major, "9" * len(minor), *rest])
    content = _with_information(library_bytes, _changed(entry, other))
    _use(monkeypatch, tmp_path / "other.so", content)
    assert loader.build_info()[entry] == other
    with pytest.raises(ImportError) as caught:
        loader.load()
    assert f"for {name} {other}, but {name} {ours} is installed" in str(caught.value)
    assert "make build" in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"\xff", b"[]", b"{}", b'{"tensorflow": "2.21.0"}', 2.21, None],
    ids=str,
)
def test_damaged_build_information(text, loader, monkeypatch, tmp_path, library_bytes):
    if not isinstance(text, bytes):
        text = _changed("tensorflow", text)
    damaged = tmp_path / "damaged.so"
    _use(monkeypatch, damaged, _with_information(library_bytes, text))
    for function in (loader.build_info, loader.load):
        with pytest.raises(ImportError) as caught:
            function()
        assert f"{damaged} is damaged" in str(caught.value)
        assert "make build" in str(caught.value)


def test_build_information_nested_too_deep(loader, monkeypatch, tmp_path):
    damaged = tmp_path / "damaged.so"
    _use(monkeypatch, damaged, MARKER + b"[" * 100_000 + b"\0")
    with pytest.raises(ImportError, match=r"damaged.so is damaged"):
        loader.build_info()


def test_library_that_does_not_load(loader, monkeypatch, tmp_path, library_bytes):
    """The right version, written in a file that is no program."""
    begin = library_bytes.index(MARKER)
    end = library_bytes.index(b"\0", begin) + 1
    text = tmp_path / "text.so"
    _use(monkeypatch, text, library_bytes[begin:end])
    with pytest.raises(ImportError) as caught:
        loader.load()
    assert str(text) in str(caught.value)
    assert "make build" in str(caught.value)


def test_build_info(library_bytes):
    begin = library_bytes.index(MARKER) + len(MARKER)
    end = library_bytes.index(b"\0", begin)
    information = _library.build_info()
    assert information == json.loads(library_bytes[begin:end])
    assert set(information) == {
        "version",
        "tensorflow",
        "cuda",
        "cuda_archs",
        "compiler",
    }
    assert all(isinstance(value, str) for value in information.values())
    assert information["version"] == tf_capsops.__version__
    assert information["tensorflow"] == tf.__version__
    assert information["compiler"]
    assert bool(information["cuda"]) == bool(information["cuda_archs"])


def test_exported_symbols():
    """Ours are the build information and what kernels.py calls, and nothing else.

    Templates of others stay mergeable.

    A CUDA runtime that is linked in must stay hidden: TensorFlow's framework library
    exports functions of the same names.
    """
    listing = subprocess.run(
        ["nm", "--dynamic", "--defined-only", tf_capsops.library_path()],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    symbols = [line.split()[-2:] for line in listing.splitlines()]
    strong = {name for kind, name in symbols if kind not in "uvVwW"}
    # Some linkers (gold) export where the data ends, in every library.
    strong -= {"__bss_start", "_edata", "_end"}
    assert strong == {
        "tf_capsops_build_info",
        "tf_capsops_force_kernels",
        "tf_capsops_pretend_device",
        "tf_capsops_record_kernels",
        "tf_capsops_recorded_kernels",
    }
    ours = re.compile(r"7capsops|cuda", re.IGNORECASE)
    assert not [name for _, name in symbols if ours.search(name)]


def test_the_library_has_no_faults_on_purpose(library_bytes):
    """Those are for the library that tests the tests (cc/launch/faults.h)."""
    assert b"TF_CAPSOPS_FAULT" not in library_bytes


def test_library_runs_without_the_cuda_runtime_installed():
    """CUDA, where it is built in, is part of the file: nothing more is needed."""
    needed = subprocess.run(
        ["readelf", "--dynamic", tf_capsops.library_path()],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    libraries = re.findall(r"\(NEEDED\).*\[(.*)\]", needed)
    assert any(name.startswith("libtensorflow_framework") for name in libraries)
    assert not [name for name in libraries if "cud" in name]
