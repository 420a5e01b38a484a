# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""CapsulePrediction's gradients and theirs, against finite differences."""

import numpy as np
import pytest
import tensorflow as tf
from frames import switched
from registrations import bare
from tolerances import assert_jacobians_close

import tf_capsops
from tf_capsops.bench import cases

SUITE = cases.suites()["CapsulePrediction"]
DELTA = 2.0**-10  # a power of two, so that adding it to numbers in [-1, 1) is exact

gradient_cases = pytest.mark.parametrize("case", SUITE.select(cases.GRADIENT), ids=str)
both_precisions = pytest.mark.parametrize(
    "dtype", [tf.float32, tf.float64], ids=lambda dtype: dtype.name
)


def _draw(case, dtype):
    """Returns grad, input and weights: multiples of DELTA, so that steps are exact."""
    rng = np.random.default_rng(0)
    arrays = [rng.uniform(-1, 1, SUITE.output_shape(case)), *SUITE.draw(case, rng)]
    return [tf.constant(np.round(a / DELTA) * DELTA, dtype) for a in arrays]


def _check(compute, *sources):
    compute = switched(compute)
    jacobians = tf.test.compute_gradient(compute, sources, DELTA)
    magnitude = np.abs(compute(*sources).numpy()).max()
    assert_jacobians_close(jacobians, magnitude, DELTA)


@both_precisions
@gradient_cases
def test_gradients(case, dtype, device):
    _, inputs, weights = _draw(case, dtype)
    _check(tf_capsops.capsule_prediction, inputs, weights)


@both_precisions
@gradient_cases
def test_gradients_of_gradient_op(case, dtype, device):
    """Differentiates both outputs of CapsulePredictionGrad by all three inputs."""

    def gradients(grad, inputs, weights):
        outputs = bare().capsule_prediction_grad(grad, inputs, weights)
        return tf.concat([tf.reshape(output, [-1]) for output in outputs], 0)

    _check(gradients, *_draw(case, dtype))


# The grid of paper 002; the times grow with the square of the sizes.
paper_cases = pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=[] if index % 4 == 0 else pytest.mark.slow)
        for index, case in enumerate(SUITE.select(cases.PAPER))
    ],
    ids=str,
)


@paper_cases
def test_gradients_on_the_papers_grid(case, device):
    _, inputs, weights = _draw(case, tf.float32)
    _check(lambda x: tf_capsops.capsule_prediction(x, weights), inputs)
    _check(lambda w: tf_capsops.capsule_prediction(inputs, w), weights)
