# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Reads data sets from `.npz` files and from folders of idx files."""

import gzip
import os
import pathlib
import zipfile

import numpy as np

from tf_capsops.data import dataset

# File names of MNIST and of Fashion-MNIST.
_IDX = {
    "x_train": "train-images-idx3-ubyte",
    "y_train": "train-labels-idx1-ubyte",
    "x_test": "t10k-images-idx3-ubyte",
    "y_test": "t10k-labels-idx1-ubyte",
}
_ZIP = b"PK\3\4"  # the first bytes of an archive


def read(path):
    """Reads an `.npz` file, or a folder of idx files.

    Returns:
      A `Dataset`, named after the file or folder.

    Raises:
      ValueError: if it does not hold such arrays.
    """
    return _folder(path) if os.path.isdir(path) else _npz(path)


def has_idx(path):
    """Whether a folder has one of the idx files; False if it cannot be read."""
    try:
        names = os.listdir(path)
    except PermissionError:
        return False
    return any(name.removesuffix(".gz") in _IDX.values() for name in names)


def _folder(path):
    try:
        arrays = [_idx(pathlib.Path(path), name) for name in _IDX.values()]
        name = os.path.basename(os.path.abspath(path))
        return dataset.checked(name, *arrays)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _idx(folder, name):
    """Returns the array of bytes in `name` or `name`.gz."""
    path = folder / name
    if not path.is_file():
        path = folder / f"{name}.gz"
    if not path.is_file():
        raise ValueError(f"the folder has no {name} or {path.name}")
    try:
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
    except Exception as error:
        # For damaged files, gzip and zlib raise errors of many kinds.
        raise ValueError(f"{path.name} cannot be read: {error}") from error
    # The header: two zeros, 8 for bytes, the rank, and each size in four bytes.
    rank = int(name[-7])
    start = 4 + 4 * rank
    shape = np.frombuffer(content[4:start], ">u4").tolist()
    data = np.frombuffer(content[start:], np.uint8)
    if content[:4] != bytes([0, 0, 8, rank]) or np.prod(shape, dtype=object) != len(
        data
    ):
        raise ValueError(f"{path.name} is not an idx file of bytes in {rank} axes")
    return data.reshape(shape)


def _npz(path):
    if not zipfile.is_zipfile(path):
        raise ValueError(f"{path} is {_fault(path)}")
    name = os.path.splitext(os.path.basename(path))[0]
    try:
        file = np.load(path, allow_pickle=False)
    except Exception as error:
        # For damaged directories, zipfile and NumPy raise errors of many kinds.
        raise ValueError(f"{path}: {error}") from error
    if not isinstance(file, np.lib.npyio.NpzFile):  # an array in front of an archive
        raise ValueError(f"{path} is not an .npz file")
    try:
        with file:
            return dataset.checked(name, *_arrays(file))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _fault(path):
    """Says what is wrong with a file that is not a whole archive."""
    with open(path, "rb") as file:
        begins = file.read(len(_ZIP)) == _ZIP
    return "damaged: its end is missing" if begins else "not an .npz file"


def _arrays(file):
    names = ("x_train", "y_train", "x_test", "y_test")
    missing = [name for name in names if name not in file]
    if missing:
        raise ValueError(
            f"missing {', '.join(missing)}; the file has {', '.join(file) or 'nothing'}"
        )
    return [_array(file, name) for name in names]


def _array(file, name):
    try:
        array = file[name]
    except Exception as error:
        # Damaged, encrypted, absurdly large or pickled arrays raise errors of many
        # kinds.
        text = str(error) or type(error).__name__
        if "Object arrays" in text:
            text = "it holds Python objects, perhaps images of different sizes"
        raise ValueError(f"{name} cannot be read: {text}") from error
    if not isinstance(array, np.ndarray):
        raise ValueError(f"{name} is not an array")
    return array
