# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Image data sets for training from the command line."""

import dataclasses
import os
import zipfile

import keras
import numpy as np


@dataclasses.dataclass(frozen=True)
class Dataset:
    """Images `[N, H, W, C]`, float32 in [0, 1], and labels `[N]`, int32 from 0 on."""

    name: str
    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray

    @property
    def num_classes(self):
        return int(max(self.y_train.max(), self.y_test.max())) + 1

    @property
    def image_shape(self):
        return self.x_train.shape[1:]


def load(source):
    """Loads a data set.

    Args:
      source: `"digits"`, the 1797 handwritten digits of 8 x 8 pixels that come with
        scikit-learn, a fifth of them for testing, always the same; `"mnist"`, which
        `keras.datasets` downloads; or the path of a `.npz` file with the arrays
        x_train, y_train, x_test and y_test. Images are `[N, H, W]` or `[N, H, W, C]`,
        of 0 to 255 where they are integers and 0 to 1 where they are not; labels are
        integers from 0 on, `[N]` or `[N, 1]`.

    Returns:
      A `Dataset`.

    Raises:
      ValueError: if a file does not hold such arrays, or MNIST cannot be downloaded.
      FileNotFoundError: if there is no such file.

    >>> from tf_capsops import data
    >>> digits = data.load("digits")
    >>> digits.x_train.shape, digits.x_test.shape, digits.num_classes
    ((1437, 8, 8, 1), (360, 8, 8, 1), 10)
    """
    if source == "digits":
        return _digits()
    if source == "mnist":
        return _mnist()
    return _npz(os.fspath(source))


def _digits():
    # scikit-learn takes a second to import and serves only this data set.
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(
        images.reshape(-1, 8, 8, 1) / 16.0,
        labels,
        test_size=0.2,
        stratify=labels,
        random_state=0,
    )
    return _dataset("digits", x_train, y_train, x_test, y_test)


def _mnist():
    try:
        (x_train, y_train), (x_test, y_test) = keras.datasets.mnist.load_data()
    except Exception as error:
        # Keras raises a bare Exception where a download fails.
        raise ValueError(
            f"mnist could not be downloaded ({error}); without a network, give the "
            "file itself: --data FILE.npz with x_train, y_train, x_test and y_test"
        ) from error
    return _dataset("mnist", x_train, y_train, x_test, y_test)


def _npz(path):
    if not os.path.isfile(path):
        raise FileNotFoundError(
            f"no data at {path!r}: data must be 'digits', 'mnist' or an .npz file"
        )
    if not zipfile.is_zipfile(path):
        raise ValueError(f"{path} is not an .npz file")
    name = os.path.splitext(os.path.basename(path))[0]
    try:
        file = np.load(path, allow_pickle=False)
    except Exception as error:
        # Damaged directories raise whatever zipfile or NumPy does.
        raise ValueError(f"{path}: {error}") from error
    if not isinstance(file, np.lib.npyio.NpzFile):  # an array, before an archive
        raise ValueError(f"{path} is not an .npz file")
    try:
        with file:
            return _dataset(name, *_arrays(file))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


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
        # What is damaged, encrypted, absurdly large or pickled ends in an error of any
        # module that reads it.
        text = str(error) or type(error).__name__
        raise ValueError(f"{name} cannot be read: {text}") from error
    if not isinstance(array, np.ndarray):
        raise ValueError(f"{name} is not an array")
    return array


def _dataset(name, x_train, y_train, x_test, y_test):
    """Checks the arrays and brings them to the form of `Dataset`."""
    x_train, x_test = _images("x_train", x_train), _images("x_test", x_test)
    y_train = _labels("y_train", y_train, len(x_train))
    y_test = _labels("y_test", y_test, len(x_test))
    if x_train.shape[1:] != x_test.shape[1:]:
        raise ValueError(
            "x_train and x_test must have images of one shape, got "
            f"{x_train.shape[1:]} and {x_test.shape[1:]}"
        )
    unseen = sorted(set(y_test.tolist()) - set(y_train.tolist()))
    if unseen:
        raise ValueError(f"y_test has labels that y_train has not: {unseen[:10]}")
    return Dataset(name, x_train, y_train, x_test, y_test)


def _images(name, images):
    if images.ndim == 3:
        images = images[..., np.newaxis]
    if images.ndim != 4 or 0 in images.shape:
        raise ValueError(
            f"{name} must be images [N, H, W] or [N, H, W, C], got shape {images.shape}"
        )
    if images.shape[1] <= 4 < min(images.shape[2:]):
        raise ValueError(
            f"{name} must be images [N, H, W] or [N, H, W, C], got shape "
            f"{images.shape}, whose channels seem to come first: save "
            f"np.moveaxis({name}, 1, -1)"
        )
    if images.dtype.kind in "iub":
        top = 1 if images.dtype == bool else 255
    elif np.issubdtype(images.dtype, np.floating):
        top = 1
    else:
        raise ValueError(f"{name} must be numbers, got {images.dtype}")
    low, high = images.min(), images.max()
    if not (low >= 0 and high <= top):
        raise ValueError(
            f"{name} of type {images.dtype} must be in 0 to {top}, got {low} to {high}"
        )
    return images.astype(np.float32) / np.float32(top)


def _labels(name, labels, count):
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.shape != (count,):
        raise ValueError(
            f"{name} must have one label an image, [{count}], got shape {labels.shape}"
        )
    if labels.dtype.kind not in "iu":
        raise ValueError(f"{name} must be integers, got {labels.dtype}")
    if labels.min() < 0 or labels.max() > 65535:
        raise ValueError(
            f"{name} must be class numbers from 0 on, got {labels.min()} to "
            f"{labels.max()}"
        )
    return labels.astype(np.int32)
