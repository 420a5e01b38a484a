# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""CapsuleRouting of numbers whose squares, or whose roundings, are past the largest."""

import numpy as np
import pytest
import tensorflow as tf
from tolerances import assert_close

import tf_capsops

# On a GPU, those of tensor cores and others.
SIZES = pytest.mark.parametrize("out_dim, in_dim", [(16, 8), (8, 8), (5, 7)])
OUT_CAPS = 4
LENGTHS = [(tf.float32, 2.0**90), (tf.float64, 2.0**800), (tf.bfloat16, 2.0**90)]


def _draw(out_dim, in_dim, dtype, batch=19):
    """Returns (grad, input, weights) of one input capsule."""
    rng = np.random.default_rng(0)
    shapes = (batch, OUT_CAPS, out_dim), (batch, 1, in_dim)
    shapes += ((1, OUT_CAPS, out_dim, in_dim),)
    return [tf.cast(rng.uniform(-1, 1, shape), dtype) for shape in shapes]


def _exact(tensor):
    return tensor.numpy().astype(np.float64)


def _directions(inputs, weights):
    u = np.einsum("ijdk,bik->bjd", weights, inputs)
    lengths = np.linalg.norm(u, axis=-1, keepdims=True)
    return u / lengths, lengths


def _rounded(array, dtype):
    return array.astype(dtype.as_numpy_dtype)


@SIZES
@pytest.mark.parametrize("dtype, scale", LENGTHS)
def test_squares_that_overflow(dtype, scale, out_dim, in_dim, device):
    """Output capsules are s / |s|, and gradients those of s / |s|."""
    grad, inputs, weights = _draw(out_dim, in_dim, dtype)
    large = inputs * tf.constant(scale, dtype)
    with tf.GradientTape() as tape:
        tape.watch([large, weights])
        output = tf_capsops.capsule_routing(large, weights, iterations=1)
    by_input, by_weights = tape.gradient(output, [large, weights], grad)
    g, x, w = map(_exact, (grad, inputs, weights))
    v, lengths = _directions(x, w)
    assert_close(output.numpy(), v, _rounded(v, dtype), np.ones_like(v))
    along = np.sum(g * v, axis=-1, keepdims=True)
    du = (g - along * v) / lengths
    size = (abs(g) + np.sum(abs(g * v), axis=-1, keepdims=True) * abs(v)) / lengths
    truth = np.einsum("bjd,bik->ijdk", du, x)
    magnitude = np.einsum("bjd,bik->ijdk", size, abs(x))
    assert_close(by_weights.numpy(), truth, _rounded(truth, dtype), magnitude)
    truth = np.einsum("bjd,ijdk->bik", du, w)
    magnitude = np.einsum("bjd,ijdk->bik", size, abs(w))
    ours = _rounded(_exact(by_input) * scale, dtype)
    assert_close(ours, truth, _rounded(truth, dtype), magnitude)


@SIZES
@pytest.mark.parametrize("iterations", [2, 3, 5])
@pytest.mark.parametrize("dtype, scale", LENGTHS)
def test_the_longest_prediction_gets_all(
    dtype, scale, iterations, out_dim, in_dim, device
):
    grad, inputs, weights = _draw(out_dim, in_dim, dtype)
    large = inputs * tf.constant(scale, dtype)
    with tf.GradientTape() as tape:
        tape.watch([large, weights])
        output = tf_capsops.capsule_routing(large, weights, iterations=iterations)
    gradients = tape.gradient(output, [large, weights], grad)
    assert all(np.isfinite(_exact(gradient)).all() for gradient in gradients)
    v, lengths = _directions(_exact(inputs), _exact(weights))
    truth = np.where(lengths == lengths.max(axis=1, keepdims=True), v, 0)
    assert_close(output.numpy(), truth, _rounded(truth, dtype), np.ones_like(truth))


@SIZES
@pytest.mark.parametrize("iterations", [1, 3])
@pytest.mark.parametrize("which", ["input", "weights"])
def test_the_largest_floats(which, iterations, out_dim, in_dim, device):
    """Rounded up to TF32, where it is split off, they would be infinite."""
    grad, inputs, weights = _draw(out_dim, in_dim, tf.float32)
    largest = tf.float32.max * np.eye(in_dim, dtype=np.float32)[0]
    if which == "input":
        inputs = tf.sign(inputs) * largest
        weights = weights / 16
    else:
        weights = tf.sign(weights) * largest
        # Lengths that differ by output capsule, as no two may be the longest.
        rows = np.arange(out_dim) < 2 + np.arange(OUT_CAPS)[:, None]
        weights = tf.where(rows[None, ..., None], weights, tf.zeros_like(weights))
        inputs = inputs / 16
    with tf.GradientTape() as tape:
        tape.watch([inputs, weights])
        output = tf_capsops.capsule_routing(inputs, weights, iterations=iterations)
    gradients = tape.gradient(output, [inputs, weights], grad)
    assert all(np.isfinite(gradient.numpy()).all() for gradient in gradients)
    v, lengths = _directions(_exact(inputs), _exact(weights))
    if iterations > 1:
        v = np.where(lengths == lengths.max(axis=1, keepdims=True), v, 0)
    assert_close(output.numpy(), v, _rounded(v, tf.float32), np.ones_like(v))
