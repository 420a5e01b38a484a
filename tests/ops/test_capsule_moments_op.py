# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""CapsuleMoments' ops: inputs and attributes refused, in words."""

import functools

import pytest
import tensorflow as tf
from descriptions.capsule_moments import PARENTS, SHAPES
from refusals import (
    BAD_PAIRS,
    at_once_or_by_shape,
    every_way,
    mismatch,
    resized,
    shape_text,
)
from registrations import bare, refusal

# What each axis of an input must agree with; the first that has it is free.
_CHILDREN = "batch", "in_height", "in_width", "in_channels"
_PARENTS = "batch", "out_height", "out_width", "out_channels"
_PAIRS = "kernel_height", "kernel_width", "in_channels", "out_channels"
_POSES = *_PARENTS, "pose_rows", "pose_columns"
_AXES = {
    "activations": _CHILDREN,
    "weights": (*_PAIRS, "pose_inner", "pose_columns"),
    "bias": _PARENTS,
    "linear": _POSES,
    "precision": _POSES,
    "center": _POSES,
    "prior": _PAIRS,
}
_AXES_OF_GRADIENTS = {
    "grad_mass": _PARENTS,
    "grad_first": _POSES,
    "grad_second": _POSES,
    "mass": _PARENTS,
    "first": _POSES,
}
_FREE_OF_WEIGHTS = "kernel_height", "kernel_width", "out_channels", "pose_columns"


_OPS = ["CapsuleMoments", "CapsuleMomentShares", "CapsuleMomentsGrad"]
_VOTES = *PARENTS, 4, 2
_GRADIENTS = {"grad_mass": PARENTS, "grad_first": _VOTES, "grad_second": _VOTES}
_MOMENTS = {"mass": PARENTS, "first": _VOTES}


def _call(op, changed):
    """Returns an op and its inputs, some of them of other shapes."""
    shapes = SHAPES
    compute = bare().capsule_moment_shares
    if op != "CapsuleMomentShares":
        compute = functools.partial(bare().capsule_moments, order=2)
    if op == "CapsuleMomentsGrad":
        shapes = _GRADIENTS | SHAPES | _MOMENTS
        compute = functools.partial(bare().capsule_moments_grad, order=2)
    return compute, [tf.zeros(shape) for shape in (shapes | changed).values()]


def _bad_axes(all_axes):
    """Yields each input with one axis too long, and with one axis too few."""
    shapes = _GRADIENTS | SHAPES | _MOMENTS
    for name, axes in all_axes.items():
        good = shapes[name]
        form = f"rank {len(axes)} [{', '.join(axes)}]"
        short = good[:-1]
        yield name, short, f"{name} must have {form}, got {shape_text(short)}"
        for index, axis in enumerate(axes):
            if name == "weights" and axis in _FREE_OF_WEIGHTS:
                continue
            long = resized(good, index, good[index] + 1)
            yield name, long, mismatch(name, index, axis, good[index], long)


def _bad():
    yield (
        "poses",
        (2, 5, 6),
        "poses must have rank 6 [batch, in_height, in_width, in_channels, pose_rows, "
        "pose_inner], got [2,5,6]",
    )
    yield (
        "weights",
        (6, 3, 3, 7, 5, 2),
        "weights dim 0 (kernel_height) must be at most 5 (in_height 5, dilation 1, "
        "padding VALID), got [6,3,3,7,5,2]",
    )
    yield (
        "weights",
        (2, 0, 3, 7, 5, 2),
        "weights dim 1 (kernel_width) must be at least 1, got [2,0,3,7,5,2]",
    )


@every_way
@pytest.mark.parametrize("op", _OPS)
@pytest.mark.parametrize("name, shape, text", [*_bad(), *_bad_axes(_AXES)])
def test_shapes_that_do_not_fit(name, shape, text, op, assert_refused, device):
    compute, tensors = _call(op, {name: shape})
    assert_refused(compute, tensors, f"{op}: {text}")


@at_once_or_by_shape
@pytest.mark.parametrize("op", _OPS)
@pytest.mark.parametrize("name", ["strides", "dilations"])
@pytest.mark.parametrize("pair", BAD_PAIRS, ids=str)
def test_windows_that_are_none(name, pair, op, assert_refused, device):
    compute, tensors = _call(op, {})
    compute = functools.partial(compute, **{name: pair})
    text = f"{name} must be two positive integers, got {shape_text(pair)}"
    assert_refused(compute, tensors, f"{op}: {text}")


@at_once_or_by_shape
@pytest.mark.parametrize("op", _OPS)
def test_kernels_that_32_bits_do_not_count(op, assert_refused, device):
    """Without input channels they take no memory."""
    named = {n: resized(SHAPES[n], 3, 0) for n in ("poses", "activations")}
    named |= {n: (2**31, 3, 0, *SHAPES[n][3:]) for n in ("weights", "prior")}
    compute, tensors = _call(op, named)
    text = "weights dim 0 (kernel_height) must be at most 2147483647, got "
    assert_refused(compute, tensors, f"{op}: {text}{shape_text(named['weights'])}")


@every_way
@pytest.mark.parametrize("name, shape, text", _bad_axes(_AXES_OF_GRADIENTS))
def test_gradients_that_do_not_fit(name, shape, text, assert_refused, device):
    compute, tensors = _call("CapsuleMomentsGrad", {name: shape})
    assert_refused(compute, tensors, f"CapsuleMomentsGrad: {text}")


@every_way
@pytest.mark.parametrize(
    "order, name", [(0, "grad_first"), (1, "grad_second"), (0, "first")]
)
def test_moments_above_the_order(order, name, assert_refused, device):
    """They must be empty vectors."""
    kept = {"grad_first": order >= 1, "grad_second": order == 2, "first": order >= 1}
    empty = {n: (0,) for n, is_kept in kept.items() if not is_kept and n != name}
    compute, tensors = _call("CapsuleMomentsGrad", empty)
    compute = functools.partial(compute, order=order)
    text = f"{name} must have the shape [0] where order is {order}, got "
    assert_refused(compute, tensors, f"CapsuleMomentsGrad: {text}{shape_text(_VOTES)}")


@at_once_or_by_shape
@pytest.mark.parametrize("op", ["CapsuleMoments", "CapsuleMomentsGrad"])
def test_orders_that_are_none(op, assert_refused, device):
    compute, tensors = _call(op, {})
    compute = functools.partial(compute, order=3)
    assert_refused(compute, tensors, f"{op}: order must be 0, 1 or 2, got 3")


@pytest.mark.parametrize("op", _OPS)
def test_statistics_are_wide(op):
    """The error names the attribute that is their type."""
    names = [*SHAPES]
    if op == "CapsuleMomentsGrad":
        names = [*_GRADIENTS, *SHAPES, *_MOMENTS]
    compute, tensors = _call(op, {})
    narrow = "poses", "activations", "weights"
    tensors = [
        tf.cast(tensor, tf.float16 if name in narrow else tf.float64)
        for name, tensor in zip(names, tensors, strict=True)
    ]
    text = refusal(lambda: compute(*tensors), tf.function)
    assert "S (the type of sums) must be float where T is half, got double" in text
