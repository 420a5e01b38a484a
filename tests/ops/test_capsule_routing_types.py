# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""CapsuleRouting's ops: dtypes refused, kernels registered, names and documentation."""

import re

import pytest
import tensorflow as tf
from tensorflow.core.framework import types_pb2
from tensorflow.python.framework import kernels, op_def_registry

import tf_capsops
from tf_capsops import _library

SUMS_OF = {
    types_pb2.DT_FLOAT: types_pb2.DT_FLOAT,
    types_pb2.DT_DOUBLE: types_pb2.DT_DOUBLE,
    types_pb2.DT_HALF: types_pb2.DT_FLOAT,
    types_pb2.DT_BFLOAT16: types_pb2.DT_FLOAT,
}
NAMES = {number: types_pb2.DataType.Name(number)[3:].lower() for number in SUMS_OF}
WRAPPERS = {
    "CapsuleRouting": "capsule_routing",
    "CapsuleRoutingWithSums": "capsule_routing_with_sums",
    "CapsuleRoutingGrad": "capsule_routing_grad",
    "CapsuleRoutingCoefficients": "capsule_routing_coefficients",
}
ALLOWED = "float32, float64, float16, bfloat16|float, double, half, bfloat16"

every_op = pytest.mark.parametrize("op", WRAPPERS)
both_ways = pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])


def _zeros(dtype):
    return [tf.zeros(shape, dtype) for shape in ((2, 3, 6), (3, 4, 5, 6), (3, 4))]


def _refusal(compute, graph):
    """Returns the text with which a function that mixes types up is refused."""
    refusals = (TypeError, ValueError, tf.errors.OpError)
    with pytest.raises(refusals) as caught:
        tf.function(compute, autograph=False)() if graph else compute()
    return str(caught.value)


@both_ways
@pytest.mark.parametrize("function", ["capsule_routing", "routing_coefficients"])
@pytest.mark.parametrize("dtype", [tf.int32, tf.uint8, tf.bool, tf.complex64])
def test_other_dtypes_are_refused(dtype, function, graph, device):
    compute = getattr(tf_capsops, function)
    assert re.search(ALLOWED, _refusal(lambda: compute(*_zeros(dtype)), graph))


@both_ways
@pytest.mark.parametrize("other", [0, 1, 2])
def test_mixed_dtypes_are_refused(other, graph, device):
    def compute():
        operands = _zeros(tf.float32)
        operands[other] = tf.cast(operands[other], tf.float64)
        return tf_capsops.capsule_routing(*operands)

    text = _refusal(compute, graph)
    assert re.search("float32|float", text) and re.search("float64|double", text)


@both_ways
@pytest.mark.parametrize(
    "dtype, sums",
    [(t, u) for t, right in SUMS_OF.items() for u in (1, 2) if u != right],
)
def test_sums_of_another_type_are_refused(dtype, sums, graph, device):
    """In a graph with what is wrong, and else by the list of what there is."""
    bare = tf.load_op_library(tf_capsops.library_path())
    grad, operands = tf.zeros((2, 4, 5), dtype), _zeros(dtype)
    given = tf.zeros((1, 2, 4, 5), sums)
    for op, compute in {
        "CapsuleRouting": lambda: bare.capsule_routing_with_sums(*operands, U=sums),
        "CapsuleRoutingGrad": lambda: bare.capsule_routing_grad(grad, *operands, given),
        "CapsuleRoutingCoefficients": lambda: bare.capsule_routing_coefficients(
            *operands, given
        ),
    }.items():
        text = _refusal(compute, graph)
        right, wrong, of = (NAMES[number] for number in (SUMS_OF[dtype], sums, dtype))
        if graph:
            required = f"U (the type of sums) must be {right} where T is {of}"
            assert text.startswith(f"{op}: {required}, got {wrong} for ")
        else:
            assert f"U in [DT_{right.upper()}]" in text


@every_op
def test_kernels_are_those_of_the_dtype_list(op):
    _library.load()
    (attr,) = (a for a in op_def_registry.get(op).attr if a.name == "T")
    assert sorted(attr.allowed_values.list.type) == sorted(SUMS_OF)
    registered = {}
    for kernel in kernels.get_registered_kernels_for_op(op).kernel:
        types = {c.name: tuple(c.allowed_values.list.type) for c in kernel.constraint}
        registered.setdefault(kernel.device_type, []).append(types)
    listed = [
        {"T": (dtype,)} | ({} if op == "CapsuleRouting" else {"U": (sums,)})
        for dtype, sums in SUMS_OF.items()
    ]
    devices = ["CPU", "GPU"] if _library.build_info()["cuda"] else ["CPU"]
    assert set(registered) == set(devices)
    for types in registered.values():
        assert sorted(types, key=str) == sorted(listed, key=str)


@every_op
def test_op_is_documented(op):
    """The generated wrapper shows a summary, and each input with its shape."""
    bare = tf.load_op_library(tf_capsops.library_path())
    documentation = getattr(bare, WRAPPERS[op]).__doc__
    arguments = documentation.partition("Args:")[2]
    for argument in op_def_registry.get(op).input_arg:
        described = rf"^ *{argument.name}: A `Tensor`.*\n? *[A-Z][^:]*\[.*_.*\]\.$"
        assert re.search(described, arguments, re.MULTILINE), argument.name
    for attribute in op_def_registry.get(op).attr:
        if attribute.name not in ("T", "U"):
            assert re.search(rf"^ *{attribute.name}: An? .*\n", arguments, re.MULTILINE)
    assert re.match(r"[A-Z].*\.$", documentation.splitlines()[0])


def test_bare_op_returns_one_tensor(device):
    bare = tf.load_op_library(tf_capsops.library_path())
    operands = [
        tf.cast(tf.random.uniform(t.shape), t.dtype) for t in _zeros(tf.float32)
    ]
    output = bare.capsule_routing(*operands)
    assert tf.reduce_all(output == tf_capsops.capsule_routing(*operands))
    assert output.shape == (2, 4, 5)


def test_name_is_the_ops_name():
    with tf.Graph().as_default():
        operands = _zeros(tf.float32)
        output = tf_capsops.capsule_routing(*operands, name="caps")
        coefficients = tf_capsops.routing_coefficients(*operands, name="shares")
    assert (output.op.name, output.op.type) == ("caps", "CapsuleRoutingWithSums")
    assert (coefficients.op.name, coefficients.op.type) == (
        "shares",
        "CapsuleRoutingCoefficients",
    )
