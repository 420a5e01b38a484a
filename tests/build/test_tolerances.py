# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The rules for how far results and gradients may be from the truth."""

import contextlib

import finite_differences
import numpy as np
import pytest
import tensorflow as tf
from tolerances import assert_close, ulp

_TRUTH = np.ones([3])
_ULP = ulp(np.float32)


def _off(error):
    return np.float32(_TRUTH + np.array([0, error, 0]))


def _never():
    raise AssertionError("plain TensorFlow's result was asked for")


def test_a_few_units_need_no_yardstick():
    assert_close(_off(4 * _ULP), _TRUTH, _never)
    assert_close(_off(4 * _ULP), _TRUTH, _off(0))


@pytest.mark.parametrize("lazy", [False, True])
def test_an_op_may_be_off_by_twice_what_plain_tensorflow_is(lazy):
    def plain(error):
        return (lambda: _off(error)) if lazy else _off(error)

    assert_close(_off(20 * _ULP), _TRUTH, plain(10 * _ULP))
    for error, yardstick in ((20 * _ULP, 4 * _ULP), (np.nan, 10 * _ULP)):
        with pytest.raises(AssertionError, match="1 of 3 wrong, worst at"):
            assert_close(_off(error), _TRUTH, plain(yardstick))


@pytest.mark.parametrize("wrong", [0, 1e-6])
def test_one_wrong_element_of_a_jacobian_is_noticed(wrong):
    matrix = np.random.default_rng(0).normal(size=(7, 5))

    @tf.custom_gradient
    def function(vector):
        def grad(upstream):
            jacobian = matrix.copy()
            jacobian[3, 2] *= 1 + wrong
            return tf.linalg.matvec(jacobian, upstream, transpose_a=True) * (
                tf.cos(vector)
            )

        return tf.linalg.matvec(matrix, tf.sin(vector)), grad

    with pytest.raises(AssertionError) if wrong else contextlib.nullcontext():
        finite_differences.assert_gradients_agree(function, [np.linspace(-1, 1, 5)])
