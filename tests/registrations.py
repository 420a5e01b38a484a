# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The ops' generated wrappers, their types and names, and what they refuse."""

import functools
import re

import pytest
import tensorflow as tf
from tensorflow.core.framework import types_pb2

import tf_capsops

# The types of all ops, and those in which routing keeps sums and statistics.
SUMS_OF = {
    types_pb2.DT_FLOAT: types_pb2.DT_FLOAT,
    types_pb2.DT_DOUBLE: types_pb2.DT_DOUBLE,
    types_pb2.DT_HALF: types_pb2.DT_FLOAT,
    types_pb2.DT_BFLOAT16: types_pb2.DT_FLOAT,
}


@functools.cache  # TensorFlow would write and compile the wrappers again
def bare():
    """Returns the generated wrappers of all ops."""
    return tf.load_op_library(tf_capsops.library_path())


def snake_case(op):
    """Returns an op's name as Python has it."""
    return re.sub("(?<=[a-z])(?=[A-Z])", "_", op).lower()


def refusal(compute, way):
    """Returns the text with which types or attributes that do not fit are refused."""
    refusals = (TypeError, ValueError, tf.errors.OpError)
    with pytest.raises(refusals) as caught:
        way(compute)()
    return str(caught.value)
