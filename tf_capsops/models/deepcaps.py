# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The DeepCaps of Rajasegaran et al., with its class-independent decoder."""

import dataclasses
import math

import keras
import tensorflow as tf

from tf_capsops.arguments import known_shape
from tf_capsops.layers import Conv2D, DigitCaps, Length, Mask, PrimaryCaps, SlimCaps2D
from tf_capsops.models.autoencoder import Autoencoder, Inference
from tf_capsops.models.sizes import checked_sizes, sizes_of
from tf_capsops.ops.conv2d import padded_for_tflite
from tf_capsops.ops.squash import at_least_float32, squash
from tf_capsops.registered import registered


@dataclasses.dataclass(frozen=True)
class _Sizes:
    """Sizes of the layers of the encoder and the decoder.

    Args:
      filters: features of the first convolution.
      cells: for each cell, the number of types at a pixel and their dimension. The last
        two cells have the same dimension.
      capsule_dim: the dimension of a class capsule.
      seed: features of the decoder's smallest map.
      drawn: features of the decoder's transposed convolutions. The first keeps the
        size, and each of the others may double it.
    """

    filters: int
    cells: tuple
    capsule_dim: int
    seed: int
    drawn: tuple


_SIZES = {
    "paper": _Sizes(
        filters=128,
        cells=((32, 4), (32, 8), (32, 8), (32, 8)),
        capsule_dim=32,
        seed=16,
        drawn=(64, 32, 16, 8),
    ),
    "small": _Sizes(
        filters=32,
        cells=((8, 4), (8, 4), (8, 4)),
        capsule_dim=16,
        seed=8,
        drawn=(16, 16, 8, 8),
    ),
}
_AXES = "[batch, height, width, types, capsule dim]"
_SMALLEST = 8  # The decoder starts where the shorter side has at most these pixels.


@registered
class GlobalSlimCaps2D(SlimCaps2D):
    """Slim capsules that are routed over all pixels together.

    This is equations 3 to 5 of Rajasegaran et al. (2019), as in their code. Votes are
    those of `SlimCaps2D`, but a type of child divides itself among the parents of all
    pixels, instead of those of each pixel by itself. A parent type's vectors at all
    pixels are squashed as one vector. The layer stores all votes, so it is for small
    maps.

    Input and output shapes, weights, args and errors are those of `SlimCaps2D`. In
    addition, leaky routing, kernels that are not shared, and an unknown height or width
    raise a `ValueError`.

    >>> import numpy as np
    >>> from tf_capsops.models.deepcaps import GlobalSlimCaps2D
    >>> layer = GlobalSlimCaps2D(8, capsule_dim=4, kernel_size=3, padding="same")
    >>> layer(np.ones([2, 5, 5, 8, 4], "float32")).shape.as_list()
    [2, 5, 5, 8, 4]
    """

    def build(self, input_shape):
        if self.leaky or not self.share_weights:
            raise ValueError(
                "GlobalSlimCaps2D: there must be one kernel and no leaky routing, got "
                f"share_weights={self.share_weights}, leaky={self.leaky}"
            )
        known_shape("GlobalSlimCaps2D", input_shape, _AXES)
        super().build(input_shape)

    def call(self, capsules):
        _, height, width, types, in_dim = capsules.shape
        each = tf.transpose(capsules, [0, 3, 1, 2, 4])
        each = tf.reshape(each, [-1, height, width, in_dim])
        parents = self.filters, self.capsule_dim
        kernel = tf.reshape(
            self.kernel, [*self.kernel_size, in_dim, math.prod(parents)]
        )
        window = self.strides, self.padding.upper(), self.dilation_rate
        each, padding = padded_for_tflite(each, self.kernel_size, *window)
        votes = tf.nn.conv2d(
            each, kernel, self.strides, padding, dilations=self.dilation_rate
        )
        _, *size, _ = votes.shape
        pixels = math.prod(size)
        votes = at_least_float32(votes)
        votes = tf.reshape(votes, [-1, types, pixels, *parents])
        # Logits stay flat, because TFLite without XNNPACK overwrites a tensor that is
        # reshaped and read again.
        flat = [-1, types, pixels * self.filters]
        by_parent = [-1, types, pixels, self.filters]
        logits = tf.reshape(tf.zeros_like(votes[..., 0]), flat)
        for iteration in range(self.routing_iterations):
            logits = self.rounded("logits", iteration, logits)
            shares = tf.reshape(tf.nn.softmax(logits), by_parent)
            shares = self.rounded("coefficients", iteration, shares)
            sums = tf.reduce_sum(shares[..., tf.newaxis] * votes, axis=1)
            if self.use_bias:
                sums += tf.cast(self.bias, sums.dtype)
            sums = self.rounded("sums", iteration, sums)
            outputs = _squashed_over_pixels(sums)
            if iteration + 1 < self.routing_iterations:
                outputs = self.rounded("vectors", iteration, outputs)
                agreement = tf.reduce_sum(outputs[:, tf.newaxis] * votes, axis=-1)
                logits += tf.reshape(agreement, flat)
        return tf.cast(tf.reshape(outputs, [-1, *size, *parents]), capsules.dtype)


def _squashed_over_pixels(sums):
    """Squashes `[B, pixels, types, dim]`, with all vectors of a type as one vector."""
    _, pixels, types, dim = sums.shape
    by_type = tf.reshape(tf.transpose(sums, [0, 2, 1, 3]), [-1, types, pixels * dim])
    squashed = tf.reshape(squash(by_type), [-1, types, pixels, dim])
    return tf.transpose(squashed, [0, 2, 1, 3])


def deepcaps(
    input_shape,
    num_classes,
    size="paper",
    routing_iterations=3,
    reconstruction_weight=None,
    name="deepcaps",
    dtype=None,
):
    """The deep capsule network of Rajasegaran et al. (2019), with its decoder.

    The paper is "DeepCaps: Going Deeper with Capsule Networks". The layers are:

    * a convolution;
    * four cells of convolutional capsules. Each halves the height and width, and has a
      skip connection around two of its layers. In the last cell, the skip connection
      routes over all pixels together;
    * class capsules from the last two cells, routed as in `DigitCaps`;
    * a decoder of transposed convolutions. It gets the capsule of one class, but not
      which class that is.

    For 28 x 28 gray images and ten classes, the paper's size has 8,506,705 parameters;
    6,400 of them are initial logits, which are zero and not trained. For 64 x 64 color
    images, to which the authors enlarged CIFAR-10, it has 13,452,563, with 25,600 such
    logits. The model follows the authors' published code, with these differences:

    * Their class capsules have biases (320 parameters), and no variables for logits.
    * Our decoder ends in a sigmoid, theirs in relu.
    * Our decoder starts at the image's size halved up to three times, until a side has
      8 pixels or fewer. Theirs agrees for the sizes above, and supports no others.
    * Our convolutions in the cells start with weights twice as large. With theirs, the
      squashes leave nothing of the image after two cells.
    * Our squash of routed capsules has an epsilon, and so a gradient at zero.
    * Their layer that routes over all pixels misreads its input: the axes in memory are
      pixels, types and dimensions, but it reads them as if the pixels came last.

    Args:
      input_shape: (height, width, channels) of the images. Their values must be
        floating-point numbers from 0 to 1. Standardized images train, too, but the
        decoder cannot draw them. Integers raise a `ValueError`; so do numbers above 10,
        except inside your own `tf.function`.
      num_classes: the number of classes.
      size: `"paper"`; or `"small"`, with three cells of 8 types.
      routing_iterations: how often routing computes the class capsules, and those of
        the last cell.
      reconstruction_weight: the weight of the reconstruction's summed squared error;
        None for the paper's 0.4 times the mean over all numbers of an image.
      name: the model's name.
      dtype: a dtype policy; with `"mixed_float16"`, `compile` enables loss scaling.

    Returns:
      A `DeepCaps`, built but not compiled. `compile()` needs no arguments,
      `fit(images, labels)` takes integer or one-hot labels, and `predict(images)`
      returns a dict of `"lengths"` and `"reconstruction"`, all as for `CapsNet`.

    Raises:
      ValueError: if an argument is not as above.

    >>> import tf_capsops
    >>> model = tf_capsops.models.deepcaps((28, 28, 1), 10)
    >>> model.count_params()
    8506705
    """
    return DeepCaps(
        input_shape,
        num_classes,
        size,
        routing_iterations,
        reconstruction_weight,
        name=name,
        dtype=dtype,
    )


@registered
class DeepCapsInference(Inference):
    """The functional model that `DeepCaps.inference_model` returns."""

    owner = "DeepCaps"


@registered
class DeepCaps(Autoencoder):
    """A deep capsule network that classifies and reconstructs images; see `deepcaps`.

    Call arguments, outputs, targets and `compile` are those of `CapsNet`. The
    sub-models are `encoder` (images to class capsules) and `decoder` (masked, flattened
    capsules to images); `encode` and `decode` call them. The decoder sums the masked
    capsules, of which only one is not zero.

    Args:
      input_shape, num_classes, size, routing_iterations, reconstruction_weight: as for
        `deepcaps`.
      **kwargs: `name` and `dtype`, as for every Keras model.

    >>> import numpy as np
    >>> import tf_capsops
    >>> model = tf_capsops.models.DeepCaps((16, 16, 1), 3, size="small")
    >>> outputs = model(np.zeros([2, 16, 16, 1], "float32"))
    >>> outputs["lengths"].shape.as_list(), outputs["reconstruction"].shape.as_list()
    ([2, 3], [2, 16, 16, 1])
    """

    owner = "DeepCaps"
    inference = DeepCapsInference

    def __init__(
        self,
        input_shape,
        num_classes,
        size="paper",
        routing_iterations=3,
        reconstruction_weight=None,
        **kwargs,
    ):
        image_shape, num_classes = checked_sizes("deepcaps", input_shape, num_classes)
        sizes_of("deepcaps", _SIZES, size)
        if reconstruction_weight is None:
            reconstruction_weight = 0.4 / math.prod(image_shape)
        arguments = {
            "input_shape": image_shape,
            "num_classes": num_classes,
            "size": size,
            "routing_iterations": routing_iterations,
            "reconstruction_weight": reconstruction_weight,
        }
        super().__init__(arguments, **kwargs)

    def new_parts(self):
        sizes = _SIZES[self._arguments["size"]]
        return {
            "encoder": _encoder(sizes, self._arguments, self.dtype_policy),
            "decoder": _decoder(sizes, self._arguments, self.dtype_policy),
            "length": Length(dtype="float32", name="length"),
            "mask": Mask(dtype=self.dtype_policy, name="mask"),
        }


def _encoder(sizes, arguments, dtype):
    images = features = keras.Input(arguments["input_shape"], name="images")
    features = Conv2D(
        sizes.filters,
        3,
        padding="same",
        activation="relu",
        data_format="channels_last",
        dtype=dtype,
        name="conv",
    )(features)
    capsules = keras.layers.BatchNormalization(dtype=dtype, name="normalization")(
        features
    )
    cells = []
    for number, (types, dim) in enumerate(sizes.cells, start=1):
        routed = arguments["routing_iterations"] if number == len(sizes.cells) else None
        capsules = _cell(capsules, types, dim, f"cell_{number}", routed, dtype)
        cells.append(
            keras.layers.Reshape((-1, dim), dtype=dtype, name=f"flat_{number}")(
                capsules
            )
            if number > len(sizes.cells) - 2
            else capsules
        )
    children = keras.layers.Concatenate(axis=1, dtype=dtype, name="children")(
        cells[:-3:-1]
    )
    classes = DigitCaps(
        arguments["num_classes"],
        sizes.capsule_dim,
        routing_iterations=arguments["routing_iterations"],
        dtype=dtype,
        name="digit_caps",
    )(children)
    return keras.Model(images, classes, name="encoder")


def _cell(capsules, types, dim, name, routed, dtype):
    """Returns the capsules of a cell, at half the height and width.

    Args:
      capsules: features `[B, H, W, C]`, or capsules `[B, H, W, types, dim]`.
      types, dim: the types at a pixel and their dimension, in each layer.
      name: the prefix of the layers' names.
      routed: the routing iterations of the skip connection, or None for a convolution.
      dtype: a dtype policy.
    """

    def convolved(capsules, name, strides=1):
        if len(capsules.shape) == 5:
            _, height, width, *sizes = capsules.shape
            capsules = keras.layers.Reshape(
                (height, width, math.prod(sizes)), dtype=dtype, name=f"{name}_features"
            )(capsules)
        return PrimaryCaps(
            types,
            dim,
            3,
            strides=strides,
            padding="same",
            use_bias=False,
            # The shorter a vector, the more a squash shortens it. With Glorot's
            # initializer nothing is left in the third cell, and some networks learn
            # nothing for an epoch. With weights twice as large, lengths start at about
            # one half.
            kernel_initializer=keras.initializers.VarianceScaling(
                4.0, "fan_avg", "uniform"
            ),
            data_format="channels_last",
            flatten=False,
            dtype=dtype,
            name=name,
        )(capsules)

    first = convolved(capsules, f"{name}_first", strides=2)
    if routed:
        around = GlobalSlimCaps2D(
            types,
            dim,
            3,
            padding="same",
            routing_iterations=routed,
            kernel_initializer="he_normal",
            bias_initializer=keras.initializers.Constant(0.1),
            dtype=dtype,
            name=f"{name}_around",
        )(first)
    else:
        around = convolved(first, f"{name}_around")
    through = convolved(convolved(first, f"{name}_second"), f"{name}_third")
    return keras.layers.Add(dtype=dtype, name=name)([through, around])


def _decoder(sizes, arguments, dtype):
    height, width, channels = arguments["input_shape"]
    classes, most = arguments["num_classes"], len(sizes.drawn) - 1
    doublings = math.ceil(math.log2(max(1, min(height, width) / _SMALLEST)))
    doublings = min(doublings, most)
    seed = [math.ceil(side / 2**doublings) for side in (height, width)]
    last = {"padding": "same", "data_format": "channels_last"}
    masked = keras.Input([classes * sizes.capsule_dim], name="masked_capsules")
    each = keras.layers.Reshape((classes, sizes.capsule_dim), dtype=dtype)(masked)
    features = keras.ops.sum(each, axis=1)
    features = keras.layers.Dense(
        math.prod(seed) * sizes.seed, activation="relu", dtype=dtype, name="seed"
    )(features)
    features = keras.layers.Reshape((*seed, sizes.seed), dtype=dtype)(features)
    features = keras.layers.BatchNormalization(momentum=0.8, dtype=dtype)(features)
    for number, filters in enumerate(sizes.drawn[: doublings + 1]):
        features = keras.layers.Conv2DTranspose(
            filters, 3, strides=min(2, number + 1), dtype=dtype, **last
        )(features)
    # The loss is summed over a whole image, so the drawn image must be float32.
    drawn = keras.layers.Conv2DTranspose(
        channels, 3, activation="sigmoid", dtype="float32", **last
    )(features)
    beyond = [made - side for made, side in zip(drawn.shape[1:3], (height, width))]
    if any(beyond):
        drawn = keras.layers.Cropping2D(
            tuple((0, each) for each in beyond), "channels_last", dtype="float32"
        )(drawn)
    return keras.Model(masked, drawn, name="decoder")
