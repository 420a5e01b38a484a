# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Unrolled executions train as Keras' own loop over steps does."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_capsops.models import CapsNet
from tf_capsops.models.unrolled import Unrolled

SAMPLES, BATCH = 22, 4  # the last of 6 batches is smaller
IMAGES = np.random.default_rng(1).random((SAMPLES, 8, 8, 1), np.float32)
LABELS = np.arange(SAMPLES) % 3


@keras.saving.register_keras_serializable("tests")
class KerasLoop(CapsNet):
    make_train_function = keras.Model.make_train_function


def compiled(model_class, steps, **compiling):
    keras.utils.set_random_seed(1)
    model = model_class(
        (8, 8, 1),
        3,
        filters=4,
        kernel_size=3,
        primary_channels=2,
        primary_kernel_size=3,
        decoder_units=(8,),
    )
    model.compile("adam", steps_per_execution=steps, **compiling)
    return model


def history(model, **fitting):
    fitting = {"batch_size": BATCH, "epochs": 2, "shuffle": False, **fitting}
    return model.fit(IMAGES, LABELS, verbose=0, **fitting).history


@pytest.mark.parametrize(  # six batches are two executions, two with a rest, or one
    "steps, jit_compile",
    [(3, False), (4, False), pytest.param(4, True, marks=pytest.mark.slow), (8, False)],
)
def test_same_history(device, steps, jit_compile):
    expected = history(compiled(KerasLoop, steps, jit_compile=jit_compile))
    model = compiled(CapsNet, steps, jit_compile=jit_compile)
    assert isinstance(model, Unrolled)
    assert history(model) == expected
    assert history(model, initial_epoch=1) != expected  # it did train


def test_weights_of_samples_and_validation(device):
    fitting = {
        "sample_weight": np.linspace(0, 1, SAMPLES),
        "validation_data": (IMAGES, LABELS),
    }
    expected = history(compiled(KerasLoop, 4), **fitting)
    assert history(compiled(CapsNet, 4), **fitting) == expected


def test_nothing_for_weights_of_samples(device):
    def fit(model):
        batches = ((IMAGES[i:][:BATCH], LABELS[i:][:BATCH], None) for i in range(3))
        return model.fit(batches, verbose=0).history

    assert fit(compiled(CapsNet, 2)) == fit(compiled(KerasLoop, 2))


def test_one_replica_trains_as_with_keras(device):
    data = tf.data.Dataset.from_tensor_slices((IMAGES, LABELS)).batch(BATCH)
    batches = data.filter(lambda *_: True)  # of unknown number
    with tf.distribute.OneDeviceStrategy(device).scope():
        models = compiled(KerasLoop, 4), compiled(CapsNet, 4)
    expected, result = (model.fit(batches, epochs=2, verbose=0) for model in models)
    assert result.history == expected.history


def test_batches_one_at_a_time(device):
    models = compiled(KerasLoop, 4), compiled(CapsNet, 4)
    once, again = (model.train_on_batch(IMAGES, LABELS) for model in models)
    assert once == again
    for model in models:
        model.run_eagerly = True
    assert history(models[0]) == history(models[1])
