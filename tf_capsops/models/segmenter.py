# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Networks for segmentation that also learn to draw what they have found."""

import abc

import keras
import tensorflow as tf

from tf_capsops.arguments import scaled_images
from tf_capsops.losses import one_hot_labels
from tf_capsops.models.images import ImageModel, images_and

_PARTS = "network", "decoder"


class Segmenter(ImageModel, keras.Model):
    """The base of `SegCaps` and `UCaps3D`, which adds their own losses to the user's.

    Keras trains models whose targets come with the data. Here the masks are an input as
    well, from which the model computes its own losses. To Keras it has one output, the
    scores, and everything else about training is Keras' own.

    Args:
      network: a functional model from images to a dict of `"scores"` and what the
        subclass needs.
      decoder: a functional model that draws images.
      **kwargs: `name` and `dtype`, as for every Keras model.
    """

    default_loss = None  # the class of the loss that `compile` uses by default

    def __init__(self, network, decoder, **kwargs):
        # Images are targets, too, and keep their precision.
        super().__init__(autocast=False, **kwargs)
        self.network, self.decoder = network, decoder
        # Makes the state, and tells Keras what to export.
        self(keras.KerasTensor((None, *self.image_shape)))

    @property
    def image_shape(self):
        """The shape of an image or volume, with None for sizes that are open."""
        return tuple(self.network.input.shape[1:])

    @property
    def input_shape(self):
        return (None, *self.image_shape)

    @property
    def output_shape(self):
        return tuple(self.network.output["scores"].shape)

    @property
    def num_classes(self):
        return self.network.output["scores"].shape[-1]

    def images_of(self, inputs):
        return images_and(self.owner, "masks", inputs)[0]

    def check_targets(self, x, y):
        if y is None and images_and(self.owner, "masks", x)[1] is None:
            raise ValueError(
                f"{self.owner}: fit and evaluate need masks beside the images"
            )

    def call(self, inputs, training=None):
        images, masks = images_and(self.owner, "masks", inputs)
        images = scaled_images(self.owner, images, self.image_shape)
        outputs = self.network(images, training=training)
        if masks is not None:
            one_hot = one_hot_labels(masks, outputs["scores"])
            images = tf.cast(images, "float32")
            self.add_loss(self.own_loss(images, one_hot, outputs, training))
        return outputs["scores"]

    @abc.abstractmethod
    def own_loss(self, images, one_hot, outputs, training=None):
        """Returns the mean over the batch of what is added to the user's loss.

        Args:
          images: `[B, ..., C]`, float32.
          one_hot: their masks, `[B, ..., num_classes]`.
          outputs: those of `network`.
          training: as for every Keras layer.
        """

    @abc.abstractmethod
    def drawn(self, outputs, one_hot, training=None):
        """Returns the images `[B, ..., C]` that the decoder draws of some outputs."""

    def reconstruct(self, images, masks=None):
        """Returns what the decoder draws, `[B, ..., C]`.

        Args:
          images: `[B, ..., C]`.
          masks: which class each pixel has, as in training; None for the classes that
            the model finds.
        """
        outputs = self.network(scaled_images(self.owner, images, self.image_shape))
        scores = outputs["scores"]
        if masks is not None:
            one_hot = one_hot_labels(masks, scores)
        elif self.num_classes == 1:
            one_hot = tf.cast(scores >= 0.5, scores.dtype)
        else:
            found = tf.argmax(scores, axis=-1)
            one_hot = tf.one_hot(found, self.num_classes, dtype=scores.dtype)
        return self.drawn(outputs, one_hot)

    def train_step(self, data):
        return super().train_step(self._masks_as_input(data))

    def test_step(self, data):
        return super().test_step(self._masks_as_input(data))

    def _masks_as_input(self, data):
        """Returns Keras' (x, y, sample_weight) of a batch, with the masks in x too."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        images, masks = images_and(self.owner, "masks", x)
        y = masks if y is None else y
        masks = y if masks is None else masks
        if sample_weight is not None:
            # Losses have one number for each pixel.
            while len(sample_weight.shape) < len(images.shape) - 1:
                sample_weight = sample_weight[..., tf.newaxis]
        return {"images": images, "masks": masks}, y, sample_weight

    def compile(self, optimizer="adam", loss=None, *args, **kwargs):
        """Compiles the model.

        Args:
          optimizer: as for every Keras model.
          loss: of masks and scores, as for every Keras model; None for the model's
            default.
          *args, **kwargs: passed on to `keras.Model.compile`.
        """
        loss = self.default_loss() if loss is None else loss
        super().compile(optimizer, loss, *args, **kwargs)

    def compile_from_config(self, config):
        # Keras leaves this to models with a `compile` of their own.
        self.compile(**keras.saving.deserialize_keras_object(config))
        self.optimizer.build(self.trainable_variables)

    def get_config(self):
        parts = {name: getattr(self, name) for name in _PARTS}
        return {**super().get_config(), **keras.saving.serialize_keras_object(parts)}

    @classmethod
    def from_config(cls, config):
        parts = {
            name: keras.saving.deserialize_keras_object(config[name]) for name in _PARTS
        }
        return cls(**{**config, **parts})


def foreground(one_hot):
    """Returns where there is an object, `[B, ..., 1]`, of masks `[B, ..., classes]`.

    With several classes, the first one is the background.
    """
    if one_hot.shape[-1] == 1:
        return one_hot
    return 1.0 - one_hot[..., :1]


def drawing_decoder(features, units, channels, axes, dtype):
    """Returns a model that draws images by convolutions of 1 pixel.

    Args:
      features: the shape of a sample that it draws from, `(..., features)`.
      units: features of the convolutions before the last, with relu.
      channels: of the images, which are from 0 to 1.
      axes: 2 for images, 3 for volumes.
      dtype: a dtype policy.
    """
    kind = {2: keras.layers.Conv2D, 3: keras.layers.Conv3D}[axes]
    last = {"kernel_initializer": "he_normal", "data_format": "channels_last"}
    inputs = drawn = keras.Input(features, name="features")
    for number, size in enumerate(units, start=1):
        drawn = kind(
            size, 1, activation="relu", dtype=dtype, name=f"draw_{number}", **last
        )(drawn)
    # Losses are summed over a whole image: keep them out of half precision.
    drawn = kind(
        channels, 1, activation="sigmoid", dtype="float32", name="drawn", **last
    )(drawn)
    return keras.Model(inputs, drawn, name="decoder")
