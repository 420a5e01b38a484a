# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""data.load: the digits, files, and what is said about bad ones."""

import gzip
import io
import re
import zipfile

import keras
import numpy as np
import pytest

from tf_capsops import data
from tf_capsops.cli import networks

_GOOD = {
    "x_train": np.arange(96, dtype=np.uint8).reshape(6, 4, 4),
    "y_train": np.array([0, 1, 2, 0, 1, 2], np.uint8),
    "x_test": np.full([3, 4, 4], 255, np.uint8),
    "y_test": np.array([0, 1, 2], np.uint8),
}


def _file(tmp_path, **changes):
    arrays = {**_GOOD, **changes}
    path = tmp_path / "shapes.npz"
    np.savez(path, **{name: a for name, a in arrays.items() if a is not None})
    return path


def test_digits_are_split_evenly_and_always_alike():
    digits = data.load("digits")
    assert digits.x_train.shape == (1437, 8, 8, 1)
    assert digits.x_test.shape == (360, 8, 8, 1)
    assert digits.x_train.dtype == np.float32
    assert (digits.x_train.min(), digits.x_train.max()) == (0, 1)
    counts = np.bincount(digits.y_test)
    assert counts.max() - counts.min() <= 2
    np.testing.assert_array_equal(data.load("digits").x_test, digits.x_test)
    train = {image.tobytes() for image in digits.x_train}
    assert not any(image.tobytes() in train for image in digits.x_test)


def test_file_of_bytes(tmp_path):
    loaded = data.load(_file(tmp_path))
    assert (loaded.name, loaded.num_classes) == ("shapes", 3)
    assert loaded.image_shape == (4, 4, 1)
    expected = _GOOD["x_train"][..., None].astype(np.float32) / np.float32(255)
    np.testing.assert_array_equal(loaded.x_train, expected)
    assert loaded.y_train.dtype == np.int32


def test_file_of_floats_with_channels_and_a_column_of_labels(tmp_path):
    images = np.random.default_rng(1).random([6, 4, 4, 3])
    path = _file(
        tmp_path,
        x_train=images,
        x_test=images[:3],
        y_train=_GOOD["y_train"][:, None].astype(np.int64),
    )
    loaded = data.load(str(path))
    np.testing.assert_array_equal(loaded.x_train, images.astype(np.float32))
    np.testing.assert_array_equal(loaded.y_train, _GOOD["y_train"])


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int64])
def test_integers_of_any_type_are_pixels(tmp_path, dtype):
    path = _file(tmp_path, x_train=_GOOD["x_train"].astype(dtype))
    loaded = data.load(path)
    np.testing.assert_array_equal(loaded.x_train, data.load(_file(tmp_path)).x_train)
    assert not loaded.standardized


def test_booleans_are_0_and_1(tmp_path):
    images = _GOOD["x_train"] > 40
    loaded = data.load(_file(tmp_path, x_train=images))
    np.testing.assert_array_equal(loaded.x_train, images[..., None].astype(np.float32))


def test_standardized_images(tmp_path):
    images = np.linspace(-3, 9.5, 96).reshape(6, 4, 4)
    path = _file(tmp_path, x_train=images)
    loaded = data.load(path)
    assert loaded.standardized
    np.testing.assert_array_equal(loaded.x_train, images[..., None].astype(np.float32))
    text = "multimnist is made of images from 0 to 1, not of shapes"
    with pytest.raises(ValueError, match=text):
        data.load(f"multimnist:{path}")


@pytest.mark.parametrize(
    "changes, text",
    [
        ({"y_test": None}, r"missing y_test; the file has x_train, y_train, x_test"),
        (
            {"x_train": np.zeros([6, 16], np.uint8)},
            r"x_train must be images .*\(6, 16\)",
        ),
        (
            {"x_train": np.zeros([0, 4, 4], np.uint8)},
            r"x_train must be .*\(0, 4, 4, 1\)",
        ),
        ({"x_test": np.zeros([3, 5, 4], np.uint8)}, r"one shape, got \(4, 4, 1\) and"),
        (
            {"x_train": np.full([6, 4, 4], 11.0)},
            "float64, unless standardized, must be in 0 to 1, got 11.0 to 11.0: divide",
        ),
        (
            {"x_train": np.linspace(0, 255, 96).reshape(6, 4, 4)},
            "must be in 0 to 1, got 0.0 to 255.0: divide pixels from 0 to 255 by 255$",
        ),
        (
            {"x_test": np.linspace(-30, 30, 48).reshape(3, 4, 4)},
            "got -30.0 to 30.0: scale them to floating-point numbers from 0 to 1$",
        ),
        (
            {"x_train": np.full([6, 4, 4], 65535, np.uint16)},
            "got 65535 to 65535: scale them to floating-point numbers from 0 to 1$",
        ),
        (
            {"x_train": np.where(np.arange(96) > 92, np.nan, 0).reshape(6, 4, 4)},
            "x_train must be finite, got 3 values that are not$",
        ),
        (
            {"x_train": np.full([6, 4, 4], -np.inf)},
            "must be finite, got 96 values that",
        ),
        ({"x_train": np.full([6, 4, 4], -1e39)}, "must be finite, got 96 values that"),
        ({"x_train": np.full([6, 4, 4], -1)}, "must be in 0 to 255, got -1 to -1"),
        ({"x_train": np.full([6, 4, 4], "a")}, "x_train must be numbers, got <U1"),
        (
            {"y_train": np.zeros([5], int)},
            r"one label an image, \[6\], got shape \(5,\)",
        ),
        ({"y_train": np.zeros([6])}, "y_train must be integers, got float64"),
        ({"y_train": np.zeros([6], "m8[s]")}, "must be integers, got timedelta64"),
        ({"x_train": np.zeros([6, 4, 4], "m8[s]")}, "must be numbers, got timedelta64"),
        ({"y_train": np.full([6], -1)}, "class numbers from 0 on, got -1 to -1"),
        ({"y_test": np.array([0, 1, 7])}, r"labels that y_train has not: \[7\]"),
        (
            {"x_train": np.array([None])},
            "x_train cannot be read: it holds Python objects",
        ),
        (
            {"y_train": np.eye(3)[np.arange(6) % 3]},
            r"y_train is one-hot, .*\(6, 3\), .*: save y_train.argmax\(1\)",
        ),
        (
            {"x_train": np.zeros([6, 1, 8, 8]), "x_test": np.zeros([3, 1, 8, 8])},
            r"\(6, 1, 8, 8\), whose channels seem to come first: save np.moveaxis",
        ),
    ],
)
def test_bad_files_are_explained(tmp_path, changes, text):
    path = _file(tmp_path, **changes)
    with pytest.raises(ValueError, match=text) as caught:
        data.load(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    "labels, text",
    [
        ([0, 2, 4, 0, 2, 4], "shapes has labels up to 4, but none of 1, 3: these are"),
        ([1, 2, 3, 1, 2, 3], "up to 3, but none of 0: these are classes without an"),
        ([0, 255, 0, 255, 0, 255], r"none of 1, 2, .*, 9, 10 and 244 more: these are"),
    ],
)
def test_labels_with_gaps_are_named(tmp_path, labels, text, capsys):
    path = _file(tmp_path, y_train=np.array(labels), y_test=np.array(labels[:3]))
    with pytest.warns(UserWarning, match=text):
        loaded = data.load(path)
    assert loaded.num_classes == max(labels) + 1
    networks.open_data(str(path))  # as commands do
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert printed.startswith("warning: shapes has labels") and re.search(text, printed)


def test_labels_without_gaps_need_no_warning(tmp_path, recwarn):
    data.load(_file(tmp_path))
    assert not recwarn.list


def _header(shape):
    """The beginning of a `.npy` file of bytes."""
    file = io.BytesIO()
    header = {"descr": "|u1", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue()


@pytest.mark.parametrize(
    "member, text",
    [
        (b"no array", "x_train is not an array"),
        (b"\x93NUMPY\x01\x00", "x_train cannot be read: EOF"),
        (_header((6, 4, 4)), "x_train cannot be read: EOF"),
        (_header((2**61,)), "x_train cannot be read: "),
        (_header((2**40, 2**40)), "x_train cannot be read: "),
    ],
)
def test_bad_members_are_explained(tmp_path, member, text):
    path = _file(tmp_path, x_train=None)
    with zipfile.ZipFile(path, "a") as file:
        file.writestr("x_train.npy", member)
    with pytest.raises(ValueError, match=text):
        data.load(path)


@pytest.mark.parametrize("place, bits", [(6, 1), (8, 255)], ids=["encrypted", "method"])
def test_members_that_cannot_be_unpacked_are_explained(tmp_path, place, bits):
    path = _file(tmp_path)
    content = bytearray(path.read_bytes())
    for start, offset in ((b"PK\3\4", 0), (b"PK\1\2", 2)):
        content[content.index(start) + place + offset] |= bits
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"x_train cannot be read: .*(encrypted|comp)"):
        data.load(path)


def test_damaged_compression_is_explained(tmp_path):
    path = tmp_path / "damaged.npz"
    np.savez_compressed(path, **_GOOD)
    content = bytearray(path.read_bytes())
    begin = content.index(b"x_train.npy") + len("x_train.npy") + 20
    content[begin : begin + 30] = b"\xff" * 30
    path.write_bytes(content)
    with pytest.raises(ValueError, match="x_train cannot be read: Error -3 while"):
        data.load(path)


def test_zip_of_another_version_is_explained(tmp_path):
    path = _file(tmp_path)
    content = bytearray(path.read_bytes())
    content[content.index(b"PK\1\2") + 6] = 99
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"shapes.npz: zip file version 9.9"):
        data.load(path)


def test_array_before_an_archive_is_explained(tmp_path):
    path, array = _file(tmp_path), io.BytesIO()
    np.save(array, np.zeros([3]))
    path.write_bytes(array.getvalue() + path.read_bytes())
    with pytest.raises(ValueError, match=r"shapes.npz is not an .npz file"):
        data.load(path)


def test_a_file_without_its_end_is_damaged(tmp_path):
    path = _file(tmp_path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"shapes.npz is damaged: its end is missing"):
        data.load(path)


def test_other_files_are_explained(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("no archive")
    with pytest.raises(ValueError, match=r"notes.txt is not an .npz file"):
        data.load(path)
    for source in ("elsewhere", "multimnist:elsewhere"):
        with pytest.raises(FileNotFoundError, match=r"'elsewhere': .* 'digits', 'm"):
            data.load(source)


@pytest.mark.parametrize(
    "source, module, wanted",
    [
        ("mnist", "mnist", "FILE.npz"),
        ("fashion_mnist", "fashion_mnist", "FILE.npz"),
        ("cifar10", "cifar10", "FILE.npz"),
        ("multimnist", "mnist", "multimnist:FILE.npz"),
        ("affine_mnist:fashion_mnist", "fashion_mnist", "affine_mnist:FILE.npz"),
    ],
)
def test_downloads(monkeypatch, source, module, wanted):
    module = getattr(keras.datasets, module)

    def fail():
        raise Exception("URL fetch failure")

    monkeypatch.setattr(module, "load_data", fail)
    with pytest.raises(ValueError, match=rf"URL fetch failure.*--data {wanted} with"):
        data.load(source)
    arrays = [_GOOD[name] for name in ("x_train", "y_train", "x_test", "y_test")]
    arrays[1] = arrays[1][:, np.newaxis]  # as those of CIFAR-10 are
    monkeypatch.setattr(module, "load_data", lambda: (arrays[:2], arrays[2:]))
    loaded = data.load(source)
    assert loaded.name == source.partition(":")[0]
    assert (len(loaded.train), len(loaded.test), loaded.num_classes) == (6, 3, 3)


def _idx_files(folder, packed=lambda content: content, suffix=""):
    """Writes the arrays as MNIST's authors do."""
    folder.mkdir(exist_ok=True)
    for part, name in (("train", "train"), ("t10k", "test")):
        for kind, letter in (("images-idx3", "x"), ("labels-idx1", "y")):
            array = _GOOD[f"{letter}_{name}"]
            header = bytes([0, 0, 8, array.ndim])
            header += np.array(array.shape, ">u4").tobytes()
            content = packed(header + array.tobytes())
            (folder / f"{part}-{kind}-ubyte{suffix}").write_bytes(content)
    return folder


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_folders_of_idx_files(tmp_path, suffix):
    packed = gzip.compress if suffix else bytes
    folder = _idx_files(tmp_path / "shapes", packed, suffix)
    for source in (folder, f"{folder}/"):
        loaded, expected = data.load(source), data.load(_file(tmp_path))
        assert loaded.name == "shapes"
        for name in _GOOD:
            wanted = getattr(expected, name)
            np.testing.assert_array_equal(getattr(loaded, name), wanted)


@pytest.mark.parametrize(
    "changed, text",
    [
        (None, r"shapes: the folder has no t10k-labels-idx1-ubyte or .*\.gz"),
        (b"", r"t10k-labels-idx1-ubyte is not an idx file of bytes in 1 axes"),
        (bytes([0, 0, 8, 1, 0, 0, 0, 4, 1, 2, 3]), "is not an idx file of bytes"),
        (bytes([0, 0, 9, 1, 0, 0, 0, 3, 1, 2, 3]), "is not an idx file of bytes"),
        (bytes([0, 0, 8, 1, 0, 0, 0, 2, 1, 2]), r"one label an image, \[3\], got"),
    ],
)
def test_bad_folders_are_explained(tmp_path, changed, text):
    folder = _idx_files(tmp_path / "shapes")
    path = folder / "t10k-labels-idx1-ubyte"
    path.unlink()
    if changed is not None:
        path.write_bytes(changed)
    with pytest.raises(ValueError, match=text):
        data.load(folder)


def test_damaged_gzip_is_explained(tmp_path):
    folder = _idx_files(tmp_path / "shapes", gzip.compress, ".gz")
    path = folder / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ValueError, match=r"idx3-ubyte.gz cannot be read: Compressed"):
        data.load(folder)


def test_sources_mean_the_same_from_any_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("digits", "cifar10", "multimnist", "affine_mnist:fashion_mnist"):
        assert data.absolute(name) == name
    assert data.absolute("a.npz") == str(tmp_path / "a.npz")
    assert data.absolute("multimnist:a.npz") == f"multimnist:{tmp_path / 'a.npz'}"
    assert data.absolute("other:a.npz") == str(tmp_path / "other:a.npz")
