# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The Efficient-CapsNet of Mazzia, Salvetti and Chiaberge."""

import keras

from tf_capsops.arguments import positive_int
from tf_capsops.layers import Conv2D, DenseCaps, Length
from tf_capsops.models.classifier import (
    classifier,
    lists_of_one_length,
)
from tf_capsops.models.sizes import checked_sizes
from tf_capsops.routing import SelfAttention, exponential_squash


def efficient_capsnet(
    input_shape,
    num_classes,
    filters=(32, 64, 64, 128),
    kernel_sizes=(5, 3, 3, 3),
    strides=(1, 1, 1, 2),
    primary_dim=8,
    capsule_dim=16,
    name="efficient_capsnet",
    dtype=None,
):
    """Few capsules and self-attention routing: Mazzia, Salvetti and Chiaberge (2021).

    The layers are convolutions with relu and batch normalization; a depthwise
    convolution whose kernel covers the whole map, and whose features are the primary
    capsules; and one `DenseCaps` layer with the rule `SelfAttention`. The defaults are
    the paper's for 28 x 28 digits: 161,824 trained parameters, or 162,400 with the
    moving statistics of the normalizations. The paper's decoder is not included.

    Args:
      input_shape: (height, width, channels) of the images. Their values must be
        floating-point numbers from 0 to 1, or standardized. Integers raise a
        `ValueError`; so do numbers above 10, except inside your own `tf.function`.
      num_classes: the number of classes.
      filters: features of each convolution; the last is a multiple of `primary_dim`.
      kernel_sizes: the kernel size of each convolution.
      strides: the strides of each convolution.
      primary_dim: the length of a primary capsule's vector.
      capsule_dim: the length of a class capsule's vector.
      name: the model's name.
      dtype: a dtype policy; with `"mixed_float16"`, `compile` enables loss scaling.

    Returns:
      A `CapsuleClassifier`, built but not compiled, from images `[B, H, W, C]` to
      lengths `[B, num_classes]`, in float32 and below 1, for `losses.MarginLoss`.

    Raises:
      ValueError: if an argument is not as above, or the images are too small for the
        kernels.

    >>> import tf_capsops
    >>> model = tf_capsops.models.efficient_capsnet((28, 28, 1), 10)
    >>> model.count_params()
    162400
    """
    owner = "efficient_capsnet"
    image_shape, num_classes = checked_sizes(owner, input_shape, num_classes)
    lists_of_one_length(
        owner, filters=filters, kernel_sizes=kernel_sizes, strides=strides
    )
    primary_dim = positive_int(owner, "primary_dim", primary_dim)
    if filters[-1] % primary_dim:
        raise ValueError(
            f"{owner}: the last of filters must be a multiple of primary_dim "
            f"{primary_dim}, got {filters}"
        )
    images = features = keras.Input(image_shape, name="images")
    of_layers = zip(filters, kernel_sizes, strides)
    last = {"data_format": "channels_last", "dtype": dtype}
    for number, (channels, kernel_size, stride) in enumerate(of_layers, start=1):
        features = Conv2D(
            channels,
            kernel_size,
            strides=stride,
            activation="relu",
            kernel_initializer="he_normal",
            name=f"conv_{number}",
            **last,
        )(features)
        features = keras.layers.BatchNormalization(
            dtype=dtype, name=f"normalization_{number}"
        )(features)
    features = keras.layers.DepthwiseConv2D(
        features.shape[1:3], name="primary", **last
    )(features)
    capsules = filters[-1] // primary_dim
    vectors = keras.layers.Reshape((capsules, primary_dim), dtype=dtype)(features)
    vectors = keras.layers.Activation(
        exponential_squash, dtype=dtype, name="primary_capsules"
    )(vectors)
    poses = keras.layers.Reshape((capsules, 1, primary_dim), dtype=dtype)(vectors)
    activations = Length(dtype=dtype, name="primary_lengths")(vectors)
    _, lengths = DenseCaps(
        num_classes,
        pose_shape=(1, capsule_dim),
        routing=SelfAttention(),
        kernel_initializer="he_normal",
        dtype=dtype,
        name="class_caps",
    )([poses, activations])
    # The loss compares lengths with margins, so they must be float32.
    lengths = keras.layers.Activation("linear", dtype="float32", name="lengths")(
        lengths
    )
    return classifier(images, lengths, name, dtype)
