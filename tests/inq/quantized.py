# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Models with quantized weights, and comparisons with what convert makes of them."""

import keras
import numpy as np
import tensorflow as tf
import tolerances

from tf_capsops import inq


def quantize(model, bits=4):
    """Quantizes every kernel in a model at once."""
    random = np.random.default_rng(1)
    for _, kernel in inq.kernels.layers_and_kernels(model):
        weights = random.normal(size=kernel.shape).astype(np.float32)
        kernel.assign(inq.quantize(weights / 4, bits))
    return model


def assert_same(model, converted, images):
    """Compares outputs; those of the plain model must not be zeros."""
    expected = model(images)
    allowed = 64 * tolerances.ulp(np.float32)
    for ours, plain in zip(
        tf.nest.flatten(converted(images)), tf.nest.flatten(expected)
    ):
        scale = np.abs(plain).max()
        np.testing.assert_allclose(ours, plain, rtol=0, atol=allowed * scale)
        assert scale > 0


class Recorder(keras.callbacks.Callback):
    """Keeps masks and kernels as they are after every epoch and execution."""

    def __init__(self, steps):
        super().__init__()
        self.steps = steps
        self.records = []

    def on_epoch_begin(self, epoch, logs=None):
        self._keep()

    def on_train_batch_end(self, batch, logs=None):
        self._keep()

    def on_epoch_end(self, epoch, logs=None):
        self._keep()

    def _keep(self):
        self.records.append(
            [(each.mask.copy(), each.variable.numpy()) for each in self.steps.kernels]
        )
