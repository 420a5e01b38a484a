# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""HighOrderConv: repeatable, NaN kept in its place, large, saved and loaded."""

import functools

import numpy as np
import pytest
import robustness
import tensorflow as tf
from descriptions import every_dtype
from descriptions.high_order_conv import OP
from frames import call
from reference import high_order_conv as reference
from tolerances import assert_close

import tf_capsops

both_formats = pytest.mark.parametrize("data_format", ["NHWC", "NCHW"])
every_operand = pytest.mark.parametrize(
    "operand", range(3), ids=["grad", "input", "filters"]
)


def _first(tensor):
    return tf.transpose(tensor, (0, 3, 1, 2))


def _draw(dtype, image, kernel, groups=1, data_format="NHWC"):
    """Returns (grad, input, filters); `image` is in the order NHWC."""
    filters = (*image[:3], groups * kernel[0] * kernel[1])
    tensors = robustness.draw(dtype, image, image, filters)
    return [*map(_first, tensors)] if data_format == "NCHW" else tensors


def _results(*tensors, **attributes):
    """Returns output, gradient of the input and gradient of the filters."""
    compute = functools.partial(tf_capsops.high_order_conv2d, **attributes)
    return call(OP.results, compute, *tensors)


def of_several_sizes(dtype):
    return [
        _results(
            *_draw(dtype, image, kernel, groups, data_format),
            **{"kernel_size": kernel, "groups": groups, "dilations": (2, 1)},
            data_format=data_format,
        )
        # One channel is the same in both formats, and must not be the same image.
        for data_format, width in (("NHWC", 301), ("NCHW", 303))
        for image, kernel, groups in (
            ((5, 37, 41, 3), (5, 5), 1),
            ((3, 17, 19, 48), (3, 3), 3),
            ((1, 9, width, 1), (7, 3), 1),
        )
    ]


def _in_format(data_format, *tensors, **attributes):
    """Returns what a format computes, from NHWC to NHWC."""
    if data_format == "NHWC":
        return _results(*tensors, **attributes)
    results = _results(*map(_first, tensors), data_format="NCHW", **attributes)
    return [tf.transpose(result, (0, 2, 3, 1)) for result in results]


@every_dtype
@both_formats
@pytest.mark.parametrize(
    "image, kernel, groups",
    [((9, 31, 33, 3), (5, 5), 1), ((2, 17, 70, 32), (3, 3), 2)],
    ids=str,
)
def test_every_run_gives_the_same_bits(
    image, kernel, groups, data_format, dtype, device
):
    tensors = _draw(dtype, image, kernel, groups, data_format)
    attributes = {"kernel_size": kernel, "groups": groups, "data_format": data_format}
    compute = functools.partial(_results, **attributes)
    robustness.same_bits_every_time(compute, tensors)


@every_dtype
@both_formats
@every_operand
@pytest.mark.parametrize("bad", [np.nan, np.inf], ids=str)
@pytest.mark.parametrize("corner", [False, True], ids=["inside", "corner"])
@pytest.mark.parametrize(
    "image, kernel, groups, dilations",
    [
        ((2, 7, 6, 3), (5, 3), 1, (1, 1)),
        ((2, 9, 35, 8), (3, 3), 2, (2, 1)),
        ((1, 3, 4, 4), (9, 7), 4, (1, 1)),
        ((2, 5, 9, 3), (5, 5), 1, (1, 2**31 - 1)),
    ],
    ids=str,
)
def test_bad_numbers_stay_in_their_place(
    image, kernel, groups, dilations, corner, bad, operand, data_format, dtype, device
):
    """A NaN or an infinity reaches only the results its number takes part in.

    What belongs to a position outside the image takes part in none: the first number
    of a filter in the corner.
    """
    tensors = _draw(dtype, image, kernel, groups)
    place = robustness.last_but_one(tensors[operand])
    if corner:
        place = (0,) * 4
    attributes = {"kernel_size": kernel, "groups": groups, "dilations": dilations}
    compute = functools.partial(OP.reference, data_format="NHWC", **attributes)
    ones = [np.ones(tensor.shape) for tensor in tensors]
    sure = robustness.reached(compute, ones, operand, place)
    if operand < 2:
        assert sum(region.any() for region in sure) == 2
    elif corner:
        assert not any(region.any() for region in sure)
    ours = functools.partial(_in_format, data_format, **attributes)
    spoiled = robustness.spoiled(tensors, operand, place, bad)
    robustness.bad_numbers_stay(ours(*tensors), ours(*spoiled), sure)


@every_dtype
@both_formats
@pytest.mark.parametrize("bad", [np.nan, np.inf], ids=str)
@pytest.mark.parametrize(
    "image, kernel, groups",
    [((2, 6, 7, 3), (5, 3), 1), ((1, 4, 33, 4), (3, 3), 2), ((1, 2, 3, 2), (7, 7), 1)],
    ids=str,
)
def test_what_filters_hold_for_outside_the_image(
    image, kernel, groups, bad, data_format, dtype, device
):
    """It may be anything; its gradient is zero even if nothing else is a number."""
    grad, inputs, filters = _draw(dtype, image, kernel, groups)
    ones = np.ones(image), np.ones(image), np.ones(filters.shape)
    outside = reference.backward(*ones, kernel, groups)[1] == 0
    assert 0 < outside.sum() < outside.size
    spoiled = tf.where(outside, tf.constant(bad, dtype), filters)
    attributes = {"kernel_size": kernel, "groups": groups}
    compute = functools.partial(_in_format, data_format, **attributes)
    for before, after in zip(
        compute(grad, inputs, filters), compute(grad, inputs, spoiled), strict=True
    ):
        np.testing.assert_array_equal(after, before)
    nowhere = tf.fill(image, tf.constant(bad, dtype))
    for given in ((nowhere, inputs), (grad, nowhere), (nowhere, nowhere)):
        in_filters = compute(*given, filters)[2].numpy()
        np.testing.assert_array_equal(in_filters[outside], 0)
        assert not np.isfinite(in_filters[~outside].astype(np.float64)).any()


@every_operand
@every_dtype
@both_formats
def test_slices_of_larger_tensors(operand, dtype, data_format, device):
    tensors = _draw(dtype, (1, 5, 7, 3), (3, 3), 1, data_format)
    attributes = {"kernel_size": 3, "data_format": data_format}
    compute = functools.partial(_results, **attributes)
    robustness.slices_of_larger_tensors(compute, tensors, operand)


@pytest.mark.slow
@both_formats
def test_more_elements_than_32_bits_count(data_format, device):
    """2^31 and more numbers of filters (4.4 GB in bfloat16), and as many of gradient.

    Filters repeat every 7 rows. Of the results the end alone is looked at.
    """
    repeats, width, kernel, rows = 1001, 6400, (7, 7), 7
    image = 1, 7 * repeats, width, 1
    rng = np.random.default_rng(0)
    pattern = tf.cast(rng.uniform(-1, 1, (1, 7, width, 49)), tf.bfloat16)
    grad, inputs = (tf.cast(rng.uniform(-1, 1, image), tf.bfloat16) for _ in range(2))
    tail = [t[:, -2 * rows :].numpy().astype(np.float64) for t in (grad, inputs)]
    tail.append(np.tile(pattern.numpy().astype(np.float64), (1, 2, 1, 1)))
    order = _first if data_format == "NCHW" else tf.identity
    copies = (1, 1, repeats, 1) if data_format == "NCHW" else (1, repeats, 1, 1)
    with tf.device("CPU"):
        filters = tf.tile(order(pattern), copies)
    assert np.prod(filters.shape.as_list()) > 2**31
    given, attributes = [order(grad), order(inputs), filters], {"kernel_size": kernel}
    attributes["data_format"] = data_format
    bare = tf.load_op_library(tf_capsops.library_path())
    results = (
        bare.high_order_conv(*given[1:], **attributes),
        *bare.high_order_conv_grad(*given, **attributes),
    )
    end = np.s_[:, :, -rows:] if data_format == "NCHW" else np.s_[:, -rows:]
    truth, magnitude = (
        (
            reference.forward(*operands[1:], kernel),
            *reference.backward(*operands, kernel),
        )
        for operands in (tail, [*map(np.abs, tail)])
    )
    for ours, exact, size in zip(results, truth, magnitude, strict=True):
        exact, size = exact[:, -rows:], size[:, -rows:]
        plain = exact.astype(np.float32).astype(ours.dtype.as_numpy_dtype)
        ours = ours[end].numpy()
        ours = np.moveaxis(ours, 1, 3) if data_format == "NCHW" else ours
        assert_close(ours, exact, plain, size)


def test_saved_model_in_a_fresh_process(tmp_path, device):
    _, image, drawn = _draw(tf.float32, (2, 5, 4, 6), (3, 5), 2)
    filters = tf.Variable(drawn)
    attributes = {"kernel_size": (3, 5), "groups": 2, "dilations": (1, 2)}
    robustness.saved_model_in_a_fresh_process(
        *(tmp_path, device),
        lambda image: tf_capsops.high_order_conv2d(image, filters, **attributes),
        *([filters], image, [2, None, 4, None]),
    )


def test_calls_of_different_sizes_at_the_same_time(device):
    sizes = ((1, 9, 8, 3), 5, 1), ((4, 30, 31, 16), 3, 4), ((2, 3, 70, 1), 7, 1)
    drawn = [(_draw(tf.float32, s, (k, k), g), k, g) for s, k, g in sizes]
    robustness.same_at_the_same_time(
        lambda tensors, k, g: _results(*tensors, kernel_size=k, groups=g),
        *(drawn, device),
    )
