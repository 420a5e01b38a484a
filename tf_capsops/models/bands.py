# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Trains networks of single pixels band by band, which takes less memory."""

import itertools
import math

import keras
import tensorflow as tf

_PIXELS = 1 << 15  # of a band


def count(network, inputs):
    """Returns how many bands of rows are worth it; 1 if pixels depend on others.

    Args:
      network: a functional model of images or volumes.
      inputs: what it is called on, `[B, rows, ..., C]`.
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
    """Calls a network of single pixels for training.

    What its layers compute is not kept for the gradient, which computes it again for
    one band of rows after another.

    Args:
      network: a functional model of images or volumes.
      inputs: `[B, rows, ..., C]`.
      bands: how many.
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
        outputs = tf.concat([call(band, weights) for band in _split(inputs, bands)], 1)

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

        return outputs, gradient

    return banded(inputs, *(weight for _, weight in trained))


def _split(images, bands):
    rows = images.shape[1]
    ends = [rows * number // bands for number in range(bands + 1)]
    return [images[:, at:end] for at, end in itertools.pairwise(ends)]


def _after(first, then):
    """Returns `then`, but computed after `first`, by XLA too.

    XLA would compute all bands at the same time, and keep them all. It does not know
    that what is added here is zero, as in `tf.recompute_grad`.
    """
    flag = tf.cast(tf.reshape(first, [-1])[0], tf.bool)
    zero = tf.where(tf.equal(flag, flag), 0.0, float("nan"))
    return then + tf.cast(zero, then.dtype)
