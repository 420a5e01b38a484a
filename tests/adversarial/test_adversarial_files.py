# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Files of any content are read, or refused in a sentence that names them."""

import contextlib
import io
import json
import math
import re
import zipfile

import keras
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from memory import peak

from tf_capsops import _library, data, inq, layers
from tf_capsops.cli import networks, runs
from tf_capsops.errors import CommandError

_MEMORY = 64 << 20  # bytes, which no file here should take
_DEEP = "[" * 100_000
_NAMES = ("x_train", "y_train", "x_test", "y_test")
_SHAPES = {"x_train": (6, 4, 4), "y_train": (6,), "x_test": (6, 4, 4), "y_test": (6,)}
_SIZES = st.sampled_from([-1, 0, 1, 3, 4, 6, 2**31, 2**33, 2**40, 2**62, 2**64])
_TYPES = st.sampled_from(
    [
        *("|u1", "|b1", "<f2", "<f4", ">f8", "<f16", "<i8", "<u8", "<c8", "3u1"),
        *("<m8[s]", "<M8[D]", "|S3", "<U1", "|O", "|V0", "|V4", "", None, 7),
        [("a", "<f4")],
    ]
)
_ENTRIES = st.sampled_from(
    ["data", "epochs", "batch_size", "learning_rate", "distortion", "shift", "zoom"]
)
_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([10**400, -(10**400), 2**63, 1e-320, 0.5])
    | st.floats()
    | st.text(max_size=5),
    lambda each: (
        st.lists(each, max_size=3)
        | st.dictionaries(st.text(max_size=3) | _ENTRIES, each, max_size=3)
    ),
    max_leaves=6,
)


@contextlib.contextmanager
def _refused(errors, name, most=_MEMORY):
    """Lets pass errors that name a file, and no memory out of proportion to it."""
    peak()
    before = peak()
    try:
        yield
    except errors as error:
        assert name in str(error), error
        assert "\n" not in str(error).strip() or not isinstance(error, CommandError)
    assert peak() - before <= most


def _changed(draw, content):
    """Draws a file's bytes, of which some are others or missing."""
    how = draw(st.sampled_from(("as it is", "as it is", "bytes", "cut", "before")))
    content = bytearray(content)
    if how == "bytes":
        for _ in range(draw(st.integers(1, 4))):
            content[draw(st.integers(0, len(content) - 1))] = draw(st.integers(0, 255))
    if how == "cut":
        del content[draw(st.integers(0, len(content) - 1)) :]
    if how == "before":
        content[:0] = draw(st.sampled_from([b"\x93NUMPY\1\0", b"\x80\4N.", b"\0"]))
    return bytes(content)


def _member(draw, name):
    """Draws the bytes of an array in an .npz file."""
    shape, descr = _SHAPES[name], "|u1"
    if draw(st.sampled_from((True, False, False))):
        shape = tuple(draw(st.lists(_SIZES, max_size=5)))
    if draw(st.sampled_from((True, False, False))):
        descr = draw(_TYPES)
    header = {"descr": descr, "fortran_order": draw(st.booleans()), "shape": shape}
    text = repr(header).encode() + b"\n"
    start = b"\x93NUMPY\1\0" + len(text).to_bytes(2, "little") + text
    return start + bytes(draw(st.sampled_from((0, 6, 96, 96, 384, 768))))


@st.composite
def _npz(draw):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", draw(st.sampled_from((0, 8)))) as archive:
        for name in _NAMES:
            if draw(st.integers(0, 9)):
                archive.writestr(f"{name}.npy", _member(draw, name))
    return _changed(draw, file.getvalue())


def test_data(tmp_path):
    path = tmp_path / "images.npz"

    @given(_npz())
    def run(content):
        path.write_bytes(content)
        with _refused(ValueError, "images.npz"):
            loaded = data.load(path)
            assert loaded.x_train.dtype == np.float32
            assert loaded.y_train.shape == loaded.x_train.shape[:1]

    run()


def test_configuration(tmp_path):
    path = tmp_path / "config.json"
    objects = st.dictionaries(_ENTRIES, _JSON, max_size=4)
    texts = objects.map(json.dumps).map(str.encode) | st.binary(max_size=20)

    @given(st.data(), texts)
    @example(None, _DEEP.encode())
    @example(None, json.dumps({"learning_rate": 10**400}).encode())
    @example(None, json.dumps({"distortion": {"shift": 10**400}}).encode())
    def run(more, content):
        path.write_bytes(
            content if more is None else _changed(more.draw, content + b" ")
        )
        for read in (runs.read_config, runs.read_training, runs.remembered_data):
            with _refused(CommandError, "config.json"):
                read(tmp_path)

    run()


def test_build_information(tmp_path, monkeypatch):
    path, good = tmp_path / "other.so", json.dumps(_library.build_info())
    monkeypatch.setenv("TF_CAPSOPS_LIBRARY", str(path))
    objects = st.dictionaries(st.sampled_from(sorted(_library._ENTRIES)), _JSON)

    @given(st.data(), objects.map(json.dumps) | st.just(good))
    @example(None, _DEEP)
    def run(more, text):
        content = b"\x7fELF" + _library._MARKER + text.encode() + b"\0"
        path.write_bytes(content if more is None else _changed(more.draw, content))
        with _refused(ImportError, "other.so"):
            _library.build_info()

    run()


@st.composite
def _packed(draw):
    """Draws bytes, mostly as many as needed, and the bits and shape of their codes."""
    bits = draw(st.integers(2, 8) | _JSON)
    shape = draw(st.lists(st.integers(0, 5), max_size=4) | st.lists(_SIZES) | _JSON)
    count = 3
    if (
        isinstance(bits, int)
        and isinstance(shape, list)
        and all(isinstance(size, int) for size in shape)
    ):
        count = min(4096, max(0, -(-bits * math.prod(shape) // 8)))
    content = draw(st.binary(min_size=count, max_size=count) | st.just(bytes(count)))
    return draw(st.just(content) | st.just(content[1:]) | _JSON), bits, shape


def test_packed_codes():
    @given(_packed())
    @example((b"", 5, [2**64, 0]))
    @example((b"", 5, [2**40, 2**40, 0]))
    @example((b"", 5, [0] * 65))
    def run(given):
        with _refused(ValueError, "unpack"):
            codes = inq.unpack(*given)
            assert codes.dtype == np.uint8
            assert (
                inq.unpack(inq.pack(codes, given[1]), *given[1:]).tolist()
                == codes.tolist()
            )

    run()


# Keras makes the layers that a file describes, of any size, before it reads weights.
_SMALL_JSON = _JSON.filter(lambda tree: not re.search(r"\d{4}", json.dumps(tree)))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The parts of a `.keras` file of a small model of codes, by name."""
    path = tmp_path_factory.mktemp("model") / "model.keras"
    keras.Sequential(
        [
            keras.Input([8, 8, 1]),
            layers.InqConv2D(2, 3, bits=4),
            keras.layers.Flatten(),
            keras.layers.Dense(10),
        ]
    ).save(path)
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _places(tree, path=()):
    """Yields the place of every entry of a tree of JSON."""
    entries = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, value in entries:
        yield (*path, key)
        if isinstance(value, (dict, list)):
            yield from _places(value, (*path, key))


def test_models(model, tmp_path):
    """Parts changed inside of a sound archive, or the archive's bytes."""
    path = tmp_path / "model.keras"

    @settings(max_examples=settings.default.max_examples // 10)
    @given(st.data())
    def run(more):
        parts, config = dict(model), json.loads(model["config.json"])
        name = more.draw(st.sampled_from([*parts, "entry", "entry", "entry"]))
        if name == "entry":
            *way, last = more.draw(st.sampled_from([*_places(config)]))
            within = config
            for key in way:
                within = within[key]
            within[last] = more.draw(_SMALL_JSON)
            parts["config.json"] = json.dumps(config).encode()
        else:
            parts[name] = _changed(more.draw, parts[name])
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            for each, content in parts.items():
                archive.writestr(each, content)
        path.write_bytes(_changed(more.draw, file.getvalue()))
        with _refused(CommandError, "model", 512 << 20):
            networks.open_model(path, "digits")

    run()
