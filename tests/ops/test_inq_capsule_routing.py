# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""InqCapsuleRouting: the results of decoded weights, gradients, and what it refuses."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from descriptions import DTYPES
from frames import call
from reference import inq
from refusals import at_once_or_by_shape, every_way, mismatch
from registrations import bare

import tf_capsops
from tf_capsops import kernels
from tf_capsops.layers import DigitCaps
from tf_capsops.ops.inq_capsule_routing import inq_capsule_routing

# Batch, in_caps, out_caps, out_dim and in_dim. Around sizes of vectors and of chunks
# of input capsules, with and without lanes for weights. In the last but one, a chunk
# has too many weights for a task to decode. The last one has too large a u_hat to keep.
_SHAPES = [(1, 70, 10, 16, 8), (3, 300, 3, 5, 4), (5, 33, 4, 7, 9), (40, 70, 10, 16, 8)]
_SHAPES += [(0, 3, 2, 4, 5), (2, 0, 3, 4, 5), (2, 3, 0, 4, 5), (2, 3, 4, 0, 5)]
_SHAPES += [(2, 3, 4, 5, 0), (9, 70, 10, 16, 8), (1, 33, 40, 60, 40)]
_SHAPES += [(5, 2000, 10, 16, 2)]


def _operands(shape, dtype, bits, seed=0):
    """Returns inputs, codes, a top exponent, logits and the decoded weights."""
    batch, in_caps, out_caps, out_dim, in_dim = shape
    rng = np.random.default_rng(seed)
    codes = rng.integers(
        0, 2 ** (bits - 1), (in_caps, out_caps, out_dim, in_dim), np.uint8, True
    )
    numbers = [
        rng.normal(size=(batch, in_caps, in_dim)),
        rng.normal(size=(in_caps, out_caps)),
        inq.decode(codes, bits, -2),
    ]
    inputs, logits, weights = (tf.cast(each, dtype) for each in numbers)
    return inputs, tf.constant(codes), tf.constant(-2, tf.int64), logits, weights


@pytest.mark.parametrize("bits", [3, 5, 7])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("shape", _SHAPES, ids=str)
def test_outputs_are_those_of_decoded_weights(shape, dtype, bits, device):
    *operands, logits, weights = _operands(shape, dtype, bits)
    for iterations in (1, 3):
        found = call(inq_capsule_routing, *operands, logits, bits, iterations)
        expected = call(
            tf_capsops.capsule_routing, operands[0], weights, logits, iterations
        )
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("shape", _SHAPES[:4], ids=str)
def test_gradients_are_those_of_decoded_weights(shape, device):
    inputs, codes, top, logits, weights = _operands(shape, tf.float32, 4)

    def gradients(route):
        with tf.GradientTape() as outer:
            outer.watch((inputs, logits))
            with tf.GradientTape() as tape:
                tape.watch((inputs, logits))
                loss = tf.reduce_sum(route(inputs, logits) ** 3)
            first = tape.gradient(loss, (inputs, logits))
            loss = tf.add_n([tf.reduce_sum(each**2) for each in first])
        return *first, *outer.gradient(loss, (inputs, logits))

    found = gradients(lambda x, b: inq_capsule_routing(x, codes, top, b, 4, 3))
    expected = gradients(lambda x, b: tf_capsops.capsule_routing(x, weights, b, 3))
    for each in zip(found, expected, strict=True):
        np.testing.assert_array_equal(*each)


@pytest.mark.parametrize(
    "shape", [(1, 70, 3, 4, 5), (40, 70, 3, 4, 5), (0, 70, 3, 4, 5)], ids=str
)
def test_a_code_past_the_book_is_refused_on_cpu(shape):
    inputs, codes, top, logits, _ = _operands(shape, tf.float32, 4)
    wrong = codes.numpy()
    wrong[41, 2, 3, 4], wrong[69, 0, 0, 0] = 9, 255
    text = r"InqCapsuleRouting: codes\[41,2,3,4\] must be at most 8 \(bits 4\), got 9"
    with tf.device("CPU:0"), pytest.raises(tf.errors.InvalidArgumentError, match=text):
        call(inq_capsule_routing, inputs, tf.constant(wrong), top, logits, 4, 3)


def _zeros(inputs=(2, 3, 5), codes=(3, 4, 6, 5), top=(), logits=(3, 4)):
    return (
        tf.zeros(inputs),
        tf.zeros(codes, tf.uint8),
        tf.zeros(top, tf.int64),
        tf.zeros(logits),
    )


_BAD = [
    (
        _zeros(inputs=(2, 3)),
        "input must have rank 3 [batch, in_caps, in_dim], got [2,3]",
    ),
    (
        _zeros(codes=(3, 4, 6)),
        "codes must have rank 4 [in_caps, out_caps, out_dim, in_dim], got [3,4,6]",
    ),
    (_zeros(codes=(7, 4, 6, 5)), mismatch("codes", 0, "in_caps", 3, (7, 4, 6, 5))),
    (_zeros(codes=(3, 4, 6, 7)), mismatch("codes", 3, "in_dim", 5, (3, 4, 6, 7))),
    (_zeros(top=(1,)), "top_exponent must have rank 0 [], got [1]"),
    (_zeros(logits=(3, 7)), mismatch("logits", 1, "out_caps", 4, (3, 7))),
]


@every_way
@pytest.mark.parametrize("operands, text", _BAD, ids=lambda each: str(each)[:20])
def test_operands_that_do_not_fit(operands, text, assert_refused, device):
    compute = functools.partial(bare().inq_capsule_routing, U=tf.float32)
    assert_refused(compute, operands, f"InqCapsuleRouting: {text}")


@at_once_or_by_shape
@pytest.mark.parametrize("bits", [1, 9, 0])
def test_bits_that_do_not_exist(bits, assert_refused, device):
    compute = functools.partial(bare().inq_capsule_routing, U=tf.float32, bits=bits)
    text = f"InqCapsuleRouting: bits must be from 2 to 8, got {bits}"
    assert_refused(compute, _zeros(), text)


@pytest.mark.parametrize(
    "arguments", [{}, {"per_channel": True}, {"share_weights": True}]
)
@pytest.mark.parametrize("dtype", ["float32", "float64", "mixed_bfloat16"])
def test_the_layer_computes_as_with_decoded_weights(dtype, arguments, device):
    options = {"dtype": dtype, "logits_trainable": True, **arguments}
    layer = DigitCaps(4, 6, bits=5, **options)
    numbers = DigitCaps(4, 6, **{**options, "per_channel": False})
    for each in (layer, numbers):
        each.build((None, 20, 5))
    numbers.set_weights([layer.kernel, layer.logits])
    inputs = tf.random.stateless_normal((3, 20, 5), (1, 2), dtype=layer.compute_dtype)
    mask = tf.constant([[True] * 13 + [False] * 7] * 3)
    results = []
    for each in (layer, numbers):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = each(inputs, mask=mask)
        grads = tape.gradient(outputs, (inputs, each.logits.value))
        results.append((outputs, *grads, each.coefficients(inputs, mask)))
    for found in zip(*results, strict=True):
        np.testing.assert_array_equal(*found)
    with tf_capsops.portable():
        tolerance = 1e-2 if dtype == "mixed_bfloat16" else 1e-5
        found = tf.cast(layer(inputs, mask=mask), tf.float64)
    expected = tf.cast(results[0][0], tf.float64)
    np.testing.assert_allclose(found, expected, atol=tolerance)


@pytest.mark.parametrize(
    "arguments, codes",
    [
        ({}, True),
        ({"per_channel": True}, False),
        ({"share_weights": True}, False),
        ({"routing_bits": 8}, False),
    ],
)
def test_the_layer_routes_codes_of_one_book(arguments, codes, device):
    layer = DigitCaps(4, 6, bits=5, **arguments)
    with kernels.recorded() as ran:
        layer(tf.ones((3, 20, 5)))
    assert any(op == "InqCapsuleRouting" for op, *_ in ran) == codes
