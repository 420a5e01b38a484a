# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""A `keras.Sequential` that saves all of its state, for our models."""

import keras

from tf_capsops.registered import registered


@registered
class Sequential(keras.Sequential):
    """A `keras.Sequential` whose file keeps its own `trainable` and dtype policy.

    Keras writes both into the config of a `Sequential`, but reads neither.

    >>> import keras
    >>> import tf_capsops
    >>> model = tf_capsops.models.sequential.Sequential(
    ...     [keras.Input([4]), keras.layers.Dense(3)], trainable=False)
    >>> type(model).from_config(model.get_config()).trainable
    False
    """

    @classmethod
    def from_config(cls, config, custom_objects=None):
        model = super().from_config(config, custom_objects)
        if not config.get("trainable", True):
            # Setting `trainable` on a model with layers would also set it on these.
            layers = [model.inputs[0], *model.layers]
            model = cls(layers, trainable=False, name=model.name)
        if "dtype" in config:
            model.dtype_policy = keras.dtype_policies.get(config["dtype"])
        return model
