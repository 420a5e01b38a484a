# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Models that train on masks, which give the class of each pixel."""

import functools
import inspect

import keras
import numpy as np
import tensorflow as tf

from tf_capsops.models.images import ImageModel


class MaskModel(ImageModel):
    """A mixin for a `keras.Model` from images to scores `[B, ..., classes]`.

    Masks are classes, `[B, ..., 1]` or `[B, ...]`, or one-hot. Other masks in the first
    batch raise a `ValueError`. Sample weights are `[B]`, or one for each pixel.
    """

    def images_and_masks(self, inputs):
        """Returns the images and the masks among the inputs of a call, or None."""
        return super().images_of(inputs), None

    def images_of(self, inputs):
        return self.images_and_masks(inputs)[0]

    def check_targets(self, x, y):
        images, masks = self.images_and_masks(x)
        if y is None and masks is None:
            raise ValueError(
                f"{self.owner}: fit and evaluate need masks beside the images"
            )
        for each in (masks, y):
            if each is not None:
                check_masks(self.owner, each, np.shape(images), self.output_shape[-1])

    @functools.wraps(keras.Model.fit)
    def fit(self, *args, **kwargs):
        given = inspect.signature(super().fit).bind(*args, **kwargs).arguments
        if isinstance(given.get("x"), tf.data.Dataset):
            _check_class_weight(self.owner, given, len(self.output_shape))
        else:
            _refuse_class_weight(self.owner, given)
        return super().fit(*args, **kwargs)

    @functools.wraps(keras.Model.train_on_batch)
    def train_on_batch(self, *args, **kwargs):
        bound = inspect.signature(super().train_on_batch).bind(*args, **kwargs)
        _refuse_class_weight(self.owner, bound.arguments)
        return super().train_on_batch(*args, **kwargs)

    def train_step(self, data):
        return super().train_step(self.prepared(data))

    def test_step(self, data):
        return super().test_step(self.prepared(data))

    def prepared(self, data):
        """Returns (x, y, sample_weight) of a batch in the form that losses take."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        check_one_array(self.owner, "sample_weight", sample_weight)
        if sample_weight is not None:
            # Keras' losses return one number for each pixel.
            while len(sample_weight.shape) < len(self.output_shape) - 1:
                sample_weight = sample_weight[..., tf.newaxis]
        return x, y, sample_weight

    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, training=True
    ):
        y = self._masks_for(y_pred, y, sample_weight)
        return super().compute_loss(x, y, y_pred, sample_weight, training)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        y = self._masks_for(y_pred, y, sample_weight)
        return super().compute_metrics(x, y, y_pred, sample_weight)

    def _masks_for(self, scores, masks, sample_weight):
        # Keras also calls this before `train_step`, to build losses and metrics.
        check_one_array(self.owner, "masks", masks)
        check_one_array(self.owner, "sample_weight", sample_weight)
        return with_axis(masks, scores)


def _refuse_class_weight(owner, given):
    """Raises a ValueError if there is a `class_weight`.

    With arrays, Keras applies it to samples. With a `tf.data.Dataset`, Keras applies it
    to pixels.
    """
    if given.get("class_weight") is not None:
        raise ValueError(
            f"{owner}: class_weight weighs samples, and in masks each pixel has a "
            "class: give sample_weight, one for each pixel, such as "
            "np.take(weights, masks), or a tf.data.Dataset"
        )


def _check_class_weight(owner, given, rank):
    """Raises a ValueError if Keras would take the last axis of masks for classes.

    Args:
      owner: the name that messages begin with.
      given: the arguments of `fit`, where x is a `tf.data.Dataset`.
      rank: the rank of the scores.
    """
    spec = given["x"].element_spec
    if given.get("class_weight") is None or not isinstance(spec, tuple):
        return
    masks = spec[1] if len(spec) > 1 else None
    if isinstance(masks, tf.TensorSpec) and masks.shape.rank == rank - 1:
        raise ValueError(
            f"{owner}: class_weight needs masks with a last axis of 1, got shape "
            f"{masks.shape}: give masks[..., tf.newaxis]"
        )


def check_masks(owner, masks, image_shape, classes):
    """Raises a ValueError if masks do not fit images, or contain unknown classes.

    The check of `one_hot_labels` is not enough, because XLA drops it.

    Args:
      owner: the name that messages begin with.
      masks: `[B, ..., 1 or classes]` or `[B, ...]`.
      image_shape: `[B, ..., C]`.
      classes: the number of scores.
    """
    check_one_array(owner, "masks", masks)
    masks, wanted = np.asarray(masks).astype(np.float64), tuple(image_shape[:-1])
    if masks.shape not in (wanted, (*wanted, 1), (*wanted, classes)):
        raise ValueError(
            f"{owner}: masks of images {tuple(image_shape)} must have shape {wanted}, "
            f"{(*wanted, 1)} or {(*wanted, classes)}, got {masks.shape}"
        )
    if classes == 1 or masks.shape == (*wanted, classes):
        wrong = ~((masks >= 0) & (masks <= 1))
        text = "numbers from 0 to 1"
        remedy = "divide masks from 0 to 255 by 255"
    else:
        wrong = ~((masks >= 0) & (masks < classes) & (masks == np.floor(masks)))
        text = f"classes, integers from 0 to {classes - 1}"
        remedy = "number the classes from 0 on, or give num_classes"
    if wrong.any():
        raise ValueError(
            f"{owner}: masks must be {text}, got {masks[wrong][0]:g}: {remedy}"
        )


def check_one_array(owner, name, value):
    if isinstance(value, (dict, list, tuple)):
        raise ValueError(
            f"{owner}: {name} must be one array, for the model has one output, got a "
            f"{type(value).__name__}"
        )


def with_axis(masks, scores):
    """Returns masks `[B, ...]` as `[B, ..., 1]`, and other masks unchanged."""
    if masks is None or len(masks.shape) != len(scores.shape) - 1:
        return masks
    return masks[..., tf.newaxis]
