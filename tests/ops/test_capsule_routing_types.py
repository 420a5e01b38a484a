# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""CapsuleRouting's ops: the type of their sums, and the op without them."""

import pytest
import tensorflow as tf
from frames import both_ways, call, traced
from registrations import SUMS_OF, bare, refusal
from tensorflow.core.framework import types_pb2

import tf_capsops

NAMES = {number: types_pb2.DataType.Name(number)[3:].lower() for number in SUMS_OF}


def _zeros(dtype):
    return [tf.zeros(shape, dtype) for shape in ((2, 3, 6), (3, 4, 5, 6), (3, 4))]


@both_ways
@pytest.mark.parametrize(
    "dtype, sums",
    [(t, u) for t, right in SUMS_OF.items() for u in (1, 2) if u != right],
)
def test_sums_of_another_type_are_refused(dtype, sums, way, device):
    """In a graph with what is wrong, and else by the list of what there is."""
    grad, operands = tf.zeros((2, 4, 5), dtype), _zeros(dtype)
    given = tf.zeros((1, 2, 4, 5), sums)
    ops = bare()
    for op, compute in {
        "CapsuleRouting": lambda: ops.capsule_routing_with_sums(*operands, U=sums),
        "CapsuleRoutingGrad": lambda: ops.capsule_routing_grad(grad, *operands, given),
        "CapsuleRoutingCoefficients": lambda: ops.capsule_routing_coefficients(
            *operands, given
        ),
    }.items():
        text = refusal(compute, way)
        right, wrong, of = (NAMES[number] for number in (SUMS_OF[dtype], sums, dtype))
        if way is traced:
            required = f"U (the type of sums) must be {right} where T is {of}"
            assert text.startswith(f"{op}: {required}, got {wrong} for ")
        else:
            assert f"U in [DT_{right.upper()}]" in text


def test_bare_op_returns_one_tensor(device):
    operands = [tf.random.uniform(zeros.shape) for zeros in _zeros(tf.float32)]
    output = call(bare().capsule_routing, *operands)
    assert tf.reduce_all(output == call(tf_capsops.capsule_routing, *operands))
    assert output.shape == (2, 4, 5)
