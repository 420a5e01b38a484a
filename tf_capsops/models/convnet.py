# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""A plain convolutional network, as a baseline for capsules."""

import keras

from tf_capsops.arguments import positive_int
from tf_capsops.layers import Conv2D
from tf_capsops.models.classifier import classifier
from tf_capsops.models.sizes import checked_sizes


def convnet(
    input_shape,
    num_classes,
    filters=(256, 256, 128),
    kernel_size=5,
    pool_size=1,
    units=(328, 192),
    dropout=0.5,
    name="convnet",
    dtype=None,
):
    """A plain convolutional network: the baseline of Sabour et al. (2017), section 5.

    The layers are convolutions with relu that keep the size of the image, each followed
    by max pooling; fully connected layers with relu; dropout; and a softmax over the
    classes. The defaults are the paper's for 28 x 28 digits, without pooling:
    35,445,522 parameters.

    Args:
      input_shape: (height, width, channels) of the images. Their values must be
        floating-point numbers from 0 to 1, or standardized. Integers raise a
        `ValueError`; so do numbers above 10, except inside your own `tf.function`.
      num_classes: the number of classes.
      filters: features of each convolution.
      kernel_size: the kernel size of all convolutions, one or two ints.
      pool_size: the height and width of max pooling, an int; 1 for none.
      units: sizes of the fully connected layers before the last.
      dropout: the fraction of the inputs of the last layer that training drops.
      name: the model's name.
      dtype: a dtype policy; with `"mixed_float16"`, `compile` enables loss scaling.

    Returns:
      A `CapsuleClassifier`, built but not compiled, from images `[B, H, W, C]` to
      scores `[B, num_classes]`, in float32 and adding up to 1, for a cross-entropy.

    Raises:
      ValueError: if an argument is not as above, or the images are too small for all
        poolings.

    >>> import tf_capsops
    >>> model = tf_capsops.models.convnet((28, 28, 1), 10)
    >>> model.count_params()
    35445522
    """
    owner = "convnet"
    image_shape, num_classes = checked_sizes(owner, input_shape, num_classes)
    pool_size = positive_int(owner, "pool_size", pool_size)
    if min(image_shape[:2]) < pool_size ** len(filters):
        raise ValueError(
            f"{owner}: input_shape must be at least {pool_size ** len(filters)} pixels "
            f"high and wide to be pooled {len(filters)} times, got {image_shape}"
        )
    images = features = keras.Input(image_shape, name="images")
    for number, channels in enumerate(filters, start=1):
        features = Conv2D(
            channels,
            kernel_size,
            padding="same",
            activation="relu",
            data_format="channels_last",
            dtype=dtype,
            name=f"conv_{number}",
        )(features)
        if pool_size > 1:
            features = keras.layers.MaxPooling2D(
                pool_size,
                data_format="channels_last",
                dtype=dtype,
                name=f"pooling_{number}",
            )(features)
    features = keras.layers.Flatten(data_format="channels_last", dtype=dtype)(features)
    for number, size in enumerate(units, start=1):
        features = keras.layers.Dense(
            size, activation="relu", dtype=dtype, name=f"dense_{number}"
        )(features)
    features = keras.layers.Dropout(dropout, dtype=dtype)(features)
    scores = keras.layers.Dense(
        num_classes, activation="softmax", dtype="float32", name="scores"
    )(features)
    return classifier(images, scores, name, dtype)
