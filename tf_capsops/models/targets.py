# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a `CapsNet` trains on: labels as an input too, and images as a target."""

import keras
import tensorflow as tf

from tf_capsops.losses import one_hot_labels


def images_and_labels(inputs):
    """Returns the images of a call, and the labels, or None."""
    if isinstance(inputs, dict):
        return inputs["images"], inputs["labels"]
    return inputs, None


def labels_as_input(data, objects):
    """Returns Keras' (x, y, sample_weight) of a batch, with the labels in x too.

    Args:
      data: images and their labels, or a dict of the targets `"lengths"`, which are
        labels, and `"reconstruction"`.
      objects: how many classes an image shows.

    Raises:
      ValueError: if the labels are missing, or targets that they need.
    """
    images, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    if y is None:
        raise ValueError("CapsNet: fit and evaluate need labels beside the images")
    if isinstance(y, dict):
        if y.keys() != {"lengths", "reconstruction"}:
            raise ValueError(
                "CapsNet: a dict of targets must have 'lengths' and 'reconstruction', "
                f"got {sorted(y)}"
            )
        return {"images": images, "labels": y["lengths"]}, y, sample_weight
    if objects > 1:
        raise ValueError(
            f"CapsNet: with {objects} objects, fit and evaluate need a dict of "
            "'lengths' and 'reconstruction' beside the images"
        )
    return {"images": images, "labels": y}, y, sample_weight


def by_output(x, y, y_pred, sample_weight):
    """Returns the target of each output, and the weights of the samples for each."""
    if isinstance(y, dict):
        labels, images = y["lengths"], y["reconstruction"]
    else:
        labels, images = y, images_and_labels(x)[0]
    targets = {
        "lengths": one_hot_labels(labels, y_pred["lengths"]),
        "reconstruction": tf.convert_to_tensor(images),
    }
    if sample_weight is not None:
        sample_weight = {name: sample_weight for name in targets}
    return targets, sample_weight
