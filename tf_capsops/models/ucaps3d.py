# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The 3D-UCaps of Nguyen, Hua and Le."""

import dataclasses

import keras
import tensorflow as tf

from tf_capsops.arguments import not_negative
from tf_capsops.layers import Conv3D, Length, SlimCaps3D
from tf_capsops.losses import MarginLoss
from tf_capsops.models.segmentation import probabilities
from tf_capsops.models.segmenter import Segmenter, drawing_decoder, foreground
from tf_capsops.models.sizes import checked_sizes, sizes_of
from tf_capsops.registered import registered
from tf_capsops.shapes import dimensions

_LEVELS = 3


@dataclasses.dataclass(frozen=True)
class _Sizes:
    """Sizes of the layers; for capsules, pairs of types at a voxel and dimension.

    Args:
      features: features of the convolutions before the capsules.
      primary: the first capsules.
      down: two layers for each level; the first halves the depth, height and width. The
        very last layer is only a dimension, because it has a type for each class.
      up: features of each level's transposed convolution and, except at the last level,
        of the convolution after it.
      decoder_units: features of the decoder's hidden layers.
    """

    features: tuple
    primary: tuple
    down: tuple
    up: tuple
    decoder_units: tuple


_SIZES = {
    "paper": _Sizes(
        features=(16, 32, 64),
        primary=(16, 4),
        down=(((16, 8), (16, 8)), ((8, 16), (8, 16)), ((8, 32), 64)),
        up=((256, 128), (128, 64), (64,)),
        decoder_units=(64, 128),
    ),
    "small": _Sizes(
        features=(4, 8, 16),
        primary=(4, 4),
        down=(((4, 8), (4, 8)), ((4, 8), (4, 8)), ((4, 16), 16)),
        up=((32, 16), (16, 16), (16,)),
        decoder_units=(16, 32),
    ),
}


def ucaps3d(
    input_shape,
    num_classes,
    size="paper",
    reconstruction_weight=0.1,
    margin_weight=0.1,
    name="ucaps3d",
    dtype=None,
):
    """Capsules that segment volumes: Nguyen, Hua and Le (2021).

    The paper is "3D-UCaps: 3D Capsules Unet for Volumetric Image Segmentation". The
    layers are three convolutions; capsules on the way down, with a type for each class
    in the last layer; ordinary convolutions on the way up, with skip connections from
    the capsules of equal levels; and a softmax at each voxel. A decoder reconstructs
    the volume from the last features.

    The paper's size has 3,367,274 parameters for two channels and four classes. The
    model follows the code that the authors published, with these differences:

    * Their capsules have a second bias, added to each vote: 1,088 parameters.
    * Routing adds the inner product of vote and parent to the logits, as in dynamic
      routing. Theirs adds the cosine of the angle between them.
    * Kernels of capsules start as those of `SlimCaps3D`. Theirs start with normal
      values of standard deviation 0.1.
    * For the loss of the capsules, masks are averaged over 8 x 8 x 8 voxels. Theirs are
      interpolated.

    Args:
      input_shape: (depth, height, width, channels) of the volumes. All but the channels
        must be multiples of 8; None allows any multiple. Values must be floating-point
        numbers from 0 to 1. Integers raise a `ValueError`; so do numbers above 10,
        except inside your own `tf.function`.
      num_classes: the number of classes, including the background; two or more.
      size: `"paper"`; or `"small"`, with about 5% of the weights.
      reconstruction_weight: the weight of the reconstruction's squared error, which is
        averaged over the voxels of objects.
      margin_weight: the weight of the margin loss on the lengths of the last capsules,
        with margins of 0.7 and 0.3. Their map has an eighth of the volume's depth,
        height and width.
      name: the model's name.
      dtype: a dtype policy; with `"mixed_float16"`, `compile` enables loss scaling.

    Returns:
      A `UCaps3D`, built but not compiled, from volumes `[B, D, H, W, C]` to
      probabilities `[B, D, H, W, num_classes]`, in float32. `compile()` needs no
      arguments for masks of integers.

    Raises:
      ValueError: if an argument is not as above.

    >>> import tf_capsops
    >>> model = tf_capsops.models.ucaps3d((32, 32, 32, 2), 4)
    >>> model.count_params()
    3367274
    """
    shape, num_classes = checked_sizes(
        "ucaps3d", input_shape, num_classes, UCaps3D.multiple, axes=3, may_be_open=True
    )
    if num_classes == 1:
        raise ValueError("ucaps3d: num_classes must include the background, got 1")
    sizes = sizes_of("ucaps3d", _SIZES, size)
    network = _network(shape, num_classes, sizes, dtype)
    features = network.output["features"].shape[1:]
    decoder = drawing_decoder(features, sizes.decoder_units, shape[-1], 3, dtype)
    return UCaps3D(
        network, decoder, reconstruction_weight, margin_weight, name=name, dtype=dtype
    )


def _convolved(features, filters, kernel_size, name, dtype, activation=None, **window):
    """Convolves, normalizes each feature of a sample, and applies an activation.

    By default the activation is a PReLU.
    """
    features = Conv3D(
        filters,
        kernel_size,
        padding="same",
        use_bias=False,
        data_format="channels_last",
        dtype=dtype,
        name=name,
        **window,
    )(features)
    features = keras.layers.GroupNormalization(
        groups=-1,
        epsilon=1e-5,
        center=False,
        scale=False,
        dtype=dtype,
        name=f"{name}_normalization",
    )(features)
    if activation is None:
        activation = keras.layers.PReLU(
            keras.initializers.Constant(0.25),
            shared_axes=[1, 2, 3, 4],
            dtype=dtype,
            name=f"{name}_prelu",
        )
    else:
        activation = keras.layers.Activation(
            activation, dtype=dtype, name=f"{name}_{activation}"
        )
    return activation(features)


def _network(shape, num_classes, sizes, dtype):
    """Returns a model from volumes to `"scores"`, `"coarse"` and `"features"`."""

    def layer(types, dim, name, strides=1, routing_iterations=3):
        return SlimCaps3D(
            types,
            dim,
            3,
            strides=strides,
            padding="same",
            routing_iterations=routing_iterations,
            bias_initializer=keras.initializers.Constant(0.1),
            dtype=dtype,
            name=name,
        )

    volumes = keras.Input(shape, name="images")
    first, second, third = sizes.features
    features = _convolved(volumes, first, 5, "conv_1", dtype)
    features = _convolved(features, second, 5, "conv_2", dtype, dilation_rate=2)
    features = _convolved(
        features, third, 5, "conv_3", dtype, activation="tanh", dilation_rate=2
    )
    capsules = keras.ops.expand_dims(features, -2)  # Capsules of a single type.
    capsules = layer(*sizes.primary, "primary_caps", routing_iterations=1)(capsules)
    passed = []
    for number, (halved, kept) in enumerate(sizes.down, start=1):
        passed.append(capsules)
        kept = kept if number < _LEVELS else (num_classes, kept)
        capsules = layer(*halved, f"down_{number}", strides=2)(capsules)
        capsules = layer(*kept, f"down_{number}_caps")(capsules)
    # The loss compares lengths with margins, so they must be float32.
    coarse = Length(dtype="float32", name="lengths")(capsules)
    features = _side_by_side(capsules)
    for number, (doubled, *kept) in zip(range(_LEVELS, 0, -1), sizes.up):
        features = keras.layers.Conv3DTranspose(
            doubled,
            2,
            strides=2,
            data_format="channels_last",
            dtype=dtype,
            name=f"up_{number}",
        )(features)
        features = keras.layers.Concatenate(dtype=dtype, name=f"skip_{number}")(
            [features, _side_by_side(passed.pop())]
        )
        for each in kept:
            features = _convolved(features, each, 3, f"up_{number}_conv", dtype)
    scores = probabilities(features, num_classes, axes=3)
    outputs = {"scores": scores, "coarse": coarse, "features": features}
    return keras.Model(volumes, outputs, name="network")


def _side_by_side(capsules):
    # Checkpoints number the operations of a model, and an earlier release had two here,
    # unstack and concatenate. The concatenation keeps the numbers.
    return keras.ops.concatenate([SideBySide()(capsules)], axis=-1)


@keras.saving.register_keras_serializable("tf_capsops")
class SideBySide(keras.Operation):
    """Reshapes capsules `[B, D, H, W, types, dim]` to features, `types * dim` a voxel.

    Unlike with `keras.layers.Reshape`, all sizes but these two may be unknown.
    """

    def call(self, capsules):
        *sizes, types, dim = dimensions(capsules)
        return tf.reshape(capsules, [*sizes, types * dim])

    def compute_output_spec(self, capsules):
        *sizes, types, dim = capsules.shape
        return keras.KerasTensor((*sizes, types * dim), capsules.dtype)


@registered
class UCaps3D(Segmenter):
    """A network that segments volumes and reconstructs them; see `ucaps3d`.

    Call arguments: volumes `[B, D, H, W, C]`. Returns probabilities
    `[B, D, H, W, num_classes]`.

    `fit` and `evaluate` take volumes and masks, in the form that the loss and the
    metrics expect: classes, `[B, D, H, W, 1]` or `[B, D, H, W]`, or one-hot,
    `[B, D, H, W, num_classes]`. The default loss is the cross-entropy of classes.
    Sample weights are `[B]`, or one for each voxel, and apply only to the compiled
    loss. The model adds the losses of its capsules and its decoder. `reconstruct` calls
    the decoder.

    Args:
      network: a functional model from volumes to a dict of `"scores"`; `"coarse"`, the
        lengths of the last capsules; and `"features"`, the decoder's inputs.
      decoder: a functional model from features to volumes.
      reconstruction_weight: the weight of the decoder's loss.
      margin_weight: the weight of the capsules' loss.
      **kwargs: `name` and `dtype`, as for every Keras model.

    >>> import numpy as np
    >>> import tf_capsops
    >>> model = tf_capsops.models.ucaps3d((8, 8, 8, 1), 3, size="small")
    >>> volumes, masks = np.zeros([1, 8, 8, 8, 1], "float32"), np.ones([1, 8, 8, 8, 1])
    >>> model.compile()
    >>> history = model.fit(volumes, masks, verbose=0)
    >>> model.predict(volumes, verbose=0).shape
    (1, 8, 8, 8, 3)
    """

    owner = "ucaps3d"
    default_loss = keras.losses.SparseCategoricalCrossentropy

    def __init__(
        self, network, decoder, reconstruction_weight=0.1, margin_weight=0.1, **kwargs
    ):
        self.reconstruction_weight = not_negative(
            self.owner, "reconstruction_weight", reconstruction_weight
        )
        self.margin_weight = not_negative(self.owner, "margin_weight", margin_weight)
        self._margin_loss = MarginLoss(0.7, 0.3)
        super().__init__(network, decoder, **kwargs)

    def own_loss(self, images, one_hot, outputs, training=None):
        shares = tf.nn.avg_pool3d(one_hot, 2**_LEVELS, 2**_LEVELS, "VALID")
        # The authors' code also takes half of the margin loss.
        margin = 0.5 * self._margin_loss(shares, outputs["coarse"])
        drawn, shown = self.drawn(outputs, one_hot, training), foreground(one_hot)
        squares = tf.reduce_sum(tf.square(drawn - images) * shown, axis=[1, 2, 3, 4])
        mean = tf.math.divide_no_nan(squares, tf.reduce_sum(shown, axis=[1, 2, 3, 4]))
        reconstruction = tf.reduce_mean(mean)
        return self.margin_weight * margin + self.reconstruction_weight * reconstruction

    def drawn(self, outputs, one_hot, training=None):
        return self._decoded(outputs["features"], training)

    def get_config(self):
        return {
            **super().get_config(),
            "reconstruction_weight": self.reconstruction_weight,
            "margin_weight": self.margin_weight,
        }
