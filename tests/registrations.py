# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Checks an op's registered types, kernels and documentation, and types refused."""

import re

import pytest
import tensorflow as tf
from tensorflow.python.framework import kernels, op_def_registry

import tf_capsops
from tf_capsops import _library

ALLOWED = "float32, float64, float16, bfloat16|float, double, half, bfloat16"

both_ways = pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])


def bare():
    """Returns the generated wrappers of all ops."""
    return tf.load_op_library(tf_capsops.library_path())


def refusal(compute, graph):
    """Returns the text with which a function that mixes types up is refused."""
    refusals = (TypeError, ValueError, tf.errors.OpError)
    with pytest.raises(refusals) as caught:
        tf.function(compute, autograph=False)() if graph else compute()
    return str(caught.value)


def assert_kernels_are_those_of_the_dtype_list(op, host_memory):
    """`host_memory` are the inputs that a kernel reads itself, whatever its device."""
    _library.load()
    (attr,) = (a for a in op_def_registry.get(op).attr if a.name == "T")
    listed = sorted(attr.allowed_values.list.type)
    names = {tf.as_dtype(number).name for number in listed}
    assert names == {"float32", "float64", "float16", "bfloat16"}
    registered = {}
    for kernel in kernels.get_registered_kernels_for_op(op).kernel:
        (constraint,) = kernel.constraint
        assert constraint.name == "T"
        assert list(kernel.host_memory_arg) == host_memory
        types = registered.setdefault(kernel.device_type, [])
        types += constraint.allowed_values.list.type
    devices = ["CPU", "GPU"] if _library.build_info()["cuda"] else ["CPU"]
    assert {d: sorted(types) for d, types in registered.items()} == {
        device: listed for device in devices
    }


def assert_documented(op, wrapper, attributes):
    """The generated wrapper shows a summary, and each argument."""
    documentation = getattr(bare(), wrapper).__doc__
    arguments = documentation.partition("Args:")[2]
    for argument in op_def_registry.get(op).input_arg:
        described = rf"^ *{argument.name}: A `Tensor`.*\n? *[A-Z][^:]*\[.*\]\.$"
        assert re.search(described, arguments, re.MULTILINE), argument.name
    for name in attributes:
        described = rf"^ *{name}: An optional .*\n? *[A-Z].*\.$"
        assert re.search(described, arguments, re.MULTILINE), name
    assert re.match(r"[A-Z].*\.$", documentation.splitlines()[0])
