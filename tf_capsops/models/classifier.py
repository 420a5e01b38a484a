# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The functional model of classifiers, with or without capsules."""

import keras
import numpy as np
import tensorflow as tf

from tf_capsops.arguments import (
    image_range,
    window_attributes,
)
from tf_capsops.layers.routed import Routed
from tf_capsops.losses import SpreadLoss
from tf_capsops.models.functional import FunctionalModel
from tf_capsops.ops.conv2d import patches
from tf_capsops.registered import registered


@registered
class CapsuleClassifier(FunctionalModel):
    """The functional model of `matrix_capsnet`, `efficient_capsnet` and `convnet`.

    It maps images `[B, H, W, C]` to scores `[B, classes]`. It rejects unscaled images
    and has its own dtype policy; a `SpreadLoss` follows its optimizer.
    `routing_coefficients` shows how routing divides the capsules of an image.

    >>> import tf_capsops
    >>> model = tf_capsops.models.efficient_capsnet((28, 28, 1), 10)
    >>> isinstance(model, tf_capsops.models.CapsuleClassifier)
    True
    """

    def routing_coefficients(self, images):
        """Returns how routing divides the primary capsules among the classes.

        The shares of each layer's last iteration, which the layer's `shares` returns,
        are multiplied along each path from a primary capsule to a class, and the paths
        are summed. Because a capsule that several windows see may count more than once,
        the sums are divided by their total over the classes.

        Args:
          images: `[B, H, W, C]`.

        Returns:
          `[B, H', W', capsules, num_classes]`: nonnegative, adding up to 1 over the
          classes; zeros for capsules that no window sees. `primary_centers` gives the
          H' x W' positions.

        Raises:
          ValueError: if no layer of the model routes, as in a `convnet`.
        """
        images = tf.convert_to_tensor(image_range(self.name, images))
        layers = self._routed_layers()
        inputs = {layer.name: layer.input for layer in layers}
        inputs = keras.Model(self.inputs[0], inputs)(images)
        inputs = [inputs[layer.name] for layer in layers]
        flow = layers[-1].shares(inputs[-1])
        if flow.shape.rank == 3:  # DenseCaps has no positions.
            flow = flow[:, tf.newaxis, tf.newaxis]
        for layer, children in reversed(list(zip(layers[:-1], inputs[:-1]))):
            flow = _flow_before(layer, children, flow)
        total = tf.reduce_sum(flow, axis=-1, keepdims=True)
        return tf.math.divide_no_nan(flow, total)

    @property
    def primary_centers(self):
        """The centers of the primary capsules' receptive fields, in pixels.

        Two arrays, `[H']` of rows and `[W']` of columns.

        Raises:
          ValueError: if no layer of the model routes, as in a `convnet`.
        """
        centers, _ = self._receptive_fields()
        return centers

    @property
    def primary_field(self):
        """The height and width of a primary capsule's receptive field, in pixels.

        Raises:
          ValueError: if no layer of the model routes, as in a `convnet`.
        """
        _, field = self._receptive_fields()
        return field

    def _receptive_fields(self):
        """Returns `primary_centers` and `primary_field`."""
        (first, *_) = self._routed_layers()
        convolutions = [
            layer
            for layer in self.layers[: self.layers.index(first)]
            if hasattr(layer, "kernel_size")
        ]
        poses, _ = first.input
        sizes = poses.shape[1:3] if len(poses.shape) == 6 else (1, 1)
        centers, field = [], []
        for axis, size in enumerate(sizes):
            behind, step = 0, 1
            for layer in convolutions:
                behind += step * (layer.kernel_size[axis] - 1)
                step *= layer.strides[axis]
            centers.append(behind / 2 + step * np.arange(size))
            field.append(behind + 1)
        return tuple(centers), tuple(field)

    def _routed_layers(self):
        layers = [layer for layer in self.layers if isinstance(layer, Routed)]
        if not layers:
            raise ValueError(f"{self.name} has no layer that routes capsules")
        return layers

    def compile(self, *args, **kwargs):
        super().compile(*args, **kwargs)
        for loss in keras.tree.flatten(self.loss):
            if isinstance(loss, SpreadLoss):
                loss.follow(self.optimizer)


def _flow_before(layer, children, flow):
    """Returns the flow `[B, H, W, C, J]` from a layer's children to the classes.

    Args:
      layer: a `ConvCaps2D`.
      children: its input.
      flow: from its parents to the classes, `[B, H', W', O, J]`.
    """
    shares = layer.shares(children)
    ways = tf.einsum("nyxhwco,nyxoj->nyxhwcj", shares, flow)
    batch, height, width, channels, *_ = children[0].shape
    classes = flow.shape[-1]
    _, window = layer.children(children)
    window = window_attributes("ConvCaps2D", **window)
    # Summing over all windows that a child is in is the gradient of taking windows.
    images = tf.zeros([batch, height, width, channels * classes], ways.dtype)
    with tf.GradientTape() as tape:
        tape.watch(images)
        windows = patches(images, layer.kernel_size, **window)
    ways = tf.reshape(ways, windows.shape)
    summed = tape.gradient(windows, images, output_gradients=ways)
    return tf.reshape(summed, [batch, height, width, channels, classes])


def classifier(images, scores, name, dtype):
    """Returns a `CapsuleClassifier` with a dtype policy of its own.

    With mixed_float16, Keras therefore scales its loss.
    """
    policy = keras.dtype_policies.get(dtype)
    return CapsuleClassifier(images, scores, name=name, dtype=policy)


def lists_of_one_length(owner, **lists):
    """Checks that arguments are lists of equal length, with one entry per layer.

    Raises:
      ValueError: if they are not; the message names owner, arguments and values.
    """
    lengths = {
        len(each) if isinstance(each, (list, tuple)) else 0 for each in lists.values()
    }
    if len(lengths) > 1 or 0 in lengths:
        *most, last = lists
        got = ", ".join(repr(each) for each in lists.values())
        raise ValueError(
            f"{owner}: {', '.join(most)} and {last} must have one entry a layer, got "
            f"{got}"
        )
