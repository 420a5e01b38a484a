# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Data sets by the names that `--data` takes."""

import os

import keras

from tf_capsops.data import dataset, files, masks, pairs, pictures, volumes
from tf_capsops.data.affine_mnist import AffineMnist, ShiftedMnist
from tf_capsops.data.multimnist import MultiMnist
from tf_capsops.data.segmented_mnist import MovingMnist, SegmentedMnist

_DOWNLOADED = ("mnist", "fashion_mnist", "cifar10")  # modules in keras.datasets
_GENERATED = {
    kind.name: kind
    for kind in (MultiMnist, AffineMnist, ShiftedMnist, SegmentedMnist, MovingMnist)
}
_NAMES = ("digits", *_DOWNLOADED, *_GENERATED)
# Options that only folders of pictures take.
_OF_PICTURES = ("image_size", "color_mode", "test_share", "skip_broken")


def load(source, seed=0, **options):
    """Loads a data set.

    Args:
      source: one of

        * `"digits"`, the 1797 handwritten digits of 8 x 8 pixels that come with
          scikit-learn, a fifth of them for testing, always the same;
        * `"mnist"`, `"fashion_mnist"` or `"cifar10"`, which `keras.datasets` downloads;
        * the path of a `.npz` file with the arrays x_train, y_train, x_test and y_test.
          Images are `[N, H, W]` or `[N, H, W, C]`: integers from 0 to 255, which are
          divided by 255, or floating-point numbers from 0 to 1, or standardized. Labels
          are integers from 0 on, `[N]` or `[N, 1]`, and a warning names those in
          between that no image has. Or they are masks of classes, of the size of the
          images or of volumes `[N, D, H, W, C]`;
        * the path of a folder of pictures (PNG, JPEG, BMP, GIF, WebP), which has one
          folder for each class, or `train` and `test` with these in each; or pictures
          in `images` and gray masks of the same names in `masks`, in which each gray is
          a class. Pictures are decoded as they are needed. Or NIfTI volumes and masks,
          which nibabel reads;
        * the path of a folder with the four idx files of MNIST or Fashion-MNIST, such
          as train-images-idx3-ubyte, or the same with .gz;
        * `"multimnist"`, `"affine_mnist"`, `"shifted_mnist"`, `"segmented_mnist"` or
          `"moving_mnist"`, made from MNIST, or from any of the above with
          `"multimnist:FILE.npz"`.
      seed: an int, which decides on generated samples, and on the pictures that are for
        testing.
      **options: all but `image_size` are only for folders of pictures:

        * `image_size`: (height, width) that pictures are resized to, without regard to
          their proportions; (depth, height, width) that volumes are cut or padded to,
          about the middle; None for their own, if they all have the same. Also the size
          of images of `"segmented_mnist"` and of frames of `"moving_mnist"`, in which
          digits keep their size;
        * `color_mode`: `"rgb"` or `"grayscale"`, which pictures are converted to; None
          for what they are, if they all are the same. An alpha channel is dropped;
        * `test_share`: how much of each class is for testing, where the folder has no
          `train` and `test`; None for 0.2. The pictures are the same each time;
        * `skip_broken`: True to leave out, with a warning, files that are no pictures;
        * `class_names`: the classes, in the order of their numbers, of which the folder
          may lack some; None for the names of the folders in alphabetical order;
        * `training`: False if only `test` is needed. Then all pictures are in it, where
          there is no other `test` and no `test_share`.

    Returns:
      A `Dataset`, `Pictures`, `MultiMnist`, `AffineMnist`, `ShiftedMnist`,
      `SegmentedMnist` or `MovingMnist`.

    Raises:
      ValueError: if a file does not hold such arrays, a download fails, or a folder of
        pictures has another layout; the message names the file or folder at fault.
      FileNotFoundError: if there is no such file.
      ImportError: if the folder has NIfTI volumes, and nibabel is not installed.

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
        # Digits keep their size.
        size = {"image_size": options.pop("image_size", None)} if has_size(kind) else {}
        base = _plain(base, seed, options, f"{kind}:")
        if isinstance(base, pictures.Pictures):
            raise ValueError(f"{kind} is made of arrays of digits, not of {base.name}")
        if base.standardized:
            raise ValueError(
                f"{kind} is made of images from 0 to 1, not of {base.name}"
            )
        loaded = _GENERATED[kind](base, seed, **size)
    else:
        loaded = _plain(source, seed, options)
    given = [name for name in _OF_PICTURES if options.get(name)]
    if given and not isinstance(loaded, pictures.Pictures):
        option = given[0].replace("_", "-")
        raise ValueError(f"{source} is no folder of pictures: no --{option}")
    return loaded


def is_pictures(source):
    """Whether a `source` of `load` is a folder of pictures.

    >>> from tf_capsops import data
    >>> data.is_pictures("digits")
    False
    """
    source = os.fspath(source)
    named = source in _NAMES or _parts(source)[0]
    return not named and os.path.isdir(source) and not files.has_idx(source)


def has_size(source):
    """Whether a `source` of `load` makes images of any `image_size`.

    >>> from tf_capsops.data import sources
    >>> sources.has_size("segmented_mnist:digits"), sources.has_size("multimnist")
    (True, False)
    """
    kind, _ = _parts(os.fspath(source))
    return kind in _GENERATED and _GENERATED[kind].has_masks


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


def _plain(source, seed, options, before=""):
    if source == "digits":
        return _digits()
    if source in _DOWNLOADED:
        return _downloaded(source, before)
    if not os.path.exists(source):
        names = ", ".join(repr(name) for name in _NAMES)
        raise FileNotFoundError(
            f"no data at {source!r}: data must be {names}, an .npz file or a folder of "
            "pictures or idx files"
        )
    pairs.check(source)
    if pairs.are_in(source):
        loads = {pairs.PICTURES: masks.load, pairs.VOLUMES: volumes.load}
        return loads[pairs.kind_in(source)](source, seed, **options)
    if is_pictures(source):
        return pictures.load(source, seed, **options)
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
        # Keras raises a bare Exception if a download fails.
        raise ValueError(
            f"{name} could not be downloaded ({error}); without a network, give the "
            f"file itself: --data {before}FILE.npz with x_train, y_train, x_test and "
            "y_test"
        ) from error
    return dataset.checked(name, x_train, y_train, x_test, y_test)
