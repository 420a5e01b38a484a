# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""CapsuleConv: repeatable, NaN kept in its place, large, saved and loaded."""

import functools

import numpy as np
import pytest
import robustness
import tensorflow as tf
from descriptions import every_dtype
from descriptions.capsule_conv import OP
from frames import call
from reference import capsule_conv as reference
from tolerances import assert_close, assert_rounded

import tf_capsops

MOVED = {"strides": (2, 1), "dilations": (1, 2), "padding": "SAME"}

every_operand = pytest.mark.parametrize(
    "position", range(3), ids=["grad", "input", "weights"]
)


def _draw(dtype, image, kernel, **attributes):
    """Returns (grad, input, weights)."""
    moved = {"strides": (1, 1), "dilations": (1, 1), "padding": "VALID", **attributes}
    output = reference.output_shape(image, kernel, **moved)
    return robustness.draw(dtype, output, image, kernel)


def _results(*tensors, **attributes):
    """Returns output, gradient of the input and gradient of the weights."""
    compute = functools.partial(tf_capsops.capsule_conv2d, **attributes)
    return call(OP.results, compute, *tensors)


def of_several_sizes(dtype):
    strided = {"strides": (2, 2), "padding": "SAME"}
    return [
        _results(*_draw(dtype, image, kernel, **strided), **strided)
        for image, kernel in (
            ((3, 17, 16, 5, 4, 4), (3, 2, 5, 7, 4, 4)),
            ((40, 9, 8, 1, 4, 4), (3, 3, 1, 2, 4, 4)),
            ((2, 6, 7, 33, 4, 4), (2, 3, 33, 9, 4, 4)),
            ((5, 9, 7, 3, 2, 5, 3), (3, 2, 3, 4, 2, 3, 7)),
            ((40, 17, 16, 9, 1, 2), (3, 2, 9, 33, 2, 4)),
        )
    ]


@every_dtype
@pytest.mark.parametrize(
    "image, kernel",
    [
        ((13, 17, 16, 5, 4, 4), (3, 2, 5, 7, 4, 4)),
        ((3, 40, 41, 2, 4, 4), (5, 5, 2, 1, 4, 4)),
        ((3, 9, 7, 3, 2, 5, 3), (3, 2, 3, 4, 2, 3, 7)),
        ((13, 17, 16, 9, 1, 2), (3, 2, 9, 33, 2, 4)),
    ],
    ids=str,
)
def test_every_run_gives_the_same_bits(image, kernel, dtype, device):
    robustness.same_bits_every_time(_results, _draw(dtype, image, kernel))


@every_dtype
@pytest.mark.parametrize("bad", [np.nan, np.inf], ids=str)
@every_operand
@pytest.mark.parametrize(
    "image, kernel, attributes",
    [
        ((2, 7, 6, 3, 4, 4), (2, 3, 3, 5, 4, 4), {}),
        ((2, 9, 7, 17, 4, 4), (3, 3, 17, 2, 4, 4), {"strides": (2, 2)}),
        ((2, 7, 6, 3, 5, 3), (2, 3, 3, 2, 3, 7), {"dilations": (2, 1)}),
        ((2, 5, 6, 2, 3, 2, 2), (2, 3, 2, 3, 3, 2, 2), {}),
        ((3, 9, 7, 8, 1, 2), (3, 3, 8, 17, 2, 2), {"padding": "SAME"}),
        ((2, 7, 6, 3, 4, 4), (3, 3, 3, 5, 4, 4), {"padding": "SAME"}),
    ],
    ids=str,
)
def test_bad_numbers_stay_in_their_place(
    image, kernel, attributes, position, bad, dtype, device
):
    """A NaN or an infinity reaches only the results its number takes part in.

    A GPU multiplies a weight also by the zeros beside an image: there a bad weight may
    reach all pixels of the channels and columns it belongs to.
    """
    tensors = _draw(dtype, image, kernel, **attributes)
    place = robustness.last_but_one(tensors[position])
    compute = functools.partial(OP.reference, **attributes)
    ones = [np.ones(tensor.shape) for tensor in tensors]
    sure = robustness.reached(compute, ones, position, place)
    assert sum(region.any() for region in sure) == 2
    possible = None
    if "GPU" in device and position == 2:
        possible = [here | here.any(axis=(0, 1, 2), keepdims=True) for here in sure]
    spoiled = robustness.spoiled(tensors, position, place, bad)
    robustness.bad_numbers_stay(
        _results(*tensors, **attributes),
        _results(*spoiled, **attributes),
        *(sure, possible),
    )


@every_operand
def test_the_largest_number_stays_finite(position, device):
    """Tensor cores take float32 in parts, of which none may be rounded to infinity."""
    largest = np.finfo(np.float32).max
    arrays = [
        np.ones(tensor.shape)
        for tensor in _draw(tf.float32, (2, 5, 4, 8, 4, 4), (2, 3, 8, 9, 4, 4))
    ]
    arrays[position][:] = 0
    arrays[position][(-1,) * arrays[position].ndim] = largest
    results = _results(*(tf.constant(array, tf.float32) for array in arrays))
    for result, truth in zip(results, OP.reference(*arrays), strict=True):
        np.testing.assert_allclose(result, truth, rtol=2**-20)


@every_operand
@pytest.mark.parametrize("pose", [(3, 3, 3), (4, 4, 4)], ids=str)
@every_dtype
def test_slices_of_larger_tensors(position, pose, dtype, device):
    rows, inner, columns = pose
    tensors = _draw(dtype, (1, 5, 5, 1, rows, inner), (3, 3, 1, 1, inner, columns))
    robustness.slices_of_larger_tensors(_results, tensors, position)


@pytest.mark.slow
def test_more_elements_than_32_bits_count(device):
    """2^31 + 2^25 numbers of output (4.4 GB in bfloat16), also as gradient."""
    pixels, channels, rows, columns = 65, 2**6, 2**9, 2**10
    rng = np.random.default_rng(0)
    inputs = tf.cast(rng.uniform(-1, 1, (1, pixels, 1, 1, rows, 1)), tf.bfloat16)
    kernel = rng.uniform(-1, 1, (1, 1, 1, channels, 1, columns))
    weights = tf.cast(kernel, tf.bfloat16)
    bare = tf.load_op_library(tf_capsops.library_path())
    output = bare.capsule_conv(inputs, weights)
    assert np.prod(output.shape.as_list()) > 2**31
    by_input = bare.capsule_conv_backprop_input(inputs.shape, weights, output)
    by_weights = bare.capsule_conv_backprop_weights(inputs, weights.shape, output)

    # Of each the end alone is looked at, and what it is made of.
    image, kernel = (t.numpy().astype(np.float64) for t in (inputs, weights))
    few_rows, few_columns = np.s_[:, -1:, :, :, -4:], np.s_[..., -1:, :, -4:]
    truth = reference.forward(image[few_rows], kernel)
    assert_rounded(np.abs(output[few_rows].numpy()), np.abs(truth))
    for ours, compute, operands in (
        (
            by_input[few_rows],
            lambda grad, kernel: reference.backprop_input(
                image[few_rows].shape, kernel, grad
            ),
            (output[few_rows], weights),
        ),
        (
            by_weights[few_columns],
            lambda grad, image: reference.backprop_weights(
                image, kernel[few_columns].shape, grad
            ),
            (output[few_columns], inputs),
        ),
    ):
        exact = [operand.numpy().astype(np.float64) for operand in operands]
        truth, magnitude = compute(*exact), compute(*map(np.abs, exact))
        plain = truth.astype(np.float32).astype(ours.dtype.as_numpy_dtype)
        assert_close(ours.numpy(), truth, plain, magnitude)


def test_saved_model_in_a_fresh_process(tmp_path, device):
    _, image, kernel = _draw(tf.float32, (2, 5, 4, 3, 4, 4), (2, 3, 3, 2, 4, 4))
    weights = tf.Variable(kernel)
    robustness.saved_model_in_a_fresh_process(
        *(tmp_path, device),
        lambda image: tf_capsops.capsule_conv2d(image, weights, **MOVED),
        *([weights], image, [None, None, 4, 3, 4, 4]),
    )


def test_calls_of_different_sizes_at_the_same_time(device):
    """In a graph, for TensorFlow 2.21 mixes up eager calls of threads that share a GPU.

    It does so with those of tf.nn.conv2d too (its issue 123980).
    """
    drawn = [
        _draw(tf.float32, (batch, 6, 5, c, 4, 4), (3, 2, c, o, 4, 4))
        for batch, c, o in ((1, 3, 2), (20, 16, 5), (2, 1, 17), (9, 32, 3))
    ]
    robustness.same_at_the_same_time(tf.function(_results), drawn, device)
