# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""A network of capsule convolutions only, in the spirit of P-CapsNets."""

import math

import keras

from tf_capsops.arguments import positive_int, scaled_images
from tf_capsops.layers import CapsuleConv2D, Length
from tf_capsops.models.images import ImageModel
from tf_capsops.models.sequential import Sequential
from tf_capsops.ops.squash import squash
from tf_capsops.registered import registered


def p_capsnet(
    input_shape,
    num_classes,
    filters=(8, 16, 16),
    kernel_sizes=(5, 3, 3),
    strides=(2, 2, 1),
    pose_shape=(4, 4),
    name="p_capsnet",
    dtype=None,
):
    """A network of capsule convolutions only, without routing and without a decoder.

    In the spirit of Chen, Li, Wang and Crandall, "P-CapsNets: a General Form of
    Convolutional Neural Networks" (2019): every layer is a capsule convolution, the
    weights learn what routing would find, and the lengths of the last layer's capsules
    are the scores of the classes. The sizes are not theirs.

    * An image enters as capsules of 1 x 1 poses, one a channel. A capsule convolution
      cannot give poses more rows, so the first layer makes poses of one row with as
      many elements as `pose_shape` has, read as matrices of that shape from there on.
    * Then come layers of `pose_shape` to `pose_shape` poses. All are followed by relu,
      none by a normalization.
    * The last layer has a kernel as large as the map and a filter for each class. Its
      poses are flattened and squashed: the class capsules, whose lengths are the
      result.

    Args:
      input_shape: (height, width, channels) of the images, whose values are
        floating-point numbers from 0 to 1, or standardized. Integers are a `ValueError`
        in a call, and numbers above 10 in `fit`, `evaluate` and `predict`.
      num_classes: how many classes.
      filters: capsules at each pixel, for every layer but the last.
      kernel_sizes: their kernels, one or two ints each.
      strides: their strides, one or two ints each.
      pose_shape: (P, P), or (G, P, P) for capsules of rank 3.
      name: the model's name.
      dtype: a dtype policy, such as `"mixed_float16"`, with which `compile` has Keras
        scale the loss.

    Returns:
      A `keras.Sequential`, built and not compiled, from images `[B, H, W, C]` to
      lengths `[B, num_classes]`, in float32 and below 1, for `losses.MarginLoss`. Its
      layer `class_capsules` gives `[B, num_classes, elements of a pose]`.

    Raises:
      ValueError: if an argument is not as above, or the images are too small for the
        kernels.

    >>> import numpy as np
    >>> import tf_capsops
    >>> model = tf_capsops.models.p_capsnet((28, 28, 1), 10)
    >>> model.count_params()
    82336
    >>> model.compile("adam", tf_capsops.losses.MarginLoss(), metrics=["accuracy"])
    >>> history = model.fit(np.zeros([4, 28, 28, 1]), np.arange(4), verbose=0)
    >>> model.predict(np.zeros([4, 28, 28, 1]), verbose=0).shape
    (4, 10)
    """
    image_shape = _sizes("input_shape", input_shape, (3,))
    pose_shape = _sizes("pose_shape", pose_shape, (2, 3))
    if pose_shape[-1] != pose_shape[-2]:
        raise ValueError(
            f"p_capsnet: pose_shape must be (P, P) or (G, P, P), got {pose_shape}"
        )
    num_classes = positive_int("p_capsnet", "num_classes", num_classes)
    layers = filters, kernel_sizes, strides
    lengths = {len(each) if isinstance(each, (list, tuple)) else 0 for each in layers}
    if len(lengths) > 1 or 0 in lengths:
        raise ValueError(
            "p_capsnet: filters, kernel_sizes and strides must have one entry a layer, "
            f"got {filters}, {kernel_sizes} and {strides}"
        )
    elements = math.prod(pose_shape)
    model = PCapsNet(
        [
            keras.Input(image_shape, name="images"),
            keras.layers.Reshape((*image_shape, 1, 1), dtype=dtype, name="pixels"),
        ],
        name=name,
    )
    first, *others = zip(*layers, strict=True)
    # Keras scales the loss if the model's own policy is mixed_float16.
    model.dtype_policy = dtype
    model.add(_convolution(first, (1, elements), dtype, "conv_1", "relu"))
    map_shape = model.output_shape[1:4]
    model.add(
        keras.layers.Reshape((*map_shape, *pose_shape), dtype=dtype, name="poses")
    )
    for number, layer in enumerate(others, start=2):
        model.add(_convolution(layer, pose_shape, dtype, f"conv_{number}", "relu"))
    last = num_classes, model.output_shape[1:3], 1
    model.add(_convolution(last, pose_shape, dtype, "classes"))
    # The loss compares lengths with margins: keep them out of half precision.
    for layer in (
        keras.layers.Reshape((num_classes, elements), dtype="float32", name="flat"),
        keras.layers.Activation(squash, dtype="float32", name="class_capsules"),
        Length(dtype="float32", name="lengths"),
    ):
        model.add(layer)
    return model


@registered
class PCapsNet(ImageModel, Sequential):
    """The `keras.Sequential` that `p_capsnet` returns.

    It refuses unscaled images, and keeps `trainable` and a dtype policy of its own.
    """

    owner = "p_capsnet"

    def call(self, inputs, training=None, mask=None):
        images = scaled_images("p_capsnet", self.images_of(inputs))
        return super().call(images, training=training, mask=mask)


def _convolution(layer, pose_shape, dtype, name, activation=None):
    filters, kernel_size, strides = layer
    return CapsuleConv2D(
        filters,
        pose_shape,
        kernel_size,
        strides=strides,
        activation=activation,
        kernel_initializer="he_normal" if activation else "glorot_uniform",
        dtype=dtype,
        name=name,
    )


def _sizes(name, shape, ranks):
    """Returns `shape` as a tuple of ints, of as many as `ranks` allow."""
    if not isinstance(shape, (list, tuple)) or len(shape) not in ranks:
        raise ValueError(
            f"p_capsnet: {name} must be {' or '.join(map(str, ranks))} integers, got "
            f"{shape!r}"
        )
    return tuple(positive_int("p_capsnet", name, size) for size in shape)
