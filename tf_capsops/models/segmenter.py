# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Networks that segment images, and also learn to draw what they have found."""

import abc

import keras
import tensorflow as tf

from tf_capsops.arguments import image_range, scaled_images
from tf_capsops.layers import Conv2D, Conv3D
from tf_capsops.losses import one_hot_labels
from tf_capsops.metrics import classes_read
from tf_capsops.models import bands
from tf_capsops.models.images import images_and
from tf_capsops.models.mask_targets import MaskModel, with_axis
from tf_capsops.models.sizes import with_multiples

_PARTS = "network", "decoder"


class Segmenter(MaskModel, keras.Model):
    """Base class of `SegCaps` and `UCaps3D`, which adds their own losses to the user's.

    The model needs the masks to compute its own losses, so it adds them to the inputs.
    For Keras it has one output, the scores. Training is otherwise that of Keras.

    Args:
      network: a functional model from images to a dict of `"scores"` and whatever else
        the subclass needs.
      decoder: a functional model that draws images.
      **kwargs: `name` and `dtype`, as for every Keras model.
    """

    default_loss = None  # The class of the loss that `compile` uses by default.
    multiple = 8  # The sizes of an image must be multiples of this.

    def __init__(self, network, decoder, **kwargs):
        # Images are also targets, so Keras must not cast them to half precision.
        super().__init__(autocast=False, **kwargs)
        self.network, self.decoder = network, decoder
        # This call builds the model, and tells Keras what to export.
        self(keras.KerasTensor((None, *self.image_shape)))

    @property
    def image_shape(self):
        """The shape of an image or volume, with None for sizes that may vary."""
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

    def images_and_masks(self, inputs):
        return images_and(self.owner, "masks", inputs)

    def check_targets(self, x, y):
        super().check_targets(x, y)
        if self.reconstruction_weight > 0:
            self.check_drawn(self.images_of(x))

    def call(self, inputs, training=None):
        images, masks = self.images_and_masks(inputs)
        images = self._checked(images)
        outputs = self.network(images, training=training)
        if masks is not None:
            one_hot = _one_hot(masks, outputs["scores"])
            images = tf.cast(images, "float32")
            self.add_loss(self.own_loss(images, one_hot, outputs, training))
        return outputs["scores"]

    def _checked(self, images):
        images = scaled_images(self.owner, images, self.image_shape)
        return with_multiples(self.owner, images, self.image_shape, self.multiple)

    @abc.abstractmethod
    def own_loss(self, images, one_hot, outputs, training=None):
        """Returns the loss that the model adds to the user's, as a mean over the batch.

        Args:
          images: `[B, ..., C]`, float32.
          one_hot: the masks of the images, `[B, ..., num_classes]`.
          outputs: the outputs of `network`.
          training: as for every Keras layer.
        """

    @abc.abstractmethod
    def drawn(self, outputs, one_hot, training=None):
        """Returns the images `[B, ..., C]` that the decoder draws from outputs."""

    def _decoded(self, features, training=None):
        """Calls the decoder; in training, on large images, in bands of rows."""
        number = bands.count(self.decoder, features) if training else 1
        if number > 1:
            return bands.train(self.decoder, features, number)
        return self.decoder(features, training=training)

    def reconstruct(self, images, masks=None):
        """Returns the images that the decoder draws, `[B, ..., C]`.

        Args:
          images: `[B, ..., C]`.
          masks: the class of each pixel, as in training; None for the classes that the
            model predicts.
        """
        outputs = self.network(self._checked(image_range(self.owner, images)))
        scores = outputs["scores"]
        masks = classes_read(scores) if masks is None else masks
        return self.drawn(outputs, _one_hot(masks, scores))

    def prepared(self, data):
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        images, masks = self.images_and_masks(x)
        y = masks if y is None else y
        masks = y if masks is None else masks
        data = {"images": images, "masks": masks}, y, sample_weight
        return super().prepared(data)

    def compile(self, optimizer="adam", loss=None, *args, **kwargs):
        """Compiles the model.

        Args:
          optimizer: as for every Keras model.
          loss: a loss of masks and scores, as for every Keras model; None for the
            model's default.
          *args, **kwargs: passed on to `keras.Model.compile`.
        """
        loss = self.default_loss() if loss is None else loss
        super().compile(optimizer, loss, *args, **kwargs)

    def get_config(self):
        parts = {name: getattr(self, name) for name in _PARTS}
        return {**super().get_config(), **keras.saving.serialize_keras_object(parts)}

    @classmethod
    def from_config(cls, config):
        parts = {
            name: keras.saving.deserialize_keras_object(config[name]) for name in _PARTS
        }
        return cls(**{**config, **parts})


def _one_hot(masks, scores):
    return one_hot_labels(with_axis(tf.convert_to_tensor(masks), scores), scores)


def foreground(one_hot):
    """Returns `[B, ..., 1]`: 1 for pixels of an object, and 0 for the background.

    The masks are `[B, ..., classes]`. With several classes, class 0 is the background.
    """
    if one_hot.shape[-1] == 1:
        return one_hot
    return 1.0 - one_hot[..., :1]


def drawing_decoder(features, units, channels, axes, dtype):
    """Returns a model that draws images with convolutions of 1 pixel.

    Args:
      features: the shape of an input without the batch, `(..., features)`.
      units: features of the convolutions before the last, which have a relu.
      channels: channels of the drawn images, whose values are from 0 to 1.
      axes: 2 for images, 3 for volumes.
      dtype: a dtype policy.
    """
    kind = {2: Conv2D, 3: Conv3D}[axes]
    last = {"kernel_initializer": "he_normal", "data_format": "channels_last"}
    inputs = drawn = keras.Input(features, name="features")
    for number, size in enumerate(units, start=1):
        drawn = kind(
            size, 1, activation="relu", dtype=dtype, name=f"draw_{number}", **last
        )(drawn)
    # The loss is summed over a whole image, so the drawn image must be float32.
    drawn = kind(
        channels, 1, activation="sigmoid", dtype="float32", name="drawn", **last
    )(drawn)
    return keras.Model(inputs, drawn, name="decoder")
