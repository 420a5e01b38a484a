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
    """Layers of capsules, as pairs of the types at a pixel and their dimension.

    Args:
      filters: features of the first convolution.
      down: two layers for each level, of which the first halves the height and width.
      up: one or two layers for each level, of which the first doubles them.
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
        # Few types of many numbers. With capsules of 8 numbers, the network takes twice
        # as many steps to tell digits apart.
        filters=16,
        down=(((1, 16), (2, 16)), ((2, 16), (2, 16)), ((2, 32), (2, 32))),
        up=(((2, 16), (2, 16)), ((1, 16), (2, 16)), ((1, 16),)),
        capsule_dim=8,
        decoder_units=(16, 32),
    ),
}
_ITERATIONS = {"R1": 1, "R3": 3}  # of layers that keep the height and width


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

    "Capsules for Object Segmentation": a convolution, three levels of capsules on the
    way down and three on the way up, each next to the capsules of its level, and a
    capsule for each class at each pixel, whose length is the class's score. All layers
    route as `SlimCaps2D` does, the transposed convolutions, too. A decoder draws the
    image again from the capsules of the classes that are there.

    The paper's size has 1,425,649 parameters for grey images and one class. This
    follows the code that its authors published, with these differences:

    * The squash has an epsilon, and so a gradient at zero.
    * Kernels start as those of `SlimCaps2D`, where theirs have He's normal values, with
      which the small network took longer to learn.
    * With several classes, which the paper does not have, the decoder draws all but the
      background.
    * The loss is `MarginLoss` by default, one of theirs. Their first is
      `losses.WeightedBinaryCrossentropy` with `positive_weight = (1 - p) / p`, for an
      object that has the share p of all pixels.

    Args:
      input_shape: (height, width, channels) of the images, whose values are
        floating-point numbers from 0 to 1. Height and width are multiples of 8, or None
        for any multiple. Integers and numbers above 10 are a `ValueError`, the latter
        not in a `tf.function` of yours.
      num_classes: how many, the background included; or 1 for an object in front of
        a background, as in the paper.
      variant: `"R3"`: all layers but the first one route with three iterations; or
        `"R1"`: only those that change the height and width do, the others with one.
      size: `"paper"` or `"small"`, which has an eighth of its weights.
      reconstruction_weight: the weight of the reconstruction's summed squared error.
        The paper's is 131.072 of the mean over 512 x 512 pixels, which is the same.
      name: the model's name.
      dtype: a dtype policy, such as `"mixed_float16"`, with which `compile` has Keras
        scale the loss.

    Returns:
      A `SegCaps`, built and not compiled, from images `[B, H, W, C]` to lengths
      `[B, H, W, num_classes]`, in float32 and below 1. `compile()` needs no arguments.

    Raises:
      ValueError: if an argument is not as above.

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
    capsules = keras.ops.expand_dims(features, -2)  # one type
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
    # The loss compares lengths with margins: keep them out of half precision.
    lengths = Length(dtype="float32", name="lengths")(capsules)
    outputs = {"scores": lengths, "capsules": capsules}
    return keras.Model(images, outputs, name="network")


@registered
class SegCaps(Segmenter):
    """A capsule network that segments images, and draws what it has found.

    `segcaps` returns one. Call arguments: images `[B, H, W, C]`. Returns lengths
    `[B, H, W, num_classes]`.

    `fit` and `evaluate` take images and masks: classes, `[B, H, W, 1]` or `[B, H, W]`,
    or one-hot, `[B, H, W, num_classes]`, as the loss and the metrics want them;
    `MarginLoss` and `metrics.Dice` take both. Sample weights are `[B]`, or one for each
    pixel, and weigh the loss that is compiled alone. The model adds the loss of the
    reconstruction: the squared error of what the decoder draws, summed over an image.
    Its target is the image where the masks show an object, and zero in the background,
    which is class 0 of several. The decoder sees the capsules of these classes alone.
    `reconstruct` calls it.

    Args:
      network: a functional model from images to the `"scores"` and `"capsules"`.
      decoder: a functional model from `[B, H, W, num_classes * capsule_dim]` to images.
      reconstruction_weight: the weight of its loss.
      **kwargs: `name` and `dtype`, as for every Keras model.

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

    primary_field = 1, 1  # pixels that `routing_coefficients` has capsules for

    def routing_coefficients(self, images):
        """Returns how the last layer divides the capsules of each pixel among classes.

        The c of its last iteration. Not differentiable.

        Args:
          images: `[B, H, W, C]`.

        Returns:
          `[B, H, W, types, num_classes]`, not negative, and of sum one over the
          classes; `1 / num_classes` for a layer of one iteration, as of `"R1"`.

        Raises:
          ValueError: if there is one class, to which all capsules are routed.
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
        # The mask is repeated, because TensorFlow broadcasts slowly on a CPU.
        kept = tf.cast(one_hot * foreground(one_hot), capsules.dtype)
        kept = tf.repeat(kept, dim, axis=-1)
        features = tf.reshape(capsules, [*outer, classes * dim]) * kept
        return self.draw(features, training)

    def get_config(self):
        return {
            **super().get_config(),
            "reconstruction_weight": self.reconstruction_weight,
        }
