# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Data sets of arrays, and checks of the arrays."""

import dataclasses
import functools
import warnings

import numpy as np

from tf_capsops.arguments import LARGEST, outside_of_unit
from tf_capsops.data.samples import ArraySamples


@dataclasses.dataclass(frozen=True)
class Dataset:
    """Images `[N, H, W, C]`, float32, and labels `[N]`, int32 from 0 on.

    Images are in [0, 1] unless they are `standardized`.

    There may be masks of classes instead of labels: int32 `[N, H, W, 1]` for images
    `[N, H, W, C]`, or with one more axis in both for volumes. `train` and `test` give
    the same as `Samples`, which every data set has; a target is the label or the mask.

    >>> import numpy as np
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

    generated = False  # whether samples are random, in training anew in every epoch
    objects = 1  # classes that an image shows

    @property
    def has_masks(self):
        """Whether a target is a mask of classes."""
        return self.y_train.ndim > 1

    @functools.cached_property
    def standardized(self):
        """Whether images have values outside of [0, 1]."""
        return any(map(outside_of_unit, (self.x_train, self.x_test)))

    @property
    def num_classes(self):
        return int(max(self.y_train.max(), self.y_test.max())) + 1

    @property
    def class_names(self):
        """The names of the classes: their numbers, as text."""
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
        """Returns a data set of training samples: `rest` to train, `out` to test on."""
        return dataclasses.replace(
            self,
            x_train=self.x_train[rest],
            y_train=self.y_train[rest],
            x_test=self.x_train[out],
            y_test=self.y_train[out],
        )


def checked(name, x_train, y_train, x_test, y_test):
    """Checks arrays, and returns the `Dataset` of them.

    Labels of three axes or more are masks. Warns of numbers below the highest label
    that no training image has.

    Raises:
      ValueError: if they are not images and labels, or do not fit each other.
    """
    has_masks = y_train.ndim > 2
    x_train = _images("x_train", x_train, y_train.shape if has_masks else None)
    x_test = _images("x_test", x_test, y_test.shape if has_masks else None)
    targets = _masks if has_masks else _labels
    y_train = targets("y_train", y_train, x_train.shape[:-1])
    y_test = targets("y_test", y_test, x_test.shape[:-1])
    if x_train.shape[1:] != x_test.shape[1:]:
        raise ValueError(
            "x_train and x_test must have images of one shape, got "
            f"{x_train.shape[1:]} and {x_test.shape[1:]}"
        )
    known = {*np.unique(y_train).tolist()}
    if not has_masks and len(known) == 1:
        raise ValueError(
            f"y_train has one class, {min(known)}: there must be two or more"
        )
    unseen = sorted({*np.unique(y_test).tolist()} - known)
    if unseen:
        raise ValueError(f"y_test has labels that y_train has not: {unseen[:10]}")
    dataset = Dataset(name, x_train, y_train, x_test, y_test)
    missing = sorted({*range(dataset.num_classes)} - known)
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


def _images(name, images, mask_shape=None):
    """Returns images as a `Dataset` has them.

    Args:
      name: the array's name, for messages.
      images: the array.
      mask_shape: the shape of the masks, which shows whether there are volumes; None if
        there are labels.
    """
    axes = 4
    if mask_shape:
        axes = len(mask_shape) + (mask_shape[-1] != 1)
    if images.ndim == axes - 1:
        images = images[..., np.newaxis]
    if mask_shape and (images.ndim != axes or axes > 5 or 0 in images.shape):
        raise ValueError(
            f"{name} must be images [N, H, W, C] or volumes [N, D, H, W, C] of the "
            f"masks {mask_shape}, got shape {images.shape}"
        )
    if images.ndim != axes or 0 in images.shape:
        raise ValueError(
            f"{name} must be images [N, H, W] or [N, H, W, C], got shape {images.shape}"
        )
    if axes == 4 and images.shape[1] <= 4 < min(images.shape[2:]):
        raise ValueError(
            f"{name} must be images [N, H, W] or [N, H, W, C], got shape "
            f"{images.shape}, whose channels seem to come first: save "
            f"np.moveaxis({name}, 1, -1)"
        )
    if images.dtype.kind not in "iubf":
        raise ValueError(f"{name} must be numbers, got {images.dtype}")
    low, high, are_pixels = images.min(), images.max(), images.dtype.kind in "iu"
    with np.errstate(over="ignore"):
        scaled = images.astype(np.float32)
    if not np.isfinite([scaled.min(), scaled.max()]).all():
        wrong = np.count_nonzero(~np.isfinite(scaled))
        raise ValueError(f"{name} must be finite, got {wrong} values that are not")
    if are_pixels and not (low >= 0 and high <= 255):
        raise ValueError(
            f"{name} of type {images.dtype} must be in 0 to 255, got {low} to {high}: "
            "scale them to floating-point numbers from 0 to 1"
        )
    if not are_pixels and high > LARGEST:
        remedy = "scale them to floating-point numbers from 0 to 1"
        if low >= 0 and high <= 255:
            remedy = "divide pixels from 0 to 255 by 255"
        raise ValueError(
            f"{name} of type {images.dtype}, unless standardized, must be in 0 to 1, "
            f"got {low} to {high}: {remedy}"
        )
    return scaled / np.float32(255) if are_pixels else scaled


def _masks(name, masks, shape):
    if masks.shape != (*shape, 1):
        masks = masks[..., np.newaxis]
    if masks.shape != (*shape, 1):
        raise ValueError(
            f"{name} must be masks of the size of their images, {shape}, got shape "
            f"{masks.shape[:-1]}"
        )
    return _classes(name, masks)


def _labels(name, labels, shape):
    count, *_ = shape
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim == 2 and _is_one_hot(labels):
        raise ValueError(
            f"{name} is one-hot, of shape {labels.shape}, and must have a number for "
            f"each image: save {name}.argmax(1)"
        )
    if labels.shape != (count,):
        raise ValueError(
            f"{name} must have one label an image, [{count}], got shape {labels.shape}"
        )
    return _classes(name, labels)


def _is_one_hot(labels):
    if labels.dtype.kind not in "biuf":
        return False
    one = labels == 1
    return bool((one | (labels == 0)).all() and (one.sum(axis=1) == 1).all())


def _classes(name, labels):
    if labels.dtype.kind not in "iu":
        raise ValueError(f"{name} must be integers, got {labels.dtype}")
    if labels.min() < 0 or labels.max() > 65535:
        raise ValueError(
            f"{name} must be class numbers from 0 on, got {labels.min()} to "
            f"{labels.max()}"
        )
    return labels.astype(np.int32)
