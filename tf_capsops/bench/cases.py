# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Defines cases and the suite of an op; the cases themselves are in `suites`.

One list of cases serves the tests of correctness, the tests of gradients and the
benchmarks. Each op has one file in `tf_capsops.bench.suites` that defines `SUITE`;
no other file names it.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import pkgutil
import types
import typing
from collections.abc import Callable, Mapping, Sequence

if typing.TYPE_CHECKING:  # the command's parser does not wait for these imports
    import numpy as np
    import tensorflow as tf

CORRECTNESS = "correctness"  # compared with the float64 reference, with gradients
GRADIENT = "gradient"  # small enough for finite differences
PAPER = "paper"  # the grid of the paper's own tests
SMOKE = "smoke"  # a benchmark small enough for a test of the benchmark
ANCHORS = "anchors"  # the sizes at which speeds are claimed
NETWORKS = "networks"  # layers of published networks
TRAINING = "training"  # whole training steps through Keras
TRAINING_SMOKE = "training-smoke"  # training steps of tiny networks
LAYERS = "layers"  # every layer, in every type
LAYERS_SMOKE = "layers-smoke"  # tiny layers
OF_OPS = (ANCHORS, NETWORKS, SMOKE)
BENCH_SUITES = (*OF_OPS, TRAINING, TRAINING_SMOKE, LAYERS, LAYERS_SMOKE)


@dataclasses.dataclass(frozen=True)
class Case:
    """One set of sizes at which an op is tried.

    Attributes:
        name: Unique within the op.
        sizes: Size of each dimension, by the name it has in the op's documentation.
        uses: The uses of the case, among the constants of this module.
        devices: Device types the case is benchmarked on.
        attributes: The op's attributes, by their names in Python.
    """

    name: str
    sizes: Mapping[str, int]
    uses: tuple[str, ...]
    devices: tuple[str, ...] = ("CPU", "GPU")
    attributes: Mapping[str, object] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("sizes", "attributes"):
            frozen = types.MappingProxyType(dict(getattr(self, name)))
            object.__setattr__(self, name, frozen)

    def bind(self, compute: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
        """Binds this case's attributes to the op or one of its rivals."""
        return functools.partial(compute, **self.attributes)

    def __str__(self) -> str:
        return self.name


@dataclasses.dataclass(frozen=True)
class Cost:
    """The least memory traffic and arithmetic that an op needs.

    Attributes:
        elements: Elements read or written: each input and each output once.
        flops: Additions plus multiplications.
        more_bytes: Bytes read or written, independent of the dtype.
    """

    elements: int
    flops: int
    more_bytes: int = 0

    def bytes(self, itemsize: int) -> int:
        """Returns the total number of bytes for elements of this size."""
        return self.elements * itemsize + self.more_bytes


@dataclasses.dataclass(frozen=True)
class OpSuite:
    """Everything that tests and benchmarks need to know about one op.

    Attributes:
        op: Name of the op, as registered in C++.
        cases: All cases.
        draw: `(case, random generator) -> arrays`, the op's inputs in order. Inputs of
            the op's dtype are drawn in float64, the others in their own type.
        output_shape: Shape of the op's output for a case.
        ours: The op, from its inputs and its attributes to its output.
        rivals: Other ways to compute the same in plain TensorFlow, by name.
        forward_cost: Least cost of the forward computation.
        training_cost: Least cost of forward and all gradients together.
        parts: Parts of a rival's work, timed along with the rivals. Their results
            differ from the op's.
        prepare: Converts the op's inputs and attributes to the rivals' inputs; not
            timed.
        sources: How many inputs, counted from the first, have gradients; None for all.
        torch: The script in benchmarks/ that times a case in PyTorch, or None.
    """

    op: str
    cases: Sequence[Case]
    draw: Callable[[Case, np.random.Generator], tuple[np.ndarray, ...]]
    output_shape: Callable[[Case], tuple[int, ...]]
    ours: Callable[..., tf.Tensor]
    rivals: Mapping[str, Callable[..., tf.Tensor]]
    forward_cost: Callable[[Case], Cost]
    training_cost: Callable[[Case], Cost]
    parts: Mapping[str, Callable[..., tf.Tensor]] = dataclasses.field(
        default_factory=dict
    )
    prepare: Callable[..., Sequence[tf.Tensor]] = lambda *inputs, **attributes: inputs
    sources: int | None = None
    torch: str | None = None

    def select(self, use: str) -> list[Case]:
        """Returns the cases for one use, in order."""
        return [case for case in self.cases if use in case.uses]


def ops() -> list[str]:
    """Returns the names of all ops, by their files: CapsuleConv for capsule_conv.py."""
    from tf_capsops.bench import suites as package

    modules = pkgutil.iter_modules(package.__path__)
    return [info.name.title().replace("_", "") for info in modules]


@functools.cache
def suites() -> Mapping[str, OpSuite]:
    """Returns the suite of every op, by op name."""
    from tf_capsops.bench import suites as package

    found = {}
    for info in pkgutil.iter_modules(package.__path__):
        suite = importlib.import_module(f"{package.__name__}.{info.name}").SUITE
        names = [case.name for case in suite.cases]
        if len(set(names)) != len(names):
            raise ValueError(f"{suite.op}: two cases share a name")
        found[suite.op] = suite
    return types.MappingProxyType(found)
