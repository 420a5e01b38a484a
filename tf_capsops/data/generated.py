# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The base class of data sets that are generated from digits."""

import abc
import dataclasses
import functools

from tf_capsops.data.dataset import Dataset


@dataclasses.dataclass(frozen=True)
class Generated(abc.ABC):
    """Samples on a canvas that is larger than the digits by `margin` on each side.

    Args:
      base: the `Dataset` of digits.
      seed: an int, from which all samples follow.
    """

    base: Dataset
    seed: int = 0

    generated = True
    objects = 1  # classes that a target names for an image
    has_masks = False  # whether a target is a mask of classes
    standardized = False  # whether images have values outside of [0, 1]
    margin = 0  # pixels

    @abc.abstractmethod
    def _samples(self, images, labels, testing):
        """Returns the `Samples` that are made of these digits."""

    @property
    def num_classes(self):
        return self.base.num_classes

    @property
    def class_names(self):
        return self.base.class_names

    @property
    def image_shape(self):
        height, width, channels = self.base.image_shape
        return height + 2 * self.margin, width + 2 * self.margin, channels

    @functools.cached_property
    def train(self):
        return self._samples(self.base.x_train, self.base.y_train, testing=0)

    @functools.cached_property
    def test(self):
        return self._samples(self.base.x_test, self.base.y_test, testing=1)

    def held_out(self, rest, out):
        """Returns a data set of training digits: `rest` to train, `out` to test on."""
        return dataclasses.replace(self, base=self.base.held_out(rest, out))
