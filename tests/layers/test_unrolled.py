# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Unrolled executions train as Keras' own loop over steps does."""

import os

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_capsops.models import CapsNet
from tf_capsops.models.unrolled import Unrolled

SAMPLES, BATCH = 22, 4  # the last of 6 batches is smaller
IMAGES = np.random.default_rng(1).random((SAMPLES, 8, 8, 1), np.float32)
LABELS = np.arange(SAMPLES) % 3

_GPU = tf.config.PhysicalDevice("/physical_device:GPU:0", "GPU")


class Dense(Unrolled, keras.Sequential):
    pass


class Looped:
    """Has Keras' own loop."""

    make_train_function = keras.Model.make_train_function


class LoopedDense(Looped, Dense):
    pass


class LoopedCapsNet(Looped, CapsNet):
    pass


def compiled(model_class, steps, jit_compile=False):
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Flatten(), keras.layers.Dense(3, activation="softmax")]
    model = model_class([keras.Input((8, 8, 1)), *layers])
    loss = "sparse_categorical_crossentropy"
    model.compile("adam", loss, steps_per_execution=steps, jit_compile=jit_compile)
    return model


def network(model_class, jit_compile):
    keras.utils.set_random_seed(1)
    model = model_class(
        (8, 8, 1),
        3,
        filters=2,
        kernel_size=3,
        primary_channels=2,
        primary_dim=2,
        primary_kernel_size=3,
        capsule_dim=2,
        decoder_units=(),
    )
    model.compile("sgd", steps_per_execution=4, jit_compile=jit_compile)
    return model


def history(model, **fitting):
    fitting = {"batch_size": BATCH, "epochs": 2, "shuffle": False, **fitting}
    return model.fit(IMAGES, LABELS, verbose=0, **fitting).history


@pytest.mark.parametrize(
    "jit_compile", [False, pytest.param(True, marks=pytest.mark.slow)]
)
def test_same_history_of_capsules(device, jit_compile):
    model = network(CapsNet, jit_compile)
    assert isinstance(model, Unrolled)
    assert history(model) == history(network(LoopedCapsNet, jit_compile))


@pytest.mark.parametrize("steps", [3, 4, 8])
def test_same_history(device, steps):
    """Six batches are two executions, two with a rest, or one."""
    expected = history(compiled(LoopedDense, steps))
    model = compiled(Dense, steps)
    assert history(model) == expected
    assert history(model, initial_epoch=1) != expected  # it did train


def test_weights_of_samples_and_validation(device):
    fitting = {
        "sample_weight": np.linspace(0, 1, SAMPLES),
        "validation_data": (IMAGES, LABELS),
    }
    expected = history(compiled(LoopedDense, 4), **fitting)
    assert history(compiled(Dense, 4), **fitting) == expected


def test_nothing_for_weights_of_samples(device):
    def fit(model):
        batches = ((IMAGES[i:][:BATCH], LABELS[i:][:BATCH], None) for i in range(3))
        return model.fit(batches, verbose=0).history

    assert fit(compiled(Dense, 2)) == fit(compiled(LoopedDense, 2))


def test_one_replica_trains_as_with_keras(device):
    data = tf.data.Dataset.from_tensor_slices((IMAGES, LABELS)).batch(BATCH)
    batches = data.filter(lambda *_: True)  # of unknown number
    with tf.distribute.OneDeviceStrategy(device).scope():
        models = [compiled(each, 4, jit_compile=True) for each in (LoopedDense, Dense)]
    expected, result = (model.fit(batches, epochs=2, verbose=0) for model in models)
    assert result.history == expected.history


def test_batches_one_at_a_time(device):
    models = compiled(LoopedDense, 4), compiled(Dense, 4)
    once, again = (model.train_on_batch(IMAGES, LABELS) for model in models)
    assert once == again
    for model in models:
        model.run_eagerly = True
    assert history(models[0]) == history(models[1])


def test_a_step_is_not_traced_where_functions_run_eagerly(eagerly):
    """So a debugger stops in a step of one's own, and short trainings start at once."""
    traced = []

    class Own(Dense):
        def train_step(self, data):
            traced.append(tf.inside_function())
            return super().train_step(data)

    compiled(Own, 2).fit(IMAGES, LABELS, BATCH, verbose=0)
    assert traced == [False] * 6


@pytest.mark.parametrize("mine", ["", "--xla_gpu_enable_triton_gemm=true"])
@pytest.mark.parametrize("gpus", [[], [_GPU]])
def test_on_gpus_xla_does_not_tune_products_unless_asked(mine, gpus, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", f"--xla_dump_to=here {mine}")
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: gpus)
    for _ in range(2):
        compiled(Dense, 1, "auto")
    flags = sorted(os.environ["XLA_FLAGS"].split())
    ours = ["--xla_gpu_enable_triton_gemm=false"] if gpus else []
    assert flags == ["--xla_dump_to=here", *([mine] if mine else ours)]


def test_a_file_of_flags_of_xla_stays(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "flags.txt")
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: [_GPU])
    compiled(Dense, 1, "auto")
    assert os.environ["XLA_FLAGS"] == "flags.txt"
