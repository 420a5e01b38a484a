# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a data set of arrays is, and what its arrays must be."""

import dataclasses
import functools
import warnings

import numpy as np

from tf_capsops.data.samples import ArraySamples


@dataclasses.dataclass(frozen=True)
class Dataset:
    """Images `[N, H, W, C]`, float32 in [0, 1], and labels `[N]`, int32 from 0 on.

    `train` and `test` are the same as `Samples`, as every data set has them; a target
    is the label.

    >>> from tf_capsops import data
    >>> images, labels = np.zeros([2, 8, 8, 1], np.float32), np.arange(2, dtype="int32")
    >>> dataset = data.Dataset("blanks", images, labels, images, labels)
    >>> dataset.image_shape, dataset.num_classes, len(dataset.train)
    ((8, 8, 1), 2, 2)
    """

    name: str
    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray

    generated = False  # whether samples are random, those of training in every epoch
    objects = 1  # classes that an image shows
    has_masks = False  # whether a target is a mask of classes

    @property
    def num_classes(self):
        return int(max(self.y_train.max(), self.y_test.max())) + 1

    @property
    def class_names(self):
        """What the classes are called: their numbers, as text."""
        return [str(number) for number in range(self.num_classes)]

    @property
    def image_shape(self):
        return self.x_train.shape[1:]

    @functools.cached_property
    def train(self):
        return ArraySamples(self.x_train, self.y_train)

    @functools.cached_property
    def test(self):
        return ArraySamples(self.x_test, self.y_test)

    def held_out(self, rest, out):
        """Returns a data set with training samples `rest`, judged by those of `out`."""
        return dataclasses.replace(
            self,
            x_train=self.x_train[rest],
            y_train=self.y_train[rest],
            x_test=self.x_train[out],
            y_test=self.y_train[out],
        )


def checked(name, x_train, y_train, x_test, y_test):
    """Checks arrays, and returns the `Dataset` of them.

    Warns of numbers below the highest label that no training image has.

    Raises:
      ValueError: if they are not images and labels, or do not fit each other.
    """
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
    dataset = Dataset(name, x_train, y_train, x_test, y_test)
    missing = sorted(set(range(dataset.num_classes)) - set(y_train.tolist()))
    if missing:
        some = ", ".join(map(str, missing[:10]))
        more = f" and {len(missing) - 10} more" if len(missing) > 10 else ""
        warnings.warn(
            f"{name} has labels up to {dataset.num_classes - 1}, but none of {some}"
            f"{more}: these are classes without an image. Number the classes from 0 "
            "on without gaps if they are not meant",
            stacklevel=2,
        )
    return dataset


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
            f"{name} of type {images.dtype} must be in 0 to {top}, got {low} to "
            f"{high}{_remedy(top, low, high)}"
        )
    return images.astype(np.float32) / np.float32(top)


def _remedy(top, low, high):
    """Says how to scale images of other values, if they are any."""
    if not np.isfinite([low, high]).all():
        return ""
    if top == 1 and low >= 0 and 10 < high <= 255:
        return ": divide pixels from 0 to 255 by 255"
    return ": scale them to floating-point numbers from 0 to 1"


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
