# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""CapsuleConvBiasRelu is CapsuleConv, a bias and relu, in values and gradients."""

import functools

import frames
import numpy as np
import paths
import pytest
import tensorflow as tf
from descriptions import DTYPES, assert_all_close, every_dtype, exact, rounded_to_tf32
from descriptions.capsule_conv import OP
from refusals import every_way, mismatch, resized, shape_text
from registrations import bare
from symbols import UNKNOWN, placeholder

import tf_capsops
from tf_capsops import kernels

NAME, WEIGHTS = "CapsuleConvBiasRelu", "CapsuleConvBackpropWeights"
CASES = (
    *("ones", "primes", "pose_2_4_3_moved", "strides_2_2_SAME", "channels_33"),
    *("one_row_columns_36", "one_row_moved", "one_row_pose_1_3_4", "small_rows_2"),
    *("boxes_tiles", "boxes_strides_2_3_SAME", "boxes_pose_8_3"),
    *("empty_batch", "no_in_channels", "far_strides"),
)


def _draw(case, dtype):
    """Returns the output's gradient, input, weights and a bias."""
    tensors = OP.draw(case, dtype)
    bias = np.random.default_rng(1).normal(size=tensors[0].shape[3:])
    return [*tensors, tf.cast(bias, dtype)]


def _ours(case, tensors):
    """Returns the output and the gradients of input, weights and bias."""
    compute = functools.partial(tf_capsops.capsule_conv2d_bias_relu, **case.attributes)
    return frames.call(functools.partial(OP.results, compute), *tensors)


def _plain(case, kept, grad, inputs, weights, bias):
    """Returns plain TensorFlow's; there is a gradient of what is `kept`."""
    wide = tf.float32 if grad.dtype.size < 4 else grad.dtype
    grad = tf.where(kept, grad, tf.zeros([], grad.dtype))
    output, *gradients = OP.results(case.bind(OP.plain), grad, inputs, weights)
    sums = tf.reduce_sum(tf.cast(grad, wide), axis=[0, 1, 2])
    output = tf.nn.relu(tf.cast(output, wide) + tf.cast(bias, wide))
    return tf.cast(output, grad.dtype), *gradients, tf.cast(sums, grad.dtype)


def _truth(case, kept, grad, inputs, weights, bias):
    """Returns the reference's before relu, of numbers or of their absolute values."""
    grad = np.where(kept, grad, 0)
    output, *gradients = case.bind(OP.reference)(grad, inputs, weights)
    return output + bias, *gradients, grad.sum((0, 1, 2))


def _assert_close(case, results, tensors, yardstick=None):
    """A sum that is zero but for rounding may have a gradient or not."""
    kept = results[0] > 0
    plain = functools.partial(_plain, case, kept, *(yardstick or tensors))
    arrays = exact(tensors)
    output, *gradients = _truth(case, kept.numpy(), *arrays)
    magnitude = _truth(case, kept.numpy(), *map(np.abs, arrays))
    truth = np.maximum(output, 0), *gradients
    assert_all_close(results, plain, truth, magnitude)


@every_dtype
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name, dtype, device):
    case = OP.case(name)
    tensors = _draw(case, dtype)
    with kernels.recorded() as calls:
        results = _ours(case, tensors)
    _assert_close(case, results, tensors)
    assert frames.compiled() or NAME in {op for op, *_ in calls}


def test_both_signs_are_tried():
    """Else neither relu nor what it does to gradients would be seen."""
    output, *_ = _ours(OP.case("primes"), _draw(OP.case("primes"), tf.float32))
    assert 0.2 < np.mean(output.numpy() > 0) < 0.8


@every_dtype
def test_a_bias_that_is_not_finite(dtype, device):
    """NaN stays, as in `tf.nn.relu`."""
    bias = tf.constant([np.nan, np.inf, -np.inf, 1, -1], dtype)
    image, weights = tf.zeros([1] * 6, dtype), tf.zeros([1] * 5 + [5], dtype)
    output = frames.call(
        tf_capsops.capsule_conv2d_bias_relu, image, weights, bias[None, None]
    )
    np.testing.assert_array_equal(*exact([tf.squeeze(output), tf.nn.relu(bias)]))


@pytest.mark.parametrize("name", ["primes", "pose_2_4_3_moved"])
def test_second_derivatives(name, device):
    """They are those of the three ops that it stands for."""
    case = OP.case(name)
    _, *tensors = _draw(case, tf.float64)

    def apart(inputs, weights, bias, **attributes):
        output = tf_capsops.capsule_conv2d(inputs, weights, **attributes)
        return tf.nn.relu(output + bias)

    def second(compute, *tensors):
        with tf.GradientTape() as outer:
            outer.watch(tensors)
            with tf.GradientTape() as inner:
                inner.watch(tensors)
                output = tf.reduce_sum(compute(*tensors, **case.attributes) ** 2)
            gradients = inner.gradient(output, tensors)
            norm = tf.add_n([tf.reduce_sum(gradient**2) for gradient in gradients])
        return outer.gradient(norm, tensors)

    ours = frames.call(
        functools.partial(second, tf_capsops.capsule_conv2d_bias_relu), *tensors
    )
    for result, expected in zip(ours, second(apart, *tensors), strict=True):
        largest = np.abs(expected).max()
        np.testing.assert_allclose(result, expected, rtol=0, atol=1e-12 * largest)


@pytest.mark.parametrize(
    "inputs, weights, bias, inferred",
    [
        ((2, 5, 6, 3, 4, 7), (3, 2, 3, 8, 7, 9), (8, 4, 9), [2, 3, 5, 8, 4, 9]),
        ((2, 5, 6, 3, 4, 7), UNKNOWN, UNKNOWN, [2, None, None, None, 4, None]),
        ((2, 5, 6, 3, 4, 7), UNKNOWN, (8, 4, 9), [2, None, None, 8, 4, 9]),
        ((2, 5, 6, 3, 1, 4, 7), UNKNOWN, (8, 1, 4, 9), [2, None, None, 8, 1, 4, 9]),
        (UNKNOWN, UNKNOWN, (8, 4, 9), UNKNOWN),
    ],
)
def test_inferred_outputs(inputs, weights, bias, inferred):
    with tf.Graph().as_default():
        operands = map(placeholder, (inputs, weights, bias))
        shape = bare().capsule_conv_bias_relu(*operands).shape
    assert shape.rank == tf.TensorShape(inferred).rank
    assert shape.rank is None or shape.as_list() == inferred


INPUT, FILTER, BIAS = (2, 5, 6, 3, 4, 7), (3, 2, 3, 8, 7, 9), (8, 4, 9)
AXES = "[out_channels, pose_rows, pose_columns]"


@every_way
@pytest.mark.parametrize(
    "bias, message",
    [
        *(
            (shape, mismatch("bias", axis, axis_name, BIAS[axis], shape))
            for axis, axis_name in enumerate(AXES.strip("[]").split(", "))
            for shape in (resized(BIAS, axis, 1),)
        ),
        *(
            (shape, f"bias must have rank 3 {AXES}, got {shape_text(shape)}")
            for shape in ((8,), (), (8, 1, 4, 9))
        ),
    ],
)
def test_refuses_a_bias_that_does_not_fit(bias, message, assert_refused):
    tensors = [tf.zeros(shape) for shape in (INPUT, FILTER, bias)]
    assert_refused(bare().capsule_conv_bias_relu, tensors, f"{NAME}: {message}")


def test_refuses_a_bias_of_another_type():
    tensors = [tf.zeros(shape) for shape in (INPUT, FILTER)]
    with pytest.raises(ValueError, match=r"^capsule_conv2d_bias_relu: .*bias.*float64"):
        tf_capsops.capsule_conv2d_bias_relu(*tensors, tf.zeros(BIAS, tf.float64))


if paths.WITH_GPU:
    HALVES = DTYPES[2:]

    def _forced(kernel, gradient="mma"):
        gradients = dict.fromkeys(("CapsuleConvBackpropInput", WEIGHTS), gradient)
        return {NAME: kernel, **gradients}

    RUNS = [
        *paths.runs(_forced("fma", "fma"), ["primes", "ones", "far_strides"]),
        *paths.runs(
            _forced("mma"), ["primes", "channels_33"], [tf.float32, *HALVES], (0, 1)
        ),
        *paths.runs(
            _forced("gather"),
            [name for name in CASES if name.startswith("one_row")],
            *([tf.float32, *HALVES], (False, True)),
        ),
    ]
    if paths.runs_wgmma():
        RUNS += paths.runs(
            *(_forced("wgmma"), ["channels_33"], [tf.float32, *HALVES], (True,))
        )
        RUNS += paths.runs(
            _forced("tma"),
            [name for name in CASES if name.startswith("boxes")],
            *([tf.float32, *HALVES], (True,)),
        )

    @paths.every(RUNS)
    def test_forced(run):
        case = OP.case(run.name)
        tensors = _draw(case, run.dtype)
        with paths.running(run):
            results = _ours(case, tensors)
        rounded = run.tf32 and "fma" not in run.forced.values()
        with tf.device("GPU:0"):
            _assert_close(
                *(case, results, tensors), rounded_to_tf32(tensors) if rounded else None
            )
