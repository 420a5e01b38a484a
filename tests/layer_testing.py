# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""What every Keras layer must do, checked through Keras' public interface."""

import json
import unittest

import keras
import numpy as np

# Arguments of a layer with a sliding window, and what it says of them.
BAD_WINDOWS = [
    ({"kernel_size": (3, 3, 3)}, "kernel_size must be one or two integers, got"),
    ({"strides": -1}, "strides must be an integer >= 1, got -1"),
    ({"padding": "full"}, "padding must be 'valid' or 'same', got 'full'"),
    ({"dilation_rate": 0}, "dilation_rate must be an integer >= 1, got 0"),
]


class TestCase(unittest.TestCase):
    """A test case of a layer, with the checks that all layers share."""

    def run_class_serialization_test(self, instance):
        """Makes an object again from its config, alone and with its class and JSON."""
        config = instance.get_config()
        from_config = type(instance).from_config(config)
        serialized = json.loads(
            json.dumps(keras.saving.serialize_keras_object(instance))
        )
        for revived in (from_config, keras.saving.deserialize_keras_object(serialized)):
            self.assertIs(type(revived), type(instance))
            self.assertEqual(json.dumps(revived.get_config()), json.dumps(config))
            self.assertEqual(set(dir(revived)), set(dir(instance)))

    def run_layer_test(
        self,
        layer_class,
        arguments,
        input_shape,
        expected_output_shape,
        expected_num_trainable_weights=0,
        expected_num_non_trainable_weights=0,
        expected_num_losses=0,
    ):
        """Checks config, build, shapes, losses, a training step and mixed precision.

        `input_shape` is a tuple, or a list of them for several inputs.
        """
        numbers = (expected_num_trainable_weights, expected_num_non_trainable_weights)
        random = np.random.default_rng(1)
        inputs = _each(
            input_shape,
            lambda shape: keras.ops.convert_to_tensor(random.random(shape, np.float32)),
        )
        self.run_class_serialization_test(layer_class(**arguments))

        layer = layer_class(**arguments)
        layer.build(input_shape)
        self.assertTrue(layer.built)
        self.assertEqual(_numbers_of_weights(layer), numbers)

        layer = layer_class(**arguments)
        symbolic = layer(_each(input_shape, keras.KerasTensor))
        self.assertEqual(symbolic.shape, expected_output_shape)
        self.assertEqual(_numbers_of_weights(layer), numbers)

        layer = layer_class(**arguments)
        outputs = layer(inputs)
        self.assertEqual(tuple(outputs.shape), expected_output_shape)
        self.assertEqual(keras.backend.standardize_dtype(outputs.dtype), symbolic.dtype)
        self.assertEqual(len(layer.losses), expected_num_losses)

        model = ModelOfOneLayer(layer)
        model.compile("sgd", loss=lambda _, outputs: keras.ops.sum(outputs))
        history = model.fit(inputs, outputs, batch_size=len(outputs), verbose=0)
        self.assertTrue(np.all(np.isfinite(history.history["loss"])))

        layer = layer_class(**{**arguments, "dtype": "mixed_float16"})
        self.assertEqual(layer(inputs).dtype, "float16")
        half = _each(input_shape, lambda shape: keras.KerasTensor(shape, "float16"))
        self.assertEqual(layer.compute_output_spec(half).dtype, "float16")
        for weight in layer.weights:
            if keras.backend.is_float_dtype(weight.dtype):
                self.assertEqual(weight.dtype, "float32")


class ModelOfOneLayer(keras.Model):
    """A model of one layer, whose input may be a list."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def call(self, inputs):
        return self.layer(inputs)


def _each(shape, make):
    """Calls a function for a shape, or for each of a list."""
    return [make(each) for each in shape] if isinstance(shape, list) else make(shape)


def _numbers_of_weights(layer):
    return len(layer.trainable_weights), len(layer.non_trainable_weights)
