# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The matrix capsules of Hinton, Sabour and Frosst."""

import keras

from tf_capsops.layers import ClassCaps, Conv2D, ConvCaps2D, PoseCaps
from tf_capsops.models.classifier import (
    classifier,
    lists_of_one_length,
)
from tf_capsops.models.sizes import checked_sizes
from tf_capsops.routing import EM, VB, InvertedAttention
from tf_capsops.routing.rule import copy_of


def matrix_capsnet(
    input_shape,
    num_classes,
    routing=None,
    filters=32,
    kernel_size=5,
    strides=2,
    primary_capsules=32,
    capsules=(32, 32),
    capsule_kernel_sizes=(3, 3),
    capsule_strides=(2, 1),
    pose_shape=(4, 4),
    name="matrix_capsnet",
    dtype=None,
):
    """Matrix capsules, routed by a rule: Hinton, Sabour and Frosst (2018).

    The layers are a convolution with relu, `PoseCaps`, several `ConvCaps2D`, and
    `ClassCaps`. The defaults are the paper's, with A = B = C = D = 32. They give
    318,964 parameters for 28 x 28 digits, and 317,194 for smallNORB (two images of
    32 x 32 pixels as channels, five classes).

    The scores are the activations of the class capsules. `InvertedAttention` has no
    activations; there, the scores are the softmax of a linear function of the poses
    that all classes share. Use these losses:

    * `losses.SpreadLoss` for `EM` and `VB`;
    * `losses.MarginLoss` for rules whose activations are lengths;
    * a cross-entropy for the softmax.

    Args:
      input_shape: (height, width, channels) of the images. Their values must be
        floating-point numbers from 0 to 1, or standardized. Integers raise a
        `ValueError`; so do numbers above 10, except inside your own `tf.function`.
      num_classes: the number of classes.
      routing: a rule of `tf_capsops.routing`, for all layers; None for `EM()`.
      filters: features of the first convolution, the paper's A.
      kernel_size, strides: the kernel size and strides of the first convolution.
      primary_capsules: capsule types of `PoseCaps`, the paper's B.
      capsules: capsule types of each `ConvCaps2D`, the paper's C and D.
      capsule_kernel_sizes: the kernel size of each `ConvCaps2D`.
      capsule_strides: the strides of each `ConvCaps2D`.
      pose_shape: (rows, columns) of all poses, with at least two rows.
      name: the model's name.
      dtype: a dtype policy; with `"mixed_float16"`, `compile` enables loss scaling.

    Returns:
      A `CapsuleClassifier`, built but not compiled, from images `[B, H, W, C]` to
      scores `[B, num_classes]`, in float32 and from 0 to 1.

    Raises:
      ValueError: if an argument is not as above, or the images are too small for the
        kernels.

    >>> import tf_capsops
    >>> model = tf_capsops.models.matrix_capsnet((28, 28, 1), 10)
    >>> model.count_params()
    318964
    """
    owner = "matrix_capsnet"
    image_shape, num_classes = checked_sizes(owner, input_shape, num_classes)
    lists_of_one_length(
        owner,
        capsules=capsules,
        capsule_kernel_sizes=capsule_kernel_sizes,
        capsule_strides=capsule_strides,
    )
    routing = copy_of(EM() if routing is None else routing, owner)
    images = keras.Input(image_shape, name="images")
    features = Conv2D(
        filters,
        kernel_size,
        strides=strides,
        activation="relu",
        data_format="channels_last",
        dtype=dtype,
        name="conv",
    )(images)
    layer = PoseCaps(primary_capsules, pose_shape, dtype=dtype, name="pose_caps")
    pair = layer(features)
    of_layers = zip(capsules, capsule_kernel_sizes, capsule_strides)
    for number, (types, kernel_size, strides) in enumerate(of_layers, start=1):
        pair = ConvCaps2D(
            types,
            kernel_size,
            strides=strides,
            pose_shape=pose_shape,
            routing=routing,
            kernel_initializer=_initializer(routing),
            dtype=dtype,
            name=f"conv_caps_{number}",
        )(pair)
    poses, scores = ClassCaps(
        num_classes,
        routing=routing,
        pose_shape=pose_shape,
        kernel_initializer=_initializer(routing),
        dtype=dtype,
        name="class_caps",
    )(pair)
    # The loss compares scores with margins, so they must be float32.
    if isinstance(routing, InvertedAttention):
        flat = keras.layers.Reshape((num_classes, -1), dtype="float32")(poses)
        flat = keras.layers.Dense(1, dtype="float32", name="score")(flat)
        flat = keras.layers.Flatten(dtype="float32")(flat)
        scores = keras.layers.Softmax(dtype="float32", name="scores")(flat)
    else:
        scores = keras.layers.Activation("linear", dtype="float32", name="scores")(
            scores
        )
    return classifier(images, scores, name, dtype)


def _initializer(routing):
    """Returns an initializer for votes as large as poses, or for `VB` a tenth of it."""
    return keras.initializers.VarianceScaling(0.01 if isinstance(routing, VB) else 1.0)
