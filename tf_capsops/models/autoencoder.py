# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Models that encode images to one capsule per class, and decode images from them."""

import abc

import keras
import tensorflow as tf

from tf_capsops.arguments import image_range, not_negative, scaled_images
from tf_capsops.losses import MarginLoss, ReconstructionLoss, one_hot_labels
from tf_capsops.models import targets
from tf_capsops.models.images import ImageModel, images_and
from tf_capsops.models.outputs import (
    metrics_by_output,
    one_by_output,
    with_integers,
)
from tf_capsops.models.parts import parts_config, saved_parts


class Autoencoder(targets.Reconstructing, keras.Model):
    """Base class of `CapsNet` and `DeepCaps`; `CapsNet` documents inputs and outputs.

    Args:
      arguments: the arguments of the subclass by name, for `get_config`. Among them are
        `"input_shape"`, `"num_classes"` and `"reconstruction_weight"`.
      layers: the result of `parts_config`, from a file; None for new parts, as in older
        files.
      **kwargs: `name` and `dtype`, as for every Keras model.
    """

    inference = None  # The class of the model that `inference_model` returns.

    def __init__(self, arguments, layers=None, **kwargs):
        super().__init__(**kwargs)
        not_negative(
            self.owner, "reconstruction_weight", arguments["reconstruction_weight"]
        )
        self._arguments = arguments
        self.objects = arguments.get("objects", 1)
        if layers:
            layers = saved_parts(layers, arguments, self.dtype_policy)
        layers = layers or self.new_parts()
        self.encoder, self.decoder = layers["encoder"], layers["decoder"]
        self.length, self.mask = layers["length"], layers["mask"]
        # This call creates the weights, and tells Keras what to export.
        self(keras.KerasTensor((None, *self.image_shape)))

    @abc.abstractmethod
    def new_parts(self):
        """Returns the parts by name: `"encoder"`, `"decoder"`, `"length"`, `"mask"`."""

    @property
    def num_classes(self):
        return self._arguments["num_classes"]

    @property
    def image_shape(self):
        return self._arguments["input_shape"]

    def call(self, inputs, training=None):
        images, labels = images_and(self.owner, "labels", inputs)
        capsules = self.encoder(self._checked(images), training=training)
        lengths = self.length(capsules)
        shown = None if labels is None else one_hot_labels(labels, lengths)
        if self.objects > 1:
            scores = lengths if shown is None else shown
            reconstruction = self._decode_each(capsules, scores, training)
        else:
            reconstruction = self.decode(capsules, shown, training=training)
        return {"lengths": lengths, "reconstruction": reconstruction}

    def _decode_each(self, capsules, scores, training):
        """Returns an image for each of the highest-scoring classes, in class order."""
        # If scores are equal, as labels are, top_k prefers the lower classes.
        chosen = tf.sort(tf.math.top_k(scores, self.objects).indices, axis=-1)
        one_hot = tf.one_hot(tf.reshape(chosen, [-1]), self.num_classes)
        each = tf.repeat(capsules, self.objects, axis=0)
        images = self.decode(each, one_hot, training=training)
        return tf.reshape(images, [-1, self.objects, *self.image_shape])

    def encode(self, images):
        """Returns capsules `[B, num_classes, capsule_dim]` of images `[B, H, W, C]`.

        Raises:
          ValueError: if the images have another shape or are not scaled.
        """
        return self.encoder(self._checked(image_range(self.owner, images)))

    def _checked(self, images):
        return scaled_images(self.owner, images, self.image_shape)

    def decode(self, capsules, one_hot=None, training=None):
        """Returns the images `[B, H, W, C]` that the decoder draws from capsules.

        Args:
          capsules: `[B, num_classes, capsule_dim]`.
          one_hot: the capsule to decode, `[B, num_classes]`; None for the longest.
          training: as for every Keras layer.
        """
        masked = self.mask(capsules if one_hot is None else [capsules, one_hot])
        return self.decoder(masked, training=training)

    def inference_model(self):
        """Returns a functional model of the same layers, with the same weights.

        It maps images `[B, H, W, C]`, which must not be integers, to the dict that
        `call` returns without labels.

        Raises:
          ValueError: if the model has several `objects`.
        """
        if self.objects > 1:
            raise ValueError(
                f"{self.owner}: a functional model decodes one capsule, and this model "
                f"decodes {self.objects}"
            )
        images = keras.Input(self.image_shape, name="images")
        capsules = self.encoder(images)
        outputs = {
            "lengths": self.length(capsules),
            "reconstruction": self.decoder(self.mask(capsules)),
        }
        return self.inference(images, outputs, name=self.name)

    def compile(
        self,
        optimizer="adam",
        loss=None,
        metrics=("accuracy",),
        loss_weights=None,
        weighted_metrics=None,
        **kwargs,
    ):
        """Compiles the model.

        Args:
          optimizer: as for every Keras model.
          loss: the loss on the lengths, or a dict of losses for `"lengths"` and
            `"reconstruction"`; by default `MarginLoss()` and `ReconstructionLoss()`.
          metrics: a metric of the lengths or a list of metrics, or a dict of these for
            `"lengths"` and `"reconstruction"`. With several `objects`, "accuracy" means
            `tf_capsops.metrics.ExactMatch`. Losses and metrics of the lengths get
            one-hot labels, or integers if their names begin with "sparse".
          loss_weights: the weight of the loss on the lengths, or a dict of `"lengths"`
            and `"reconstruction"`; by default 1 and the model's
            `reconstruction_weight`.
          weighted_metrics: as `metrics`, weighted by `sample_weight`.
          **kwargs: passed on to `keras.Model.compile`.

        Raises:
          ValueError: if a loss, metric or weight is not as above.
        """
        losses = {"lengths": MarginLoss(), "reconstruction": ReconstructionLoss()}
        weight = self._arguments["reconstruction_weight"]
        weights = {"lengths": 1.0, "reconstruction": weight}
        if isinstance(loss_weights, (list, tuple)) and len(loss_weights) == 2:
            loss_weights = dict(zip(weights, loss_weights))  # Keras takes a list, too.
        arguments = {
            "optimizer": keras.optimizers.get(optimizer),
            "loss": one_by_output(self.owner, "loss", loss, losses),
            "loss_weights": one_by_output(
                self.owner, "loss_weights", loss_weights, weights
            ),
            "metrics": metrics_by_output(self.owner, "metrics", metrics, self.objects),
            "weighted_metrics": metrics_by_output(
                self.owner, "weighted_metrics", weighted_metrics, self.objects
            ),
            **kwargs,
        }
        self._compile_arguments = keras.saving.serialize_keras_object(arguments)
        super().compile(**with_integers(self.owner, arguments, self.objects))

    def get_config(self):
        layers = {"layers": parts_config(self, self._arguments)}
        return {**super().get_config(), **self._arguments, **layers}

    def get_compile_config(self):
        return self._compile_arguments if self.compiled else None


class Inference(ImageModel, keras.Model):
    """The functional model of `inference_model`, which rejects unscaled images."""

    def call(self, inputs, training=None, mask=None):
        images = self.images_of(inputs)
        scaled_images(self.owner, images, self.input_shape[1:])
        return super().call(images, training=training, mask=mask)

    def inference_model(self):
        """Returns the model itself, which is functional already."""
        return self
