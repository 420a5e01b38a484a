# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Models take every form of data on two replicas, and train as one device does."""

import fcntl
import json
import os

import fresh
import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_capsops.models import Unrolled

_FORMS = [
    "XLA",
    "XLA, even shares",
    "arrays",
    "half",
    "late logs",
    "masks",
    "metrics",
    "own logs",
    "data set",
    "data set divided by the user",
    "unknown size",
    "infinite",
    "generator",
    "PyDataset",
    "validation_split",
    "class_weight",
    "sample_weight",
    "train_on_batch",
    "one sample",
    "test_on_batch",
    "evaluate",
    "evaluate a generator",
    "predict",
    "predict_on_batch",
    "quantized",
    "quantized, even shares",
]


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What the program says, which the first of xdist's processes runs for all."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    with (folder / "two_replicas.json").open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        text = file.read()
        if not text:
            program = fresh.ROOT / "tests" / "layers" / "two_replicas.py"
            text = fresh.run(program.read_text())
            file.write(text)
    return json.loads(text)


@pytest.mark.ci
def test_every_form_is_tested(said):
    assert {*said} == {*_FORMS, "pixels", "summed types", "twice", "warnings"}


@pytest.mark.ci
@pytest.mark.parametrize("form", _FORMS)
def test_two_replicas_do_as_one_device(said, form):
    alone, replicas = map(keras.tree.flatten, said[form])
    assert len(alone) > 1 and np.isfinite(alone).all()
    np.testing.assert_allclose(replicas, alone, rtol=0, atol=3e-6)


@pytest.mark.ci
def test_replicas_refuse_pixels(said):
    alone, replicas = said["pixels"]
    assert replicas == alone and "divide by 255" in alone


@pytest.mark.ci
def test_metrics_from_outside_of_the_scope_do_without_xla(said):
    alone, (of_training, of_evaluation) = said["warnings"]
    assert not alone and of_training == of_evaluation
    assert of_training.startswith("mean_absolute_error/total was made outside")


@pytest.mark.ci
def test_replicas_refuse_two_updates_in_a_step(said):
    """Which gradients belong to which update would be lost."""
    assert "train_step applies gradients twice" in said["twice"]


@pytest.mark.ci
def test_replicas_add_up_no_integers(said):
    """A collective of GPUs cannot: TensorFlow keeps int32 in the host's memory."""
    assert said["summed types"] == ["float32"]


class Counting(Unrolled, keras.Sequential):
    def check_inputs(self, x):
        self.seen_inputs = [*getattr(self, "seen_inputs", []), len(x)]

    def check_targets(self, x, y):
        self.seen_targets = [*getattr(self, "seen_targets", []), len(y)]


@pytest.mark.parametrize("strategy", [None, tf.distribute.OneDeviceStrategy("CPU:0")])
def test_first_batches_are_checked(strategy):
    with strategy.scope() if strategy else tf.device("CPU:0"):
        model = Counting([keras.Input([3]), keras.layers.Dense(1)])
        model.compile("sgd", "mse", run_eagerly=True)
    inputs, targets = np.ones([7, 3]), np.ones([7, 1])
    options = {"batch_size": 2, "verbose": 0}
    split = {"validation_split": 0.5, "validation_batch_size": 1}
    model.fit(inputs, targets, epochs=2, **split, **options)
    # Each epoch is validated by a call of `evaluate`.
    assert model.seen_inputs == [2, 1, 1] and model.seen_targets == [2, 1, 1]
    model.predict(inputs, **options)
    model.predict_on_batch(inputs)
    for _ in range(2):
        model.train_on_batch(inputs, targets)
    assert model.seen_inputs[3:] == [2, 7, 7, 7] and model.seen_targets[3:] == [7, 7]
