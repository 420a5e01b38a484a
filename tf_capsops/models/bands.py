# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Trains pixelwise networks in bands of rows, to save memory."""

import itertools
import math

import keras
import tensorflow as tf

_PIXELS = 1 << 16  # The number of pixels in a band.


def count(network, inputs):
    """Returns the number of bands of rows to train in; 1 if pixels depend on others.

    Args:
      network: a functional model of images or volumes.
      inputs: its inputs, `[B, rows, ..., C]`.
    """
    shape = inputs.shape[1:-1]
    if not shape.is_fully_defined() or not _is_pixelwise(network):
        return 1
    return min(shape[0], math.ceil(shape.num_elements() / _PIXELS))


def _is_pixelwise(network):
    kinds = keras.layers.InputLayer, keras.layers.Conv2D, keras.layers.Conv3D
    return all(
        isinstance(layer, kinds)
        and {1} >= {*getattr(layer, "kernel_size", ()), *getattr(layer, "strides", ())}
        and getattr(layer, "activity_regularizer", None) is None
        for layer in network.layers
    )


def train(network, inputs, bands):
    """Calls a pixelwise network for training.

    It computes one band of rows after another. The results of its layers are not kept
    for the gradient: the backward pass computes them again, band by band.

    Args:
      network: a functional model of images or volumes.
      inputs: `[B, rows, ..., C]`.
      bands: the number of bands.
    """
    trained, frozen = (
        [(variable, tf.convert_to_tensor(variable)) for variable in variables]
        for variables in (network.trainable_variables, network.non_trainable_variables)
    )

    def call(inputs, weights):
        values = [
            (pair[0], weight) for pair, weight in zip(trained, weights, strict=True)
        ]
        with keras.StatelessScope([*values, *frozen]):
            return network.call(inputs, training=True)

    @tf.custom_gradient
    def banded(inputs, *weights):
        outputs = []
        for band in _split(inputs, bands):
            band = _after(outputs[-1], band) if outputs else band
            outputs.append(call(band, weights))

        def gradient(upstream):
            grads, sums = [], [tf.zeros_like(each) for each in weights]
            for band, above in zip(
                _split(inputs, bands), _split(upstream, bands), strict=True
            ):
                band = _after(grads[-1] if grads else above, band)
                with tf.GradientTape() as tape:
                    tape.watch([band, *weights])
                    outputs = call(band, weights)
                grad, *more = tape.gradient(outputs, [band, *weights], above)
                grads.append(grad)
                sums = [total + each for total, each in zip(sums, more, strict=True)]
            return tf.concat(grads, 1), *sums

        return tf.concat(outputs, 1), gradient

    return banded(inputs, *(weight for _, weight in trained))


def _split(images, bands):
    rows = images.shape[1]
    ends = [rows * number // bands for number in range(bands + 1)]
    return [images[:, at:end] for at, end in itertools.pairwise(ends)]


def _after(first, then):
    """Returns `then`, and makes XLA, too, compute it after `first`.

    XLA would otherwise compute all bands at the same time, and keep them all. It does
    not know that the number added here is zero. `tf.recompute_grad` does the same.
    """
    # The maximum of nothing is a number, too.
    flag = tf.cast(tf.reduce_max(tf.reshape(first, [-1])[:1]), tf.bool)
    zero = tf.where(tf.equal(flag, flag), 0.0, float("nan"))
    return then + tf.cast(zero, then.dtype)
