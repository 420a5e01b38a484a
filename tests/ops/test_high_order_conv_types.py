# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""HighOrderConv's ops: dtypes refused, kernels registered, names and documentation."""

import re

import pytest
import tensorflow as tf
from tensorflow.python.framework import kernels, op_def_registry

import tf_capsops
from tf_capsops import _library

WRAPPERS = {
    "HighOrderConv": "high_order_conv",
    "HighOrderConvGrad": "high_order_conv_grad",
}
ALLOWED = "float32, float64, float16, bfloat16|float, double, half, bfloat16"

every_op = pytest.mark.parametrize("op", WRAPPERS)
both_ways = pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])


def _zeros(dtype, other=None):
    return tf.zeros((2, 3, 4, 2), dtype), tf.zeros((2, 3, 4, 9), other or dtype)


def _refusal(compute, graph):
    """Returns the text with which a function that mixes types up is refused."""
    refusals = (TypeError, ValueError, tf.errors.OpError)
    with pytest.raises(refusals) as caught:
        tf.function(compute, autograph=False)() if graph else compute()
    return str(caught.value)


@both_ways
@pytest.mark.parametrize("dtype", [tf.int32, tf.uint8, tf.bool, tf.complex64])
def test_other_dtypes_are_refused(dtype, graph, device):
    text = _refusal(lambda: tf_capsops.high_order_conv2d(*_zeros(dtype), 3), graph)
    assert re.search(ALLOWED, text)


@both_ways
def test_mixed_dtypes_are_refused(graph, device):
    operands = _zeros(tf.float32, tf.float64)
    text = _refusal(lambda: tf_capsops.high_order_conv2d(*operands, 3), graph)
    assert re.search("float32|float", text) and re.search("float64|double", text)


@every_op
def test_kernels_are_those_of_the_dtype_list(op):
    _library.load()
    (attr,) = (a for a in op_def_registry.get(op).attr if a.name == "T")
    listed = sorted(attr.allowed_values.list.type)
    names = {tf.as_dtype(number).name for number in listed}
    assert names == {"float32", "float64", "float16", "bfloat16"}
    registered = {}
    for kernel in kernels.get_registered_kernels_for_op(op).kernel:
        (constraint,) = kernel.constraint
        assert constraint.name == "T"
        assert not kernel.host_memory_arg
        types = registered.setdefault(kernel.device_type, [])
        types += constraint.allowed_values.list.type
    devices = ["CPU", "GPU"] if _library.build_info()["cuda"] else ["CPU"]
    assert {d: sorted(types) for d, types in registered.items()} == {
        device: listed for device in devices
    }


@every_op
def test_op_is_documented(op):
    """The generated wrapper shows a summary, and each argument."""
    bare = tf.load_op_library(tf_capsops.library_path())
    documentation = getattr(bare, WRAPPERS[op]).__doc__
    arguments = documentation.partition("Args:")[2]
    for argument in op_def_registry.get(op).input_arg:
        described = rf"^ *{argument.name}: A `Tensor`.*\n? *[A-Z][^:]*\[.*\]\.$"
        assert re.search(described, arguments, re.MULTILINE), argument.name
    described = r"^ *kernel_size: A list of `ints`\.\n? *[A-Z].*\.$"
    assert re.search(described, arguments, re.MULTILINE)
    for name in ("dilations", "groups", "data_format"):
        described = rf"^ *{name}: An optional .*\n? *[A-Z].*\.$"
        assert re.search(described, arguments, re.MULTILINE), name
    assert re.match(r"[A-Z].*\.$", documentation.splitlines()[0])


def test_attributes_have_defaults(device):
    bare = tf.load_op_library(tf_capsops.library_path())
    operands = [tf.random.uniform(t.shape) for t in _zeros(tf.float32)]
    output = bare.high_order_conv(*operands, kernel_size=[3, 3])
    given = {"groups": 1, "dilations": [1, 1], "data_format": "NHWC"}
    for same in (
        bare.high_order_conv(*operands, kernel_size=[3, 3], **given),
        tf_capsops.high_order_conv2d(*operands, 3),
    ):
        assert tf.reduce_all(output == same)


def test_the_size_of_the_kernel_has_no_default():
    bare = tf.load_op_library(tf_capsops.library_path())
    with pytest.raises(TypeError, match="kernel_size"):
        bare.high_order_conv(*_zeros(tf.float32))
    with pytest.raises(TypeError, match="kernel_size"):
        tf_capsops.high_order_conv2d(*_zeros(tf.float32))


def test_name_is_the_ops_name():
    with tf.Graph().as_default():
        output = tf_capsops.high_order_conv2d(*_zeros(tf.float32), 3, name="smooth")
    assert (output.op.name, output.op.type) == ("smooth", "HighOrderConv")
