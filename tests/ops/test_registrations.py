# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""What TensorFlow knows of the ops: types of their kernels, memory, documentation."""

import re

import pytest
import tensorflow as tf
from registrations import SUMS_OF, bare, snake_case
from tensorflow.python.framework import kernels, op_def_registry

from tf_capsops import _library

# The inputs that a kernel reads itself, whatever its device.
HOST_MEMORY = {
    "CapsulePrediction": [],
    "CapsulePredictionGrad": [],
    "CapsuleRouting": [],
    "CapsuleRoutingWithSums": [],
    "CapsuleRoutingGrad": [],
    "CapsuleRoutingCoefficients": [],
    "InqCapsuleRouting": [],
    "CapsuleConv": [],
    "CapsuleConvBiasRelu": [],
    "CapsuleConvBackpropInput": ["input_sizes"],
    "CapsuleConvBackpropWeights": ["weight_sizes"],
    "CapsuleConvRouting": [],
    "CapsuleConvRoutingGrad": [],
    "HighOrderConv": [],
    "HighOrderConvGrad": [],
    "CapsuleMoments": [],
    "CapsuleMomentsGrad": [],
    "CapsuleMomentShares": [],
    "InqConv": ["top_exponent"],
    "InqConvBackpropInput": ["input_sizes", "top_exponent"],
    "InqConvInt8": ["zero_point"],
    "InqDecode": [],
}

every_op = pytest.mark.parametrize("op", HOST_MEMORY)


def _definition(op):
    _library.load()
    return op_def_registry.get(op)


@every_op
def test_kernels_are_those_of_the_dtype_list(op):
    attributes = {attr.name: attr for attr in _definition(op).attr}
    assert sorted(attributes["T"].allowed_values.list.type) == sorted(SUMS_OF)
    registered = {}
    for kernel in kernels.get_registered_kernels_for_op(op).kernel:
        if kernel.device_type.startswith("XLA"):
            continue
        types = {c.name: tuple(c.allowed_values.list.type) for c in kernel.constraint}
        assert list(kernel.host_memory_arg) == HOST_MEMORY[op]
        registered.setdefault(kernel.device_type, []).append(types)
    wide = [name for name in ("U", "S") if name in attributes]
    listed = [
        {"T": (dtype,), **dict.fromkeys(wide, (sums,))}
        for dtype, sums in SUMS_OF.items()
    ]
    devices = ["CPU", "GPU"] if _library.build_info()["cuda"] else ["CPU"]
    assert set(registered) == set(devices)
    for types in registered.values():
        assert sorted(types, key=str) == sorted(listed, key=str)


@every_op
def test_xla_has_kernels_of_all_types(op):
    tf.function(
        lambda: tf.ones([]) + 1, jit_compile=True
    )()  # makes TensorFlow list them
    with_gpu = bool(_library.build_info()["cuda"])
    devices = ["XLA_CPU_JIT"] + ["XLA_GPU_JIT"] * with_gpu
    found = {}
    for kernel in kernels.get_registered_kernels_for_op(op).kernel:
        if kernel.device_type in devices:
            types = {
                each.name: each.allowed_values.list.type for each in kernel.constraint
            }
            found[kernel.device_type] = sorted(types["T"])
    assert found == {device: sorted(SUMS_OF) for device in devices}


@every_op
def test_op_is_documented(op):
    """The generated wrapper shows a summary, each input's shape and each attribute."""
    documentation = getattr(bare(), snake_case(op)).__doc__
    arguments = documentation.partition("Args:")[2]
    patterns = [
        rf"^ *{argument.name}: A `Tensor`.*\n? *[A-Z][^:]*\[.*\]\.$"
        for argument in _definition(op).input_arg
    ]
    for attr in _definition(op).attr:
        if attr.name not in ("T", "U", "S"):
            start = "An optional" if attr.HasField("default_value") else "An?"
            patterns.append(rf"^ *{attr.name}: {start} .*\n? *[A-Z].*\.$")
    for pattern in patterns:
        assert re.search(pattern, arguments, re.MULTILINE), pattern
    assert re.match(r"[A-Z].*\.$", documentation.splitlines()[0])
