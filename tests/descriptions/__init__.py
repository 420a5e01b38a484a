# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Says of each op what the tests that all ops share need to know.

Each op has one file here that defines `OP`: its suite of cases, NumPy reference and
yardstick. The tests themselves are in `ops/test_every_op`, `paths` and `robustness`.
"""

import dataclasses
import functools
import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence

import frames
import numpy as np
import pytest
import tensorflow as tf
from registrations import snake_case
from tolerances import assert_close

from tf_capsops.bench import cases

DTYPES = [tf.float32, tf.float64, tf.float16, tf.bfloat16]

every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
half_types = pytest.mark.parametrize("dtype", DTYPES[2:], ids=lambda dtype: dtype.name)


def exact(tensors):
    """Returns tensors as arrays, those of real numbers in float64."""
    return [
        tensor.numpy().astype(np.float64)
        if tensor.dtype.is_floating
        else tensor.numpy()
        for tensor in tensors
    ]


def rounded_to_tf32(tensors):
    """Rounds float32 tensors to the 11 significant bits of TensorFloat-32."""
    return [
        tf.constant(((t.numpy().view(np.int32) + 0x1000) & ~0x1FFF).view(np.float32))
        if t.dtype == tf.float32
        else t
        for t in tensors
    ]


def _of_absolute_values(reference):
    return lambda *arrays, **attributes: reference(*map(np.abs, arrays), **attributes)


@dataclasses.dataclass(frozen=True)
class Description:
    """What the shared tests need to know about one op.

    "Tensors" are the gradient of the output and the op's inputs, in this order, and
    "results" the output and the gradients of the inputs that have any.

    Attributes:
        suite: The op's cases, and how to draw tensors for them.
        plain: The yardstick, plain TensorFlow: from inputs and attributes to output.
        reference: From float64 arrays of tensors, and attributes, to the results.
        magnitude: From the same to the sums of the terms' absolute values.
        frames: Names of cases by what is tried with them, in `ops/test_every_op`.
        positive: From tensors to those of which all products are positive.
    """

    suite: cases.OpSuite
    plain: Callable
    reference: Callable
    magnitude: Callable = None
    frames: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    positive: Callable = lambda tensors: [*map(tf.abs, tensors)]

    def __post_init__(self):
        if self.magnitude is None:
            object.__setattr__(self, "magnitude", _of_absolute_values(self.reference))

    @property
    def name(self):
        """The op's name as files have it, such as "capsule_conv"."""
        return snake_case(self.suite.op)

    def cases(self, use):
        """Parametrizes `case` with all for one use."""
        return pytest.mark.parametrize("case", self.suite.select(use), ids=str)

    @property
    def empty(self):
        """Names of the cases with a dimension of 0."""
        found = self.suite.select(cases.CORRECTNESS)
        return [case.name for case in found if 0 in case.sizes.values()]

    def case(self, name):
        """Returns the case of a name."""
        (case,) = (case for case in self.suite.cases if case.name == name)
        return case

    def draw(self, case, dtype):
        """Returns the same random tensors each time."""
        rng = np.random.default_rng(0)
        arrays = [
            rng.uniform(-1, 1, self.suite.output_shape(case)),
            *self.suite.draw(case, rng),
        ]
        real = len(arrays) if self.suite.sources is None else 1 + self.suite.sources
        return [
            *(tf.cast(array, dtype) for array in arrays[:real]),
            *map(tf.constant, arrays[real:]),
        ]

    def results(self, compute, grad, *inputs):
        """Returns the output of `compute` and the gradients of its inputs."""
        sources = inputs[: self.suite.sources]
        with tf.GradientTape() as tape:
            tape.watch(sources)
            output = compute(*inputs)
        return output, *tape.gradient(output, sources, grad)

    def ours(self, case, tensors):
        """Returns the results of the op itself."""
        compute = functools.partial(self.results, case.bind(self.suite.ours))
        return frames.call(compute, *tensors)

    def assert_close_to_reference(self, case, tensors, yardstick=None, results=None):
        """Asserts that results, of `ours` unless given, are as exact as plain ones.

        They are to have the type of the tensors.

        The yardstick is plain TensorFlow's error, of other tensors where given. It is
        computed where a few units in the last place do not suffice.

        Returns:
            The results.
        """
        ours = self.ours(case, tensors) if results is None else results
        assert {result.dtype for result in ours} == {tensors[0].dtype}
        plain = functools.partial(
            self.results, case.bind(self.plain), *(yardstick or tensors)
        )
        arrays = exact(tensors)
        truth = case.bind(self.reference)(*arrays)
        magnitude = case.bind(self.magnitude)(*arrays)
        assert_all_close(ours, plain, truth, magnitude)
        return ours


def assert_all_close(ours, plain, truth, magnitude):
    """Asserts that each of several results is as exact as the yardstick's.

    Args:
        ours: Tensors.
        plain: A function that returns those of plain TensorFlow.
        truth: Arrays of the reference.
        magnitude: Arrays of the reference at absolute values.
    """
    yardstick = functools.cache(plain)
    expected = zip(ours, truth, magnitude, strict=True)
    for place, (result, exactly, size) in enumerate(expected):
        assert_close(
            result.numpy(), exactly, lambda at=place: yardstick()[at].numpy(), size
        )


def every():
    """Returns the descriptions of all ops."""
    names = [module.name for module in pkgutil.iter_modules(__path__)]
    return [importlib.import_module(f"{__name__}.{name}").OP for name in names]
