# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The sub-models and layers of a `CapsNet`, and how an `Autoencoder` saves its own."""

import json
import math

import keras

from tf_capsops.layers import Conv2D, DigitCaps, Length, Mask, PrimaryCaps
from tf_capsops.models.sequential import Sequential


def new_parts(arguments, dtype):
    """Returns the sub-models and layers of a `CapsNet` by name.

    Args:
      arguments: the arguments of `CapsNet`, by name.
      dtype: the model's dtype policy.
    """
    return {
        "encoder": _encoder(arguments, dtype),
        "decoder": _decoder(arguments, dtype),
        "length": Length(dtype="float32", name="length"),
        "mask": Mask(dtype=dtype, name="mask"),
    }


def saved_parts(config, arguments, dtype):
    """Returns the parts of an `Autoencoder` by name, from the result of `parts_config`.

    Returns None if the parts belong to other arguments, because somebody has changed
    the model's config.
    """
    config = dict(config)
    if config.pop("made_of") != _made_of(arguments, dtype):
        return None
    return {
        name: keras.saving.deserialize_keras_object(part)
        for name, part in config.items()
    }


def parts_config(model, arguments):
    """Returns the configs of an `Autoencoder`'s parts by name, and their arguments.

    They hold the state that the model's arguments do not: which layers are trainable,
    the dtype policies of single layers, and quantization.
    """
    names = ("encoder", "decoder", "length", "mask")
    parts = {name: getattr(model, name) for name in names}
    return {"made_of": _made_of(arguments, model.dtype_policy), **_as_in_file(parts)}


def _made_of(arguments, dtype):
    others = ("reconstruction_weight", "objects")
    used = {name: each for name, each in arguments.items() if name not in others}
    return _as_in_file({**used, "dtype": dtype})


def _as_in_file(values):
    """Returns a config with lists in place of tuples, to compare with one in a file."""
    return json.loads(json.dumps(keras.saving.serialize_keras_object(values)))


def _encoder(arguments, dtype):
    last = {"data_format": "channels_last", "dtype": dtype}
    return Sequential(
        [
            keras.Input(arguments["input_shape"], name="images"),
            Conv2D(
                arguments["filters"],
                arguments["kernel_size"],
                activation="relu",
                name="conv",
                **last,
            ),
            PrimaryCaps(
                arguments["primary_channels"],
                arguments["primary_dim"],
                arguments["primary_kernel_size"],
                strides=arguments["primary_strides"],
                name="primary_caps",
                **last,
            ),
            DigitCaps(
                arguments["num_classes"],
                arguments["capsule_dim"],
                routing_iterations=arguments["routing_iterations"],
                dtype=dtype,
                name="digit_caps",
            ),
        ],
        name="encoder",
    )


def _decoder(arguments, dtype):
    image_shape = arguments["input_shape"]
    size = arguments["num_classes"] * arguments["capsule_dim"]
    return Sequential(
        [keras.Input([size], name="masked_capsules")]
        + [
            keras.layers.Dense(units, activation="relu", dtype=dtype)
            for units in arguments["decoder_units"]
        ]
        + [
            # The loss is summed over a whole image, so the image must be float32.
            keras.layers.Dense(
                math.prod(image_shape), activation="sigmoid", dtype="float32"
            ),
            keras.layers.Reshape(image_shape, dtype="float32"),
        ],
        name="decoder",
    )
