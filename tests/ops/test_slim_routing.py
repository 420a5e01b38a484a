# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Convolutions whose types of capsules are routed at each pixel."""

import contextlib
import functools
import itertools

import finite_differences
import numpy as np
import pytest
import tensorflow as tf
from descriptions import assert_all_close, every_dtype, exact
from frames import call
from reference import capsule_conv_routing as reference
from tolerances import ulp

import tf_capsops
from tf_capsops import capsule_conv_routing

# Image, kernel, (types, in_dim, parents, out_dim), and attributes. "own" are weights of
# each type.
_CASES = {
    "ones": ((1,), (1,), (1, 1, 1, 1), {}),
    "line": ((11,), (3,), (2, 3, 5, 7), {"strides": 2, "dilations": 2}),
    "line_own_same": ((7,), (4,), (3, 2, 4, 5), {"own": True, "padding": "SAME"}),
    "line_transposed": ((4,), (5,), (2, 3, 3, 4), {"transposed": True, "strides": 3}),
    "image": ((5, 7), (3, 2), (3, 4, 2, 5), {"strides": (2, 1), "padding": "SAME"}),
    "image_dilated": ((7, 5), (2, 3), (2, 2, 3, 3), {"dilations": (3, 2)}),
    "image_leaky": ((3, 4), (2, 2), (4, 3, 3, 2), {"leaky": True}),
    "one_leaky_parent": ((3, 3), (3, 3), (5, 2, 1, 6), {"leaky": True}),
    "once": ((4, 3), (2, 3), (3, 2, 4, 3), {"iterations": 1}),
    "five_times": ((3, 3), (2, 1), (3, 2, 2, 3), {"iterations": 5, "leaky": True}),
    "image_own": ((4, 5), (3, 3), (3, 2, 3, 4), {"own": True, "padding": "SAME"}),
    "image_transposed": (
        *((3, 4), (4, 3), (2, 3, 3, 5)),
        {"transposed": True, "strides": (2, 1), "padding": "SAME"},
    ),
    "image_transposed_gaps": (
        *((3, 2), (1, 2), (2, 2, 3, 3)),
        {"transposed": True, "strides": (3, 2), "own": True, "leaky": True},
    ),
    "volume": ((5, 4, 4), (3, 2, 3), (2, 3, 3, 4), {"strides": (2, 1, 1)}),
    "volume_own_same": (
        *((3, 2, 4), (2, 3, 2), (3, 2, 2, 3)),
        {"own": True, "padding": "SAME", "dilations": (1, 2, 1), "leaky": True},
    ),
    "volume_transposed": (
        *((2, 3, 2), (3, 2, 3), (2, 2, 3, 2)),
        {"transposed": True, "strides": (2, 2, 1), "padding": "SAME"},
    ),
    "volume_transposed_own": (
        *((2, 1, 3), (2, 2, 1), (3, 2, 2, 3)),
        {"transposed": True, "strides": (1, 2, 2), "own": True},
    ),
}
every_case = pytest.mark.parametrize("name", _CASES)
both = pytest.mark.parametrize("portable", [False, True], ids=["library", "tensorflow"])


def _drawn(name):
    """Returns float64 arrays of the four operands, and attributes."""
    image, kernel, (types, in_dim, parents, out_dim), given = _CASES[name]
    attributes = {"iterations": 3, **given}
    own = (types,) if attributes.pop("own", False) else ()
    random = np.random.default_rng(3)
    shapes = (
        (2, *image, types, in_dim),
        (*kernel, *own, in_dim, parents, out_dim),
        (parents, out_dim),
        (types, parents),
    )
    return [random.uniform(-1, 1, shape) for shape in shapes], attributes


def _of_reference(image, attributes):
    """Returns attributes as the reference takes them."""
    sizes = {
        name: np.broadcast_to(attributes.get(name, 1), len(image)).tolist()
        for name in ("strides", "dilations")
    }
    return {**attributes, **sizes}


def _results(*tensors, **attributes):
    """Returns the parents and the gradients of all operands."""
    grad, *operands = tensors
    with tf.GradientTape() as tape:
        tape.watch(operands)
        outputs = capsule_conv_routing(*operands, **attributes)
    return [outputs, *tape.gradient(outputs, operands, grad)]


def _way(portable):
    return tf_capsops.portable() if portable else contextlib.nullcontext()


def _with_grad(arrays, attributes, image):
    shape = reference.forward(*arrays, **_of_reference(image, attributes)).shape
    return [np.random.default_rng(4).uniform(-1, 1, shape), *arrays]


@every_dtype
@every_case
def test_values_and_gradients(name, dtype, device):
    """They are as exact as those of TensorFlow's own ops."""
    arrays, attributes = _drawn(name)
    image = _CASES[name][0]
    tensors = [
        tf.constant(each, dtype) for each in _with_grad(arrays, attributes, image)
    ]
    ours = call(_results, *tensors, **attributes)
    assert {each.dtype for each in ours} == {dtype}
    grad, *arrays = exact(tensors)
    attributes_of = _of_reference(image, attributes)
    truth = [reference.forward(*arrays, **attributes_of)]
    magnitude = [np.ones_like(truth[0])]  # parents are shorter than one
    truth += reference.backward(grad, *arrays, **attributes_of)
    magnitude += reference.backward_magnitude(grad, *arrays, **attributes_of)

    def plain():
        with tf_capsops.portable():
            return _results(*tensors, **attributes)

    assert_all_close(ours, plain, truth, magnitude)


@every_case
def test_definition_in_tensorflows_ops(name, device):
    arrays, attributes = _drawn(name)
    image = _CASES[name][0]
    tensors = _with_grad(arrays, attributes, image)
    with tf_capsops.portable():
        found = call(_results, *map(tf.constant, tensors), **attributes)
    attributes_of = _of_reference(image, attributes)
    truth = [reference.forward(*arrays, **attributes_of)]
    truth += reference.backward(*tensors, **attributes_of)
    for result, expected in zip(found, truth, strict=True):
        np.testing.assert_allclose(result, expected, rtol=0, atol=1e-12)


@every_dtype
def test_types_of_tensorflows_ops(dtype, device):
    """All is computed in float32 at least and rounded once."""
    arrays, attributes = _drawn("image")
    tensors = [tf.constant(each, dtype) for each in arrays]
    with tf_capsops.portable():
        result = capsule_conv_routing(*tensors, **attributes)
    assert result.dtype == dtype
    attributes = _of_reference(_CASES["image"][0], attributes)
    truth = reference.forward(*exact(tensors), **attributes)
    close = ulp(dtype.as_numpy_dtype) + 64 * ulp(np.float32) * (dtype != tf.float64)
    close += 64 * ulp(np.float64)
    np.testing.assert_allclose(
        tf.cast(result, tf.float64), truth, rtol=0, atol=close * np.abs(truth).max()
    )


@both
@every_case
def test_gradients_are_finite_differences(name, portable, device):
    arrays, attributes = _drawn(name)

    @tf.function(autograph=False)  # calls of a graph take less time
    def compute(*operands):
        return capsule_conv_routing(*operands, **attributes)

    with _way(portable):
        finite_differences.assert_gradients_agree(compute, arrays)


@both
@pytest.mark.parametrize("name", ["line", "image_own", "volume_transposed"])
def test_xla(name, portable, device):
    """It changes no bit of ours."""
    arrays, attributes = _drawn(name)
    tensors = [
        tf.constant(each, tf.float32)
        for each in _with_grad(arrays, attributes, _CASES[name][0])
    ]
    compute = functools.partial(_results, **attributes)
    with _way(portable):
        compiled, graph = (
            tf.function(compute, autograph=False, jit_compile=jit)(*tensors)
            for jit in (True, False)
        )
    for result, expected in zip(compiled, graph, strict=True):
        np.testing.assert_allclose(
            result, expected, rtol=0, atol=1e-5 if portable else 0
        )


@both
@every_case
def test_sizes_that_are_unknown(name, portable, device):
    arrays, attributes = _drawn(name)
    (inputs, *others), axes = map(tf.constant, arrays), len(_CASES[name][0])
    unknown = [None] * (axes + 1) + inputs.shape.as_list()[axes + 1 :]

    def compute(each):
        each = tf.raw_ops.PlaceholderWithDefault(input=each, shape=unknown)
        return capsule_conv_routing(each, *others, **attributes)

    with _way(portable):
        expected = capsule_conv_routing(inputs, *others, **attributes)
        result = tf.function(compute, autograph=False)(inputs)
    np.testing.assert_allclose(result, expected, rtol=0, atol=1e-14)


@both
def test_a_rank_that_is_unknown_is_that_of_images(portable, device):
    arrays, attributes = _drawn("line")
    line = functools.partial(capsule_conv_routing, **attributes)
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
            (functools.partial(line, strides=[2], dilations=[2]), arrays),
            (capsule_conv_routing, image),
        ):
            found = of_unknown_rank(compute, *map(tf.constant, operands))
            np.testing.assert_allclose(found, compute(*operands), atol=1e-14)


@both
@pytest.mark.parametrize("given", itertools.product([False, True], repeat=2))
def test_none_is_zeros(given, portable, device):
    (inputs, weights, *others), attributes = _drawn("image_leaky")
    tensors = [tf.constant(each) for each in (inputs, weights, *others)]
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
