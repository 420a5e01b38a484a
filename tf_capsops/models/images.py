# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Models that take a batch of images."""

import functools
import inspect
import warnings

import keras
import numpy as np

from tf_capsops.arguments import image_range, outside_of_unit
from tf_capsops.models.unrolled import Unrolled


class ImageModel(Unrolled):
    """A mixin for a `keras.Model` that rejects pixels from 0 to 255.

    Integers raise a `ValueError` in every call. Numbers above 10 do so if values are
    known: in eager calls and the methods on a batch; in all of the NumPy arrays that
    `fit`, `evaluate` and `predict` are given as images, before they begin; and in the
    first batch of anything else, such as a data set or a `np.memmap`.
    """

    @property
    def owner(self):
        """The name that error messages begin with."""
        return self.name

    def images_of(self, inputs):
        """Returns the images among the inputs of a call."""
        return only_images(self.owner, inputs)

    def check_inputs(self, x):
        image_range(self.owner, self.images_of(x))

    def _check_arrays(self, method, args, kwargs):
        """Checks the inputs that a method of Keras is given, if they are in memory."""
        given = inspect.signature(method).bind(self, *args, **kwargs).arguments
        inputs = given.get("x")
        if all(type(each) is np.ndarray for each in keras.tree.flatten(inputs)):
            self.check_inputs(inputs)

    @functools.wraps(keras.Model.fit)
    def fit(self, *args, **kwargs):
        self._check_arrays(keras.Model.fit, args, kwargs)
        return super().fit(*args, **kwargs)

    @functools.wraps(keras.Model.evaluate)
    def evaluate(self, *args, **kwargs):
        self._check_arrays(keras.Model.evaluate, args, kwargs)
        return super().evaluate(*args, **kwargs)

    @functools.wraps(keras.Model.predict)
    def predict(self, *args, **kwargs):
        self._check_arrays(keras.Model.predict, args, kwargs)
        return super().predict(*args, **kwargs)

    def check_drawn(self, images, remedy="Scale images to 0 to 1"):
        """Warns once if images are outside of the range that a decoder draws."""
        images = np.asarray(images)
        if not images.size or getattr(self, "_warned_of_targets", False):
            return
        if values := outside_of_unit(images):
            lowest, highest = values
            self._warned_of_targets = True
            warnings.warn(
                f"{self.owner}: the decoder draws values from 0 to 1, and its targets "
                f"lie outside of that, from {lowest:.3g} to {highest:.3g}. {remedy}",
                stacklevel=3,
            )

    def compile_from_config(self, config):
        # Keras leaves this to models that override `compile`.
        self.compile(**keras.saving.deserialize_keras_object(config))
        self.optimizer.build(self.trainable_variables)


def only_images(owner, inputs):
    """Returns the images from inputs in any form that a model with one input takes.

    Raises:
      ValueError: if there are no images, or other inputs; the message names `owner`.
    """
    if isinstance(inputs, dict):
        if len(inputs) == 1:
            return next(iter(inputs.values()))
        if "images" not in inputs:
            raise ValueError(
                f"{owner}: a dict of inputs must have 'images', got {sorted(inputs)}"
            )
        return inputs["images"]
    if is_list_of_arrays(inputs):
        if len(inputs) != 1:
            raise ValueError(f"{owner}: there is one input, images; got {len(inputs)}")
        return inputs[0]
    return inputs


def is_list_of_arrays(inputs):
    """Returns whether inputs are a list of arrays, and not nested lists of numbers."""
    is_list = isinstance(inputs, (list, tuple))
    return is_list and all(hasattr(each, "dtype") for each in inputs)


def images_and(owner, name, inputs):
    """Returns the images among the inputs of a call, and the other input or None.

    Args:
      owner: the name that messages begin with.
      name: the name of the other input, such as `"labels"`.
      inputs: images; or a dict of `"images"` and, optionally, `name`; or a list of
        these, in this order.

    Raises:
      ValueError: if `inputs` is another dict or list.
    """
    if isinstance(inputs, dict):
        if "images" in inputs and inputs.keys() <= {"images", name}:
            return inputs["images"], inputs.get(name)
        got = f"a dict of {sorted(inputs)}"
    elif is_list_of_arrays(inputs):
        if len(inputs) in (1, 2):
            return (*inputs, None)[:2]
        got = f"a list of {len(inputs)} arrays"
    else:
        return inputs, None
    raise ValueError(
        f"{owner}: inputs must be images, or a dict or list of 'images' and '{name}', "
        f"got {got}"
    )
