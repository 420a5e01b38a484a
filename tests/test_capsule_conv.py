# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""CapsuleConv's values and gradients, against the float64 reference."""

import numpy as np
import pytest
import tensorflow as tf
from reference import capsule_conv as reference
from tolerances import assert_close, assert_rounded

import tf_capsops
from tf_capsops.bench import cases

SUITE = cases.suites()["CapsuleConv"]
DTYPES = [tf.float32, tf.float64, tf.float16, tf.bfloat16]
EMPTY = [
    case.name for case in SUITE.select(cases.CORRECTNESS) if 0 in case.sizes.values()
]

every_case = pytest.mark.parametrize("case", SUITE.select(cases.CORRECTNESS), ids=str)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
half_types = pytest.mark.parametrize("dtype", DTYPES[2:], ids=lambda dtype: dtype.name)


def _case(name):
    (case,) = (case for case in SUITE.cases if case.name == name)
    return case


def _draw(case, dtype):
    """Returns (grad, input, weights) as tensors."""
    rng = np.random.default_rng(0)
    arrays = [rng.uniform(-1, 1, SUITE.output_shape(case)), *SUITE.draw(case, rng)]
    return [tf.cast(array, dtype) for array in arrays]


def _exact(tensors):
    return [tensor.numpy().astype(np.float64) for tensor in tensors]


def _gradients(compute, grad, *inputs):
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        output = compute(*inputs)
    return tape.gradient(output, inputs, grad)


def _plain(inputs, weights, **attributes):
    """Half types are computed in float32 and rounded once, as the op promises."""
    dtype = inputs.dtype
    if dtype.size < 4:
        inputs, weights = tf.cast(inputs, tf.float32), tf.cast(weights, tf.float32)
    return tf.cast(SUITE.rivals["patches"](inputs, weights, **attributes), dtype)


def _reference(case, grad, inputs, weights):
    """Returns output, gradient of the input and gradient of the weights."""
    attributes = case.attributes
    return (
        reference.forward(inputs, weights, **attributes),
        reference.backprop_input(inputs.shape, weights, grad, **attributes),
        reference.backprop_weights(inputs, weights.shape, grad, **attributes),
    )


def _assert_all_close(ours, plain, truth, magnitude):
    for one in zip(ours, truth, plain, magnitude, strict=True):
        ours, truth, plain, magnitude = one
        assert_close(ours.numpy(), truth, plain.numpy(), magnitude)


def _assert_close_to_reference(case, tensors, yardstick=None):
    """Also to that of gradients; the yardstick is plain TensorFlow of other numbers."""
    ours, plain = (
        (case.bind(function)(*given[1:]), *_gradients(case.bind(function), *given))
        for function, given in (
            (tf_capsops.capsule_conv2d, tensors),
            (_plain, yardstick or tensors),
        )
    )
    exact = _exact(tensors)
    magnitude = _reference(case, *map(np.abs, exact))
    _assert_all_close(ours, plain, _reference(case, *exact), magnitude)
    return ours


@every_dtype
@every_case
def test_values_and_gradients(case, dtype, device):
    for result in _assert_close_to_reference(case, _draw(case, dtype)):
        assert result.device.endswith(device)
