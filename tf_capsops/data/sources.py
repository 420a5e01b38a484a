# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Data sets by the names that `--data` takes."""

import os

import keras

from tf_capsops.data import dataset, files
from tf_capsops.data.affine_mnist import AffineMnist, ShiftedMnist
from tf_capsops.data.multimnist import MultiMnist

_DOWNLOADED = ("mnist", "fashion_mnist", "cifar10")  # modules in keras.datasets
_GENERATED = {kind.name: kind for kind in (MultiMnist, AffineMnist, ShiftedMnist)}
_NAMES = ("digits", *_DOWNLOADED, *_GENERATED)


def load(source, seed=0):
    """Loads a data set.

    Args:
      source: one of

        * `"digits"`, the 1797 handwritten digits of 8 x 8 pixels that come with
          scikit-learn, a fifth of them for testing, always the same;
        * `"mnist"`, `"fashion_mnist"` or `"cifar10"`, which `keras.datasets` downloads;
        * the path of a `.npz` file with the arrays x_train, y_train, x_test and y_test.
          Images are `[N, H, W]` or `[N, H, W, C]`, of 0 to 255 where they are integers
          and 0 to 1 where they are not; labels are integers from 0 on, `[N]` or
          `[N, 1]`, and a warning names those in between that no image has;
        * the path of a folder with the four idx files of MNIST or Fashion-MNIST, such
          as train-images-idx3-ubyte, or the same with .gz;
        * `"multimnist"`, `"affine_mnist"` or `"shifted_mnist"`, made from MNIST, or
          from any of the above with `"multimnist:FILE.npz"`.
      seed: an int, from which generated samples follow.

    Returns:
      A `Dataset`, `MultiMnist`, `AffineMnist` or `ShiftedMnist`.

    Raises:
      ValueError: if a file does not hold such arrays, or a download fails.
      FileNotFoundError: if there is no such file.

    >>> from tf_capsops import data
    >>> digits = data.load("digits")
    >>> digits.x_train.shape, digits.x_test.shape, digits.num_classes
    ((1437, 8, 8, 1), (360, 8, 8, 1), 10)
    >>> data.load("multimnist:digits").image_shape
    (16, 16, 1)
    """
    source = os.fspath(source)
    kind, base = _parts(source)
    if kind:
        return _GENERATED[kind](_plain(base, f"{kind}:"), seed)
    return _plain(source)


def absolute(source):
    """Returns a `source` of `load` that means the same from any directory.

    >>> from tf_capsops import data
    >>> data.absolute("mnist"), data.absolute("multimnist:/data/mnist.npz")
    ('mnist', 'multimnist:/data/mnist.npz')
    """
    kind, base = _parts(source)
    if kind:
        return source if source == kind else f"{kind}:{absolute(base)}"
    return source if source in _NAMES else os.path.abspath(source)


def _parts(source):
    """Returns the name of a generated set and what it is made from; None if plain."""
    kind, colon, base = source.partition(":")
    if kind in _GENERATED and (base or not colon):
        return kind, base or "mnist"
    return None, source


def _plain(source, before=""):
    if source == "digits":
        return _digits()
    if source in _DOWNLOADED:
        return _downloaded(source, before)
    if not os.path.exists(source):
        names = ", ".join(repr(name) for name in _NAMES)
        raise FileNotFoundError(
            f"no data at {source!r}: data must be {names}, an .npz file or a folder of "
            "idx files"
        )
    return files.read(source)


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
    return dataset.checked("digits", x_train, y_train, x_test, y_test)


def _downloaded(name, before):
    module = getattr(keras.datasets, name)
    try:
        (x_train, y_train), (x_test, y_test) = module.load_data()
    except Exception as error:
        # Keras raises a bare Exception where a download fails.
        raise ValueError(
            f"{name} could not be downloaded ({error}); without a network, give the "
            f"file itself: --data {before}FILE.npz with x_train, y_train, x_test and "
            "y_test"
        ) from error
    return dataset.checked(name, x_train, y_train, x_test, y_test)
