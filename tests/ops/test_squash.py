# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""tf_capsops.squash against its formula, at zero, and in every dtype."""

import finite_differences
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
import tolerances
from reference import squash as reference

import tf_capsops

DTYPES = [tf.float32, tf.float64, tf.float16, tf.bfloat16]


def _plain(vectors, axis, epsilon=1e-7):
    """The formula as people write it, in the dtype of its input."""
    squared = tf.reduce_sum(vectors * vectors, axis=axis, keepdims=True)
    return vectors * squared / (1 + squared) / tf.sqrt(squared + epsilon)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("shape, axis", [((5, 7, 16), -1), ((3, 4, 5), 1), ((1, 1), 1)])
def test_values(device, dtype, shape, axis):
    vectors = np.random.default_rng(1).normal(size=shape)
    vectors = tf.constant(vectors, dtype)
    result = tf_capsops.squash(vectors, axis=axis)
    truth = reference.forward(np.asarray(vectors).astype(np.float64), axis)
    assert result.dtype == dtype
    tolerances.assert_close(result, truth, _plain(vectors, axis))


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_zero_has_value_and_gradient_zero(device, dtype):
    vectors = tf.zeros([2, 3], dtype)
    with tf.GradientTape() as tape:
        tape.watch(vectors)
        result = tf_capsops.squash(vectors)
    gradient = tape.gradient(result, vectors)
    np.testing.assert_array_equal(np.asarray(result).astype(float), 0)
    np.testing.assert_array_equal(np.asarray(gradient).astype(float), 0)


@pytest.mark.parametrize("compiled", [False, True])
def test_zero_has_gradient_zero_with_the_smallest_epsilon(device, compiled):
    vectors = tf.zeros([2, 3])

    @tf.function(jit_compile=compiled)
    def gradient(vectors):
        with tf.GradientTape() as tape:
            tape.watch(vectors)
            result = tf_capsops.squash(vectors, epsilon=1.2e-38)
        return tape.gradient(result, vectors)

    np.testing.assert_array_equal(gradient(vectors), np.zeros([2, 3]))


def test_half_precision_does_not_overflow_inside(device):
    # 300 squared is past float16's largest number.
    result = tf_capsops.squash(tf.constant([[300.0, 0.0]], tf.float16))
    np.testing.assert_array_equal(result, [[1.0, 0.0]])


@pytest.mark.parametrize(
    "dtype, size",
    [
        ("float16", 6e4),
        ("bfloat16", 1e25),
        ("bfloat16", 3e38),
        ("float32", 1e10),
        ("float32", 1e20),
        ("float32", 3e38),
        ("float64", 1e180),
        ("float64", 1e308),
    ],
)
def test_huge_vectors_become_unit_vectors(device, dtype, size):
    direction, across = np.array([[0.6, 0.0, -0.8]]), np.array([[0.8, 1.0, 0.6]])
    vectors = tf.constant(direction * size, dtype)
    with tf.GradientTape() as tape:
        tape.watch(vectors)
        result = tf_capsops.squash(vectors)
        sideways = tf.reduce_sum(result * tf.constant(across, dtype))
    gradient = tape.gradient(sideways, vectors)
    info = ml_dtypes.finfo(vectors.dtype.as_numpy_dtype)
    for actual, truth in (result, direction), (gradient, across / size):
        actual = np.asarray(actual).astype(np.float64)
        np.testing.assert_allclose(
            actual, truth, rtol=8 * float(info.eps), atol=float(info.tiny)
        )


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_vectors_that_are_not_finite_stay_so(device, dtype):
    vectors = tf.constant([[np.nan, 1.0], [np.inf, 1.0], [1.0, 0.0]], dtype)
    result = np.asarray(tf_capsops.squash(vectors)).astype(np.float64)
    assert np.isnan(result[:2]).all()
    assert np.isfinite(result[2]).all()


def test_gradient(device):
    vectors = np.random.default_rng(2).normal(size=[2, 3, 4])
    finite_differences.assert_gradients_agree(tf_capsops.squash, [vectors])


def test_lengths_stay_below_one_and_directions_stay(device):
    vectors = np.random.default_rng(3).normal(size=[50, 8], scale=10)
    result = tf_capsops.squash(vectors).numpy()
    lengths = np.linalg.norm(result, axis=-1)
    assert (lengths < 1).all()
    cosines = np.sum(result * vectors, -1) / lengths / np.linalg.norm(vectors, axis=-1)
    np.testing.assert_allclose(cosines, 1)


def test_compiled_graph_of_unknown_shape(device):
    @tf.function(jit_compile=True, input_signature=[tf.TensorSpec([None, 3])])
    def compiled(vectors):
        return tf_capsops.squash(vectors)

    vectors = tf.random.stateless_normal([4, 3], [1, 2])
    truth = reference.forward(vectors)
    tolerances.assert_close(compiled(vectors), truth, _plain(vectors, -1))
    assert compiled(tf.zeros([0, 3])).shape == (0, 3)


@pytest.mark.parametrize("epsilon", [0, -1e-7, 1e-46, float("inf"), float("nan")])
def test_epsilon_is_a_positive_float32(epsilon):
    with pytest.raises(ValueError, match=f"squash: epsilon must be .* got {epsilon}"):
        tf_capsops.squash([1.0], epsilon=epsilon)


@pytest.mark.parametrize(
    "vectors, text",
    [
        ([1, 2], "vectors must be floating-point, got int32"),
        (tf.ragged.constant([[1.0, 2.0], [1.0]]), "vectors must be a dense tensor"),
    ],
)
def test_bad_vectors_are_named(vectors, text):
    with pytest.raises(ValueError, match=f"squash: {text}"):
        tf_capsops.squash(vectors)
