# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""A U-Net, as a baseline for capsules."""

import keras

from tf_capsops.arguments import scaled_images
from tf_capsops.models.functional import FunctionalModel
from tf_capsops.models.mask_targets import MaskModel
from tf_capsops.models.segmentation import probabilities
from tf_capsops.models.sizes import checked_sizes, sizes_of, with_multiples
from tf_capsops.registered import registered

# The features of each level.
_SIZES = {"paper": (64, 128, 256, 512, 1024), "small": (8, 16, 32, 64)}


def unet(input_shape, num_classes, size="paper", name="unet", dtype=None):
    """A U-Net without capsules: the baseline of LaLonde and Bagci (2018).

    Each level has two 3 x 3 convolutions with relu. Max poolings connect the levels on
    the way down, and 2 x 2 transposed convolutions on the way up, with skip connections
    between equal levels. This is the network of Ronneberger, Fischer and Brox, "U-Net"
    (2015), except that images keep their size. The model follows the code that LaLonde
    and Bagci published; like theirs, the paper's size has 31,030,593 parameters for
    gray images and one class.

    Args:
      input_shape: (height, width, channels) of the images. A height or width of None
        allows any multiple of 16, or of 8 with the small size. Values must be
        floating-point numbers from 0 to 1, or standardized. Integers raise a
        `ValueError`; so do numbers above 10, except inside your own `tf.function`.
      num_classes: the number of classes, including the background; or 1 for an object
        in front of a background.
      size: `"paper"`; or `"small"`, with four levels of 8 to 64 features.
      name: the model's name.
      dtype: a dtype policy; with `"mixed_float16"`, `compile` enables loss scaling.

    Returns:
      A functional model, built but not compiled, from images `[B, H, W, C]` to
      probabilities `[B, H, W, num_classes]` in float32, for a cross-entropy or
      `keras.losses.Dice`.

    Raises:
      ValueError: if an argument is not as above.

    >>> import tf_capsops
    >>> model = tf_capsops.models.unet((64, 64, 1), 1)
    >>> model.count_params(), model.output_shape
    (31030593, (None, 64, 64, 1))
    """
    image_shape, num_classes = checked_sizes(
        "unet", input_shape, num_classes, may_be_open=True
    )
    *levels, deepest = sizes_of("unet", _SIZES, size)
    last = {"data_format": "channels_last", "dtype": dtype}
    images = features = keras.Input(image_shape, name="images")

    def convolved(features, channels, name):
        for number in (1, 2):
            features = keras.layers.Conv2D(
                channels,
                3,
                padding="same",
                activation="relu",
                kernel_initializer="he_normal",
                name=f"{name}_conv_{number}",
                **last,
            )(features)
        return features

    passed = []
    for number, channels in enumerate(levels, start=1):
        features = convolved(features, channels, f"down_{number}")
        passed.append(features)
        features = keras.layers.MaxPooling2D(
            2, padding="same", name=f"pooling_{number}", **last
        )(features)
    features = convolved(features, deepest, "middle")
    for number in range(len(levels), 0, -1):
        features = keras.layers.Conv2DTranspose(
            levels[number - 1], 2, strides=2, name=f"up_{number}", **last
        )(features)
        features = keras.layers.Concatenate(dtype=dtype, name=f"skip_{number}")(
            [_cropped(features, passed[number - 1], number, last), passed[number - 1]]
        )
        features = convolved(features, levels[number - 1], f"up_{number}")
    scores = probabilities(features, num_classes)
    policy = keras.dtype_policies.get(dtype)
    return UNet(images, scores, name=name, dtype=policy)


@registered
class UNet(MaskModel, FunctionalModel):
    """The functional model of `unet`, from images to probabilities.

    `fit` and `evaluate` take masks and sample weights as `SegCaps` does. Masks are
    classes, `[B, H, W, 1]` or `[B, H, W]`, or one-hot, as the loss expects them.
    Weights are `[B]`, or one for each pixel.
    """

    @property
    def multiple(self):
        """The number that must divide the open sizes of images."""
        poolings = [isinstance(each, keras.layers.MaxPooling2D) for each in self.layers]
        return 2 ** sum(poolings)

    def call(self, inputs, training=None, mask=None):
        images = scaled_images(self.name, self.images_of(inputs), self.input_shape[1:])
        # Only open sizes need be multiples. For known sizes, features are cropped.
        images = with_multiples(self.name, images, self.input_shape[1:], self.multiple)
        return super().call(images, training=training, mask=mask)


def _cropped(features, like, number, last):
    """Crops the last row and column of features if pooling rounded a size up."""
    beyond = [
        0 if None in sizes else sizes[0] - sizes[1]
        for sizes in zip(features.shape[1:3], like.shape[1:3])
    ]
    if not any(beyond):
        return features
    crops = tuple((0, each) for each in beyond)
    return keras.layers.Cropping2D(crops, name=f"crop_{number}", **last)(features)
