# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Layers of routed capsules in plain Keras, which store the votes."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

_LEAST_SQUARE = 1e-12  # added to squared lengths, so that the root has a gradient at 0


def lengths(capsules):
    """Returns the lengths of capsules in float32."""
    capsules = keras.ops.cast(capsules, "float32")
    return keras.ops.sqrt(
        keras.ops.sum(keras.ops.square(capsules), axis=-1) + _LEAST_SQUARE
    )


def exponential_squash(vectors):
    """Shrinks vectors to a length below one, in float32."""
    norm = lengths(vectors)[..., None]
    return (1 - keras.ops.exp(-norm)) * keras.ops.cast(vectors, "float32") / norm


def _self_attention(inputs, kernel, priors):
    votes = tf.cast(tf.einsum("bik,ijkd->bijd", inputs, kernel), tf.float32)
    agreement = tf.einsum("bijd,bjd->bij", votes, tf.reduce_sum(votes, axis=1))
    shares = tf.nn.softmax(agreement * votes.shape[-1] ** -0.5) + priors[0, 0]
    return exponential_squash(tf.einsum("bij,bijd->bjd", shares, votes))


class SelfAttentionCaps(keras.layers.Layer):
    """Fully connected capsules with self-attention routing."""

    def __init__(self, children, classes, inner, columns):
        super().__init__()
        normal = keras.initializers.RandomNormal(stddev=0.05)
        pairs = children, classes
        self.kernel = self.add_weight(
            shape=(*pairs, inner, columns), initializer=normal
        )
        self.priors = self.add_weight(
            shape=(1, 1, *pairs), initializer="zeros", autocast=False
        )

    def call(self, inputs):
        weights = map(tf.convert_to_tensor, (self.kernel, self.priors))
        return _self_attention(inputs, *weights)

    def compute_output_shape(self, input_shape):
        _, classes, _, columns = self.kernel.shape
        return (input_shape[0], classes, columns)


def _em_routing(votes, activations, beta_a, beta_u, normalize):
    """Routes stored votes by three iterations of EM (Hinton et al., 2018).

    Args:
        votes: `[N, windows, children, O, P, R]`.
        activations: `[N, windows, children]`.
        normalize: A function from logits `[N, windows, children, O]` to shares.
    """
    votes, activations = tf.cast(votes, tf.float32), tf.cast(activations, tf.float32)
    *_, parents, rows, columns = votes.shape
    activations = activations[..., None]
    shares = tf.repeat(activations / parents, parents, axis=-1)
    for iteration in range(3):
        weights = shares[..., None, None]
        mass = tf.reduce_sum(weights, axis=2, keepdims=True) + 1e-7
        means = tf.reduce_sum(weights * votes, axis=2, keepdims=True) / mass
        squares = tf.square(votes - means)
        variances = tf.reduce_sum(weights * squares, axis=2, keepdims=True) / mass
        variances += 1e-4
        logarithms = 0.5 * tf.reduce_sum(tf.math.log(variances), axis=(-2, -1))
        costs = (rows * columns * beta_u + logarithms) * mass[..., 0, 0]
        active = 0.01 * (1 - 0.95 ** (iteration + 1)) * (beta_a - costs)
        if iteration < 2:
            distances = tf.reduce_sum(squares * (0.5 / variances), axis=(-2, -1))
            logits = tf.math.log_sigmoid(active) - logarithms - distances
            shares = normalize(logits) * activations
    return means[:, :, 0], tf.sigmoid(active[:, :, 0])


class EMCaps(keras.layers.Layer):
    """Capsules in windows, or at all positions of a map, routed by EM."""

    def __init__(self, size, inner, parents, pose_shape, kernel_size, stride):
        super().__init__()
        self._size, self._parents, self._pose = size, parents, pose_shape
        normal = keras.initializers.RandomNormal(stddev=0.5)
        window = (kernel_size, kernel_size) if kernel_size else ()
        self.kernel = self.add_weight(
            shape=(*window, inner, parents, *pose_shape), initializer=normal
        )
        self.beta_a, self.beta_u = (
            self.add_weight(shape=(parents,), initializer="zeros", autocast=False)
            for _ in range(2)
        )
        self._out = (1, 1)
        if kernel_size:
            self._out = tuple((each - kernel_size) // stride + 1 for each in size)
            self._pixels, self._places = _pixels_and_places(
                size, self._out, kernel_size, stride
            )

    def _normalize(self, logits):
        windows, children, parents = logits.shape[1:]
        taps = len(self._pixels) // windows
        flat = tf.reshape(logits, (-1, windows * taps, children // taps, parents))
        totals = tf.pad(
            tf.reduce_logsumexp(flat, axis=-1),
            ((0, 0), (0, 1), (0, 0)),
            constant_values=-1e30,
        )
        totals = tf.reduce_logsumexp(tf.gather(totals, self._places, axis=1), axis=2)
        totals = tf.gather(totals, self._pixels, axis=1)
        return tf.reshape(tf.exp(flat - totals[..., None]), tf.shape(logits))

    def call(self, inputs):
        poses, activations = inputs
        height, width = self._size
        windows = self._out[0] * self._out[1]
        *_, inner, parents, _, _ = self.kernel.shape
        pose, kernel = self._pose, tf.convert_to_tensor(self.kernel)
        poses = tf.reshape(poses, (-1, height * width, inner, *pose))
        activations = tf.reshape(activations, (-1, height * width, inner))
        if len(self.kernel.shape) == 6:
            poses = tf.gather(poses, self._pixels, axis=1)
            poses = tf.reshape(
                poses, (-1, windows, kernel.shape[0] ** 2 * inner, *pose)
            )
            kernel = tf.reshape(kernel, (-1, parents, *pose))
            votes = tf.einsum("nlkpq,koqr->nlkopr", poses, kernel)
            activations = tf.gather(activations, self._pixels, axis=1)
            normalize = self._normalize
        else:
            votes = tf.einsum("nxcpq,coqr->nxcopr", poses, kernel)
            added = np.zeros((height, width, 1, 1, *pose))
            added[..., 0, 0, 0, -1] = (np.arange(height)[:, None] + 0.5) / height
            added[..., 0, 0, 1, -1] = (np.arange(width) + 0.5) / width
            added = added.reshape(height * width, 1, 1, *pose)
            votes = votes + tf.constant(added, votes.dtype)
            votes = tf.reshape(votes, (-1, 1, height * width * inner, parents, *pose))
            normalize = tf.nn.softmax
        activations = tf.reshape(activations, (-1, windows, votes.shape[2]))
        betas = map(tf.convert_to_tensor, (self.beta_a, self.beta_u))
        return _em_routing(votes, activations, *betas, normalize)

    def compute_output_shape(self, input_shape):
        capsules = (input_shape[0][0], self._out[0] * self._out[1], self._parents)
        return (*capsules, *self._pose), capsules


def _pixels_and_places(size, out, kernel_size, stride):
    """Returns the pixel at each place in each window, and the places of each pixel.

    If a pixel is in fewer windows than others, its missing places get the index after
    the last place, where nothing is.
    """
    first = [stride * np.arange(each)[:, None] for each in out]
    rows, columns = (each + np.arange(kernel_size) for each in first)
    pixels = size[1] * rows[:, None, :, None] + columns[None, :, None, :]
    pixels = pixels.ravel()
    found = [np.flatnonzero(pixels == pixel) for pixel in range(size[0] * size[1])]
    most = max(map(len, found))
    places = [np.pad(f, (0, most - len(f)), constant_values=len(pixels)) for f in found]
    return pixels, np.stack(places)
