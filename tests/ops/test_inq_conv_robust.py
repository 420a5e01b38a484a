# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""InqConv: repeatable, NaN kept in its place, large, saved and loaded."""

import functools

import numpy as np
import pytest
import robustness
import tensorflow as tf
from descriptions import every_dtype, exact
from descriptions.inq_conv import OP
from frames import call
from reference import inq_conv as reference
from registrations import bare
from tolerances import assert_close, assert_rounded

import tf_capsops

MOVED = {"strides": (2, 1), "dilations": (1, 2), "bits": 4}


def _draw(dtype, image, kernel, bits=5, **moved):
    """Returns (grad, input, codes)."""
    output = reference.output_shape(image, kernel, **moved)
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 2 ** (bits - 1), kernel, np.uint8, endpoint=True)
    return *robustness.draw(dtype, output, image), tf.constant(codes)


def _results(*tensors, **attributes):
    """Returns output and gradient of the input."""
    compute = functools.partial(tf_capsops.inq_conv2d, top_exponent=-1, **attributes)
    return call(OP.results, compute, *tensors)


def of_several_sizes(dtype):
    return [
        _results(*_draw(dtype, image, kernel, strides=strides), strides=strides)
        for image, kernel, strides in (
            ((3, 17, 16, 5), (3, 2, 5, 7), (2, 2)),
            ((4, 19, 18, 64), (3, 3, 64, 32), (1, 1)),
            ((40, 9, 8, 1), (3, 3, 1, 2), (1, 1)),
            ((5, 14, 15, 33), (1, 1, 33, 129), (2, 2)),
        )
    ]


@every_dtype
@pytest.mark.parametrize(
    "image, kernel",
    [
        ((13, 17, 16, 5), (3, 2, 5, 7)),
        ((3, 19, 18, 64), (3, 3, 64, 32)),
        ((2, 9, 7, 129), (1, 1, 129, 65)),
    ],
    ids=str,
)
def test_every_run_gives_the_same_bits(image, kernel, dtype, device):
    robustness.same_bits_every_time(_results, _draw(dtype, image, kernel))


@every_dtype
def test_samples_without_pixels_take_no_time(dtype, device):
    """However many there are, the kernels do not loop over them."""
    images = tf.zeros(tf.constant([2**62, 0, 9, 1], tf.int64), dtype)
    codes = tf.zeros([1, 3, 1, 4], tf.uint8)
    result = tf_capsops.inq_conv2d(images, codes, 0, padding="VALID")
    assert result.shape == (2**62, 0, 7, 4)


@every_dtype
@pytest.mark.parametrize("bad", [np.nan, np.inf], ids=str)
@pytest.mark.parametrize("position", [0, 1], ids=["grad", "input"])
@pytest.mark.parametrize(
    "image, kernel, moved",
    [
        ((2, 7, 6, 3), (2, 3, 3, 5), {"padding": "VALID"}),
        ((2, 9, 7, 17), (3, 3, 17, 16), {"strides": (2, 2)}),
        ((2, 7, 6, 8), (2, 3, 8, 7), {"dilations": (2, 1)}),
    ],
    ids=str,
)
def test_bad_numbers_stay_in_their_place(
    image, kernel, moved, position, bad, dtype, device
):
    """A NaN or an infinity reaches only the results its number takes part in.

    What is multiplied by a weight of zero is NaN too, or not: both are the sum.
    """
    tensors = _draw(dtype, image, kernel, **moved)
    grad, _, codes = tensors
    place = robustness.last_but_one(tensors[position])
    compute = functools.partial(OP.reference, top_exponent=0, **moved)
    sure, possible = (
        robustness.reached(
            compute, [np.ones(grad.shape), np.ones(image), weights], position, place
        )
        for weights in (reference.absolute(codes.numpy()), np.ones(kernel, np.uint8))
    )
    assert sum(region.any() for region in possible) == 1
    spoiled = robustness.spoiled(tensors, position, place, bad)
    robustness.bad_numbers_stay(
        _results(*tensors, **moved), _results(*spoiled, **moved), sure, possible
    )


@pytest.mark.parametrize("position", range(3), ids=["grad", "input", "codes"])
@pytest.mark.parametrize("channels", [1, 16])
@every_dtype
def test_slices_of_larger_tensors(position, channels, dtype, device):
    tensors = _draw(dtype, (1, 5, 5, channels), (3, 3, channels, channels))
    robustness.slices_of_larger_tensors(_results, tensors, position)


@every_dtype
def test_samples_of_a_large_batch(dtype, device):
    """A CPU computes some at a time, and gradients of few channels in its own way."""
    grad, inputs, codes = _draw(dtype, (23, 120, 120, 3), (3, 3, 3, 20))
    few = [0, 11, 12, 22]
    alone = tf.gather(grad, few), tf.gather(inputs, few)
    sizes = tf.abs(alone[0]), tf.abs(alone[1]), reference.absolute(codes.numpy())
    for many, plain, size in zip(
        _results(grad, inputs, codes),
        _results(*alone, codes),
        _results(*sizes),
        strict=True,
    ):
        truth, size = exact([plain, size])
        assert_close(many.numpy()[few], truth, plain, size)


@pytest.mark.slow
def test_more_elements_than_32_bits_count(device):
    """2^31 + 2^25 numbers of output (4.4 GB in bfloat16), also as gradient."""
    samples, channels = 65 * 2**10, 2**15
    rng = np.random.default_rng(0)
    inputs = tf.cast(rng.uniform(-1, 1, (samples, 1, 1, 1)), tf.bfloat16)
    codes = tf.constant(rng.integers(1, 5, (1, 1, 1, channels), np.uint8))
    output = bare().inq_conv(inputs, codes, 0)
    assert np.prod(output.shape.as_list()) > 2**31
    by_input = bare().inq_conv_backprop_input(inputs.shape, codes, 0, output)

    # Of each the end alone is looked at, and what it is made of.
    few = np.s_[-4:]
    image, grad = (t[few].numpy().astype(np.float64) for t in (inputs, output))
    truth = reference.forward(image, codes.numpy(), 0)
    assert_rounded(np.abs(output[few].numpy()), np.abs(truth))
    truth = reference.backprop_input(image.shape, codes.numpy(), 0, grad)
    size = reference.absolute(codes.numpy())
    magnitude = reference.backprop_input(image.shape, size, 0, np.abs(grad))
    plain = truth.astype(np.float32).astype(tf.bfloat16.as_numpy_dtype)
    assert_close(by_input[few].numpy(), truth, plain, magnitude)


def test_saved_model_in_a_fresh_process(tmp_path, device):
    _, image, drawn = _draw(tf.float32, (2, 5, 4, 3), (2, 3, 3, 2), bits=4)
    codes, top_exponent = tf.Variable(drawn), tf.Variable(-1)
    robustness.saved_model_in_a_fresh_process(
        *(tmp_path, device),
        lambda image: tf_capsops.inq_conv2d(image, codes, top_exponent, **MOVED),
        *([codes, top_exponent], image, [None, None, 4, 3]),
    )


def test_calls_of_different_sizes_at_the_same_time(device):
    sizes = (1, 3, 2), (20, 16, 64), (2, 1, 17), (9, 64, 129)
    drawn = [_draw(tf.float32, (batch, 6, 5, c), (3, 2, c, o)) for batch, c, o in sizes]
    robustness.same_at_the_same_time(_results, drawn, device)
