# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""CapsuleConvRouting: unknown sizes, operands that are missing, and what is refused."""

import contextlib
import functools
import itertools

import numpy as np
import pytest
import tensorflow as tf
from descriptions.capsule_conv_routing import OP

import tf_capsops
from tf_capsops import capsule_conv_routing
from tf_capsops.bench import cases

every_case = OP.cases(cases.GRADIENT)
both = pytest.mark.parametrize("portable", [False, True], ids=["library", "tensorflow"])


def _drawn(name):
    """Returns float64 tensors of the four operands, and attributes."""
    case = OP.case(name)
    return OP.draw(case, tf.float64)[1:], dict(case.attributes)


def _way(portable):
    return tf_capsops.portable() if portable else contextlib.nullcontext()


@both
@pytest.mark.parametrize("name", ["line_own", "image_own", "volume_up"])
def test_xla(name, portable, device):
    """It changes no bit of ours."""
    case = OP.case(name)
    tensors = OP.draw(case, tf.float32)
    compute = functools.partial(OP.results, case.bind(capsule_conv_routing))
    with _way(portable):
        compiled, graph = (
            tf.function(compute, autograph=False, jit_compile=jit)(*tensors)
            for jit in (True, False)
        )
    allowed = 1e-5 if portable else 0
    for result, expected in zip(compiled, graph, strict=True):
        np.testing.assert_allclose(result, expected, rtol=0, atol=allowed)


@both
@every_case
def test_sizes_that_are_unknown(case, portable, device):
    (inputs, *others), attributes = _drawn(case.name)
    unknown = [None] * (inputs.shape.rank - 2) + inputs.shape.as_list()[-2:]

    def compute(each):
        each = tf.raw_ops.PlaceholderWithDefault(input=each, shape=unknown)
        return capsule_conv_routing(each, *others, **attributes)

    with _way(portable):
        expected = capsule_conv_routing(inputs, *others, **attributes)
        result = tf.function(compute, autograph=False)(inputs)
    np.testing.assert_allclose(result, expected, rtol=0, atol=1e-14)


@both
def test_a_rank_that_is_unknown_is_that_of_images(portable, device):
    line, attributes = _drawn("line")
    image, _ = _drawn("image")

    def of_unknown_rank(compute, inputs, *others):
        def computed(inputs):
            inputs = tf.raw_ops.PlaceholderWithDefault(
                input=inputs, shape=tf.TensorShape(None)
            )
            return compute(inputs, *others)

        return tf.function(computed, autograph=False)(inputs)

    with _way(portable):
        for compute, operands in (
            (functools.partial(capsule_conv_routing, **attributes), line),
            (capsule_conv_routing, image),
        ):
            found = of_unknown_rank(compute, *operands)
            np.testing.assert_allclose(found, compute(*operands), atol=1e-14)


@both
@pytest.mark.parametrize("given", itertools.product([False, True], repeat=2))
def test_none_is_zeros(given, portable, device):
    tensors, attributes = _drawn("image_leaky")
    inputs, weights, *others = tensors
    compute = functools.partial(capsule_conv_routing, inputs, weights, **attributes)
    zeros = [e if g else tf.zeros_like(e) for e, g in zip(others, given, strict=True)]
    nones = [e if g else None for e, g in zip(others, given, strict=True)]
    with _way(portable), tf.GradientTape() as tape:
        tape.watch(tensors)
        result = compute(*nones)
        np.testing.assert_array_equal(result, compute(*zeros))
    found = tape.gradient(result, others)
    assert [each is not None for each in found] == [*given]


@both
@pytest.mark.parametrize("empty", range(5))
@pytest.mark.parametrize("own", [False, True])
def test_without_numbers(empty, own, portable, device):
    """Without children, parents are squashed biases."""
    sizes = [2, 3, 2, 4, 5]  # batch, types, in_dim, parents, out_dim
    sizes[empty] = 0
    batch, types, in_dim, parents, out_dim = sizes
    operands = [
        tf.ones([batch, 4, 3, types, in_dim]),
        tf.ones([2, 2, *([types] if own else []), in_dim, parents, out_dim]),
        tf.fill([parents, out_dim], 0.5),
    ]
    with _way(portable), tf.GradientTape() as tape:
        tape.watch(operands)
        result = capsule_conv_routing(*operands, strides=2, padding="SAME")
    assert result.shape == (batch, 2, 2, parents, out_dim)
    if empty in (1, 2):
        expected = tf.broadcast_to(tf_capsops.squash(operands[2]), result.shape)
        np.testing.assert_allclose(result, expected, rtol=1e-6)
    found = tape.gradient(result, operands)
    for gradient, operand in zip(found, operands, strict=True):
        assert gradient.shape == operand.shape and np.isfinite(gradient).all()


def test_a_single_pixel_is_capsule_routing(device):
    random = np.random.default_rng(6)
    inputs, logits = random.normal(size=[3, 7, 4]), random.normal(size=[7, 5])
    weights = random.normal(size=[7, 5, 6, 4])
    expected = tf_capsops.capsule_routing(inputs, weights, logits)
    kernel = np.transpose(weights, (0, 3, 1, 2))[np.newaxis]
    found = capsule_conv_routing(inputs[:, np.newaxis], kernel, None, logits)
    np.testing.assert_allclose(found[:, 0], expected, rtol=0, atol=1e-14)


_SHAPES = {
    "inputs": (1, 4, 5, 3, 2),
    "weights": (2, 2, 2, 4, 6),
    "bias": (4, 6),
    "logits": (3, 4),
}


@both
@pytest.mark.parametrize(
    "changes, text",
    [
        (
            {"inputs": (4, 5, 3)},
            "input must have rank 5 [batch, in_height, in_width, types, in_dim], got "
            "[4,5,3]",
        ),
        (
            {"weights": (2, 2, 4, 6)},
            "weights must have rank 5 [kernel_height, kernel_width, in_dim, parents, "
            "out_dim] or 6 [kernel_height, kernel_width, types, in_dim, parents, "
            "out_dim], got [2,2,4,6]",
        ),
        (
            {"weights": (2, 2, 3, 4, 6)},
            "weights dim 2 (in_dim) must be 2, got [2,2,3,4,6]",
        ),
        (
            {"weights": (2, 2, 5, 2, 4, 6)},
            "weights dim 2 (types) must be 3, got [2,2,5,2,4,6]",
        ),
        ({"bias": (4, 7)}, "bias dim 1 (out_dim) must be 6, got [4,7]"),
        ({"bias": (4, 6, 1)}, "bias must have rank 2 [parents, out_dim], got [4,6,1]"),
        ({"logits": (4, 3)}, "logits dim 0 (types) must be 3, got [4,3]"),
        (
            {"weights": (5, 2, 2, 4, 6)},
            "weights dim 0 (kernel_height) must be at most 4 (in_height 4, dilation 1, "
            "padding VALID), got [5,2,2,4,6]",
        ),
        (
            {"weights": (2, 0, 2, 4, 6)},
            "weights dim 1 (kernel_width) must be at least 1, got [2,0,2,4,6]",
        ),
    ],
)
def test_what_does_not_fit(changes, text, portable, device):
    operands = {name: tf.ones(shape) for name, shape in {**_SHAPES, **changes}.items()}
    for compute in (capsule_conv_routing, tf.function(capsule_conv_routing)):
        error = tf.errors.InvalidArgumentError
        error = error if compute is capsule_conv_routing else ValueError
        with _way(portable), pytest.raises(error) as caught:
            compute(**operands)
        assert f"CapsuleConvRouting: {text}" in str(caught.value)


@pytest.mark.parametrize(
    "changes, text",
    [
        ({"iterations": 0}, "iterations must be an integer from 1 to 2147483647, got"),
        ({"epsilon": 0.0}, "epsilon must be a positive number, got 0.0"),
        ({"strides": (1, 2, 1)}, "strides must be one or two integers, got (1, 2, 1)"),
        ({"strides": 0}, "strides must be an integer >= 1, got 0"),
        (
            {"strides": np.array([1, 2])},
            "strides must be an integer, or a list or tuple of 2, got array([1, 2])",
        ),
        ({"transposed": "false"}, "transposed must be True or False, got 'false'"),
        ({"leaky": 2}, "leaky must be True or False, got 2"),
        ({"padding": "FULL"}, "padding must be 'VALID' or 'SAME', got 'FULL'"),
        (
            {"transposed": True, "dilations": (1, 2)},
            "dilations must be 1 where transposed, got (1, 2)",
        ),
        (
            {"bias": tf.ones([4, 6], tf.float64)},
            "bias must have the type of inputs, float32, got float64",
        ),
        ({"weights": None}, "weights must be a tensor"),
    ],
)
def test_bad_arguments_are_named(changes, text):
    operands = {name: tf.ones(shape) for name, shape in _SHAPES.items()}
    with pytest.raises(ValueError) as caught:
        capsule_conv_routing(**{**operands, **changes})
    assert f"capsule_conv_routing: {text}" in str(caught.value)


def test_weights_of_each_type_need_a_number_of_types():
    """Where TensorFlow's ops are to be listed for each."""

    @tf.function(autograph=False)
    def compute(inputs, weights):
        with tf_capsops.portable():
            return capsule_conv_routing(inputs, weights)

    given = tf.TensorSpec([1, 3, 3, None, 2]), tf.TensorSpec([2, 2, None, 2, 4, 5])
    with pytest.raises(ValueError, match=r"types must be known under portable\(\)"):
        compute.get_concrete_function(*given)
