# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Inputs and targets of an `Autoencoder` in training."""

import keras
import tensorflow as tf

from tf_capsops.arguments import image_range
from tf_capsops.losses import one_hot_labels
from tf_capsops.models.images import ImageModel, images_and, is_list_of_arrays

_OUTPUTS = "lengths", "reconstruction"


class Reconstructing(ImageModel):
    """A mixin that trains an `Autoencoder` on images and labels.

    The labels are both a target and an input, for the mask. The images are both an
    input and a target, for the decoder. Training is otherwise that of Keras.
    """

    def images_of(self, inputs):
        return images_and(self.owner, "labels", inputs)[0]

    def check_targets(self, x, y):
        """Checks the targets, and warns once if the decoder cannot draw them."""
        _, drawn = targets_of(self.owner, x, y, self.objects)
        image_range(self.owner, drawn)
        self.check_drawn(
            drawn,
            "Scale images to 0 to 1, or give targets of that range as 'reconstruction'",
        )

    def train_step(self, data):
        return super().train_step(labels_as_input(self.owner, data, self.objects))

    def test_step(self, data):
        return super().test_step(labels_as_input(self.owner, data, self.objects))

    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, training=True
    ):
        y, sample_weight = by_output(
            self.owner, x, y, y_pred, sample_weight, self.objects
        )
        return super().compute_loss(x, y, y_pred, sample_weight, training)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        y, sample_weight = by_output(
            self.owner, x, y, y_pred, sample_weight, self.objects
        )
        return super().compute_metrics(x, y, y_pred, sample_weight)


def targets_of(owner, x, y, objects):
    """Returns the labels and the images to draw, which can be given in several forms.

    Args:
      owner: the name that messages begin with.
      x: the inputs, as for `images_and` with `"labels"`.
      y: labels, or None if they are among the inputs; or a dict of `"lengths"` (labels)
        and `"reconstruction"` (images); or a list of these two, in this order.
      objects: the number of classes in an image.

    Raises:
      ValueError: if labels are missing, a dict or list has other entries, or there are
        several objects and no images to draw.
    """
    images, labels = images_and(owner, "labels", x)
    if isinstance(y, dict):
        if y.keys() != {*_OUTPUTS}:
            raise ValueError(
                f"{owner}: a dict of targets must have 'lengths' and 'reconstruction', "
                f"got {sorted(y)}"
            )
        return y["lengths"], y["reconstruction"]
    if is_list_of_arrays(y):
        if len(y) != 2:
            raise ValueError(
                f"{owner}: a list of targets must be of labels and images to draw, got "
                f"{len(y)} arrays"
            )
        return tuple(y)
    if y is None and labels is None:
        raise ValueError(f"{owner}: fit and evaluate need labels beside the images")
    if objects > 1:
        raise ValueError(
            f"{owner}: with {objects} objects, fit and evaluate need a dict of "
            "'lengths' and 'reconstruction' beside the images"
        )
    return labels if y is None else y, images


def labels_as_input(owner, data, objects):
    """Returns Keras' (x, y, sample_weight) of a batch, with the labels also in x.

    Raises:
      ValueError: as `targets_of`.
    """
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    images, labels = images_and(owner, "labels", x)
    lengths, drawn = targets_of(owner, x, y, objects)
    x = {"images": images, "labels": lengths if labels is None else labels}
    return x, {"lengths": lengths, "reconstruction": drawn}, sample_weight


def by_output(owner, x, y, y_pred, sample_weight, objects):
    """Returns the target of each output, and the weights of the samples for each.

    Args:
      owner, x, y, objects: as for `targets_of`.
      y_pred: the outputs of the model.
      sample_weight: `[B]` for both outputs, or None; or a dict of these by output, or a
        list in the order of the outputs.

    Raises:
      ValueError: as `targets_of`, and if weights do not belong to outputs.
    """
    labels, drawn = targets_of(owner, x, y, objects)
    targets = {
        "lengths": one_hot_labels(labels, y_pred["lengths"]),
        "reconstruction": tf.convert_to_tensor(drawn),
    }
    return targets, _weights_by_output(owner, sample_weight)


def _weights_by_output(owner, weights):
    if weights is None:
        return None
    if isinstance(weights, (list, tuple)) and len(weights) == 2:
        return dict(zip(_OUTPUTS, weights, strict=True))
    if not isinstance(weights, (dict, list, tuple)):
        return dict.fromkeys(_OUTPUTS, weights)
    if isinstance(weights, dict) and weights.keys() <= {*_OUTPUTS}:
        return {name: weights.get(name) for name in _OUTPUTS}
    got = sorted(weights) if isinstance(weights, dict) else f"{len(weights)} of them"
    raise ValueError(
        f"{owner}: sample_weight must be one array for all outputs, or a dict or list "
        f"of those of 'lengths' and 'reconstruction', got {got}"
    )
