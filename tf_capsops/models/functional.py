# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Functional models that take images."""

import keras

from tf_capsops.arguments import scaled_images
from tf_capsops.models.images import ImageModel


class FunctionalModel(ImageModel, keras.Model):
    """A functional model that rejects unscaled images, and saves its dtype policy.

    Because the policy is the model's own, Keras scales the loss with mixed_float16.
    """

    def __init__(self, inputs, outputs, name=None, *, dtype=None, **kwargs):
        super().__init__(inputs, outputs, name=name, **kwargs)
        if dtype is None:  # `keras.models.clone_model` does not pass on the dtype.
            policies = [layer.dtype_policy for layer in self.layers[1:]]
            dtype = next((p for p in policies if p.quantization_mode is None), None)
        self.dtype_policy = keras.dtype_policies.get(dtype)

    def call(self, inputs, training=None, mask=None):
        images = scaled_images(self.name, self.images_of(inputs))
        return super().call(images, training=training, mask=mask)

    def get_config(self):
        dtype = keras.dtype_policies.serialize(self.dtype_policy)
        return {**super().get_config(), "dtype": dtype}
