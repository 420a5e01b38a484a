# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Models whose one input is a batch of images."""

import keras

from tf_capsops.arguments import image_range
from tf_capsops.models.unrolled import Unrolled


class ImageModel(Unrolled):
    """Mixed into a `keras.Model`, refuses pixels from 0 to 255.

    Integers are refused wherever the model is called. Other numbers are where their
    values are known: in eager calls, and in the first batch of `fit`, `evaluate`,
    `predict` and the methods on a batch.
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

    def compile_from_config(self, config):
        # Keras leaves this to models with a `compile` of their own.
        self.compile(**keras.saving.deserialize_keras_object(config))
        self.optimizer.build(self.trainable_variables)


def only_images(owner, inputs):
    """Returns the images of inputs in any form that a model with one input takes.

    Raises:
      ValueError: if there are no images, or more inputs; the message names `owner`.
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
    """Returns whether inputs are several arrays, and not numbers in nested lists."""
    is_list = isinstance(inputs, (list, tuple))
    return is_list and all(hasattr(each, "dtype") for each in inputs)


def images_and(owner, name, inputs):
    """Returns the images of a call, and what else is among its inputs, or None.

    Args:
      owner: the name that messages begin with.
      name: what else there may be, such as `"labels"`.
      inputs: images; or a dict of `"images"` and, if there is any, `name`; or a list of
        these, in this order.

    Raises:
      ValueError: if it is another dict or list.
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
