# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The SegCaps of LaLonde and Bagci."""

import dataclasses

import keras
import tensorflow as tf

from tf_capsops.arguments import image_range, not_negative
from tf_capsops.layers import Length, SlimCaps2D, SlimCaps2DTranspose
from tf_capsops.losses import MarginLoss
from tf_capsops.models.segmenter import Segmenter, drawing_decoder, foreground
from tf_capsops.models.sizes import checked_sizes, sizes_of
from tf_capsops.ops.capsule_routing import plain_agreement
from tf_capsops.registered import registered
from tf_capsops.shapes import dimensions


@dataclasses.dataclass(frozen=True)
class _Sizes:
    """Sizes of the layers; for capsules, pairs of types at a pixel and dimension.

    Args:
      filters: features of the first convolution.
      down: two layers for each level; the first halves the height and width.
      up: one or two layers for each level; the first doubles the height and width.
      capsule_dim: the dimension of a class capsule.
      decoder_units: features of the decoder's hidden layers.
    """

    filters: int
    down: tuple
    up: tuple
    capsule_dim: int
    decoder_units: tuple


_SIZES = {
    "paper": _Sizes(
        filters=16,
        down=(((2, 16), (4, 16)), ((4, 32), (8, 32)), ((8, 64), (8, 32))),
        up=(((8, 32), (4, 32)), ((4, 16), (4, 16)), ((2, 16),)),
        capsule_dim=16,
        decoder_units=(64, 128),
    ),
    "small": _Sizes(
        # Few types with many numbers each. With capsules of 8 numbers, the network
        # needs twice as many steps to learn to tell digits apart.
        filters=16,
        down=(((1, 16), (2, 16)), ((2, 16), (2, 16)), ((2, 32), (2, 32))),
        up=(((2, 16), (2, 16)), ((1, 16), (2, 16)), ((1, 16),)),
        capsule_dim=8,
        decoder_units=(16, 32),
    ),
}
# Routing iterations of the layers that keep the height and width.
_ITERATIONS = {"R1": 1, "R3": 3}


def segcaps(
    input_shape,
    num_classes,
    variant="R3",
    size="paper",
    reconstruction_weight=0.0005,
    name="segcaps",
    dtype=None,
):
    """Capsules that segment images: LaLonde and Bagci (2018).

    The paper is "Capsules for Object Segmentation". The layers are a convolution; three
    levels of capsules on the way down, and three on the way up, with skip connections
    between equal levels; and a capsule for each class at each pixel, whose length is
    the score of the class. All layers route as `SlimCaps2D` does, including the
    transposed convolutions. A decoder reconstructs the image from the capsules of the
    classes that are present.

    The paper's size has 1,425,649 parameters for gray images and one class. The model
    follows the code that the authors published, with these differences:

    * The squash has an epsilon, and so a gradient at zero.
    * Kernels start as those of `SlimCaps2D`. Theirs start with He's normal values, with
      which the small network took longer to learn.
    * With several classes, which the paper does not have, the decoder draws all but the
      background.
    * The default loss is `MarginLoss`, one of theirs. Their first choice is
      `losses.WeightedBinaryCrossentropy` with `positive_weight = (1 - q) / q`, for an
      object that covers the fraction q of all pixels.

    Args:
      input_shape: (height, width, channels) of the images. Height and width must be
        multiples of 8; None allows any multiple. Values must be floating-point numbers
        from 0 to 1. Integers raise a `ValueError`; so do numbers above 10, except
        inside your own `tf.function`.
      num_classes: the number of classes, including the background; or 1 for an object
        in front of a background, as in the paper.
      variant: `"R3"`: all layers except the first route with three iterations. `"R1"`:
        layers that keep the height and width route with one.
      size: `"paper"`; or `"small"`, with an eighth of the weights.
      reconstruction_weight: the weight of the reconstruction's summed squared error.
        The paper weights the mean over 512 x 512 pixels by 131.072, which is the same.
      name: the model's name.
      dtype: a dtype policy; with `"mixed_float16"`, `compile` enables loss scaling.

    Returns:
      A `SegCaps`, built but not compiled, from images `[B, H, W, C]` to lengths
      `[B, H, W, num_classes]`, in float32 and below 1. `compile()` needs no arguments.

    Raises:
      ValueError: if an argument is not as above.

    >>> import tf_capsops
    >>> model = tf_capsops.models.segcaps((64, 64, 1), 1)
    >>> model.count_params()
    1425649
    """
    image_shape, num_classes = checked_sizes(
        "segcaps", input_shape, num_classes, SegCaps.multiple, may_be_open=True
    )
    sizes = sizes_of("segcaps", _SIZES, size)
    if variant not in _ITERATIONS:
        raise ValueError(f"segcaps: variant must be 'R1' or 'R3', got {variant!r}")
    network = _network(image_shape, num_classes, sizes, _ITERATIONS[variant], dtype)
    decoder = drawing_decoder(
        (*image_shape[:2], num_classes * sizes.capsule_dim),
        sizes.decoder_units,
        image_shape[2],
        2,
        dtype,
    )
    return SegCaps(network, decoder, reconstruction_weight, name=name, dtype=dtype)


def _network(image_shape, num_classes, sizes, iterations, dtype):
    """Returns a model from images to the `"scores"` and `"capsules"` of the classes."""

    def layer(types, dim, name, routing_iterations, **window):
        kind = SlimCaps2D
        if window.pop("transposed", False):
            kind = SlimCaps2DTranspose
        return kind(
            types,
            dim,
            padding="same",
            routing_iterations=routing_iterations,
            bias_initializer=keras.initializers.Constant(0.1),
            dtype=dtype,
            name=name,
            **window,
        )

    images = keras.Input(image_shape, name="images")
    features = keras.layers.Conv2D(
        sizes.filters,
        5,
        padding="same",
        activation="relu",
        data_format="channels_last",
        dtype=dtype,
        name="conv",
    )(images)
    capsules = keras.ops.expand_dims(features, -2)  # Capsules of a single type.
    passed = []
    for number, (halved, kept) in enumerate(sizes.down, start=1):
        passed.append(capsules)
        name, routed = f"down_{number}", 3 if number > 1 else 1
        capsules = layer(*halved, name, routed, kernel_size=5, strides=2)(capsules)
        capsules = layer(*kept, f"{name}_caps", iterations, kernel_size=5)(capsules)
    for number, (doubled, *kept) in zip(range(len(sizes.up), 0, -1), sizes.up):
        name = f"up_{number}"
        capsules = layer(*doubled, name, 3, kernel_size=4, strides=2, transposed=True)(
            capsules
        )
        capsules = keras.layers.Concatenate(
            axis=-2, dtype=dtype, name=f"skip_{number}"
        )([capsules, passed.pop()])
        for each in kept:
            capsules = layer(*each, f"{name}_caps", iterations, kernel_size=5)(capsules)
    capsules = layer(
        num_classes, sizes.capsule_dim, "class_caps", iterations, kernel_size=1
    )(capsules)
    # The loss compares lengths with margins, so they must be float32.
    lengths = Length(dtype="float32", name="lengths")(capsules)
    outputs = {"scores": lengths, "capsules": capsules}
    return keras.Model(images, outputs, name="network")


@registered
class SegCaps(Segmenter):
    """A capsule network that segments images and reconstructs objects; see `segcaps`.

    Call arguments: images `[B, H, W, C]`. Returns lengths `[B, H, W, num_classes]`.

    `fit` and `evaluate` take images and masks, in the form that the loss and the
    metrics expect: classes, `[B, H, W, 1]` or `[B, H, W]`, or one-hot,
    `[B, H, W, num_classes]`. `MarginLoss` and `metrics.Dice` take both. Sample weights
    are `[B]`, or one for each pixel, and apply only to the compiled loss.

    The model adds a reconstruction loss: the squared error of the decoder's image,
    summed over an image. The target is the image where the masks show an object, and
    zero in the background (class 0, if there are several classes). The decoder gets
    only the capsules of the objects' classes. `reconstruct` calls it.

    Args:
      network: a functional model from images to a dict of `"scores"` and `"capsules"`.
      decoder: a functional model from `[B, H, W, num_classes * capsule_dim]` to images.
      reconstruction_weight: the weight of the reconstruction loss.
      **kwargs: `name` and `dtype`, as for every Keras model.

    >>> import numpy as np
    >>> import tf_capsops
    >>> model = tf_capsops.models.segcaps((8, 8, 1), 3, size="small")
    >>> images, masks = np.zeros([2, 8, 8, 1], "float32"), np.zeros([2, 8, 8, 1], int)
    >>> model.compile()
    >>> history = model.fit(images, masks, verbose=0)
    >>> model.predict(images, verbose=0).shape
    (2, 8, 8, 3)
    >>> model.reconstruct(images).shape.as_list()
    [2, 8, 8, 1]
    """

    owner = "segcaps"
    default_loss = MarginLoss

    def __init__(self, network, decoder, reconstruction_weight=0.0005, **kwargs):
        self.reconstruction_weight = not_negative(
            self.owner, "reconstruction_weight", reconstruction_weight
        )
        super().__init__(network, decoder, **kwargs)

    # The capsules of `routing_coefficients` are those of single pixels.
    primary_field = 1, 1

    def routing_coefficients(self, images):
        """Returns how the last layer divides the capsules of each pixel among classes.

        These are the coefficients of its last iteration. They are not differentiable.

        Args:
          images: `[B, H, W, C]`.

        Returns:
          `[B, H, W, types, num_classes]`: nonnegative, adding up to 1 over the classes.
          They are `1 / num_classes` if the layer has one iteration, as with `"R1"`.

        Raises:
          ValueError: if there is only one class, because all capsules are routed to it.
        """
        if self.num_classes == 1:
            raise ValueError(
                f"{self.owner}: all capsules are routed to the one class: there are no "
                "coefficients"
            )
        layer = self.network.get_layer("class_caps")
        images = tf.convert_to_tensor(image_range(self.owner, images))
        capsules = keras.Model(self.network.input, layer.input)(images)
        capsules, kernel, bias = (
            tf.cast(each, tf.float32) for each in (capsules, layer.kernel, layer.bias)
        )
        batch, height, width, types, _ = dimensions(capsules)
        votes = tf.einsum("nyxik,kjd->nyxjid", capsules, kernel[0, 0])
        votes = tf.reshape(votes, [-1, *dimensions(votes)[3:]])
        logits = tf.zeros([len(votes), self.num_classes, 1, types])
        iterations = layer.routing_iterations
        _, found = plain_agreement(
            *(votes, logits, iterations, 1e-7),
            bias=bias[:, tf.newaxis],
            rounded=layer.rounded,
        )
        found = tf.reshape(found, [batch, height, width, self.num_classes, types])
        return tf.stop_gradient(tf.einsum("nyxji->nyxij", found))

    def own_loss(self, images, one_hot, outputs, training=None):
        drawn = self.drawn(outputs, one_hot, training)
        squares = tf.square(drawn - images * foreground(one_hot))
        return self.reconstruction_weight * tf.reduce_mean(
            tf.reduce_sum(squares, axis=[1, 2, 3])
        )

    def drawn(self, outputs, one_hot, training=None):
        capsules = outputs["capsules"]
        *outer, classes, dim = dimensions(capsules)
        # Repeating the mask is faster than broadcasting, which is slow on a CPU.
        kept = tf.cast(one_hot * foreground(one_hot), capsules.dtype)
        kept = tf.repeat(kept, dim, axis=-1)
        features = tf.reshape(capsules, [*outer, classes * dim]) * kept
        return self._decoded(features, training)

    def get_config(self):
        return {
            **super().get_config(),
            "reconstruction_weight": self.reconstruction_weight,
        }
