# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Measures the highest rates of a device, in the same run as everything else."""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from tf_capsops.bench import measure
from tf_capsops.bench.cases import Cost

_COPY_BYTES = {"CPU": 1 << 26, "GPU": 1 << 28}
_MATMUL_SIZE = {"CPU": 1024, "GPU": 4096}


@dataclasses.dataclass(frozen=True)
class Ceilings:
    """Rates of one device in one dtype.

    Attributes:
        bytes_per_second: Rate of negating a large tensor, reads plus writes.
        flops_per_second: Rate of multiplying large square matrices.
        seconds_per_call: Time of an op on a single number, TensorFlow's own overhead.
    """

    bytes_per_second: float
    flops_per_second: float
    seconds_per_call: float

    def seconds(self, cost: Cost, itemsize: int) -> float:
        """Returns the least time of a cost: the longer one of memory and arithmetic."""
        return max(
            cost.bytes(itemsize) / self.bytes_per_second,
            cost.flops / self.flops_per_second,
        )


def measure_ceilings(device: str, dtype: tf.DType, repeat: int) -> Ceilings:
    """Measures the ceilings of one device in one dtype."""
    kind = measure.device_type(device)
    copied, size = _COPY_BYTES[kind], _MATMUL_SIZE[kind]

    def random(*shape):
        with tf.device(device):
            return tf.cast(tf.random.uniform(shape), dtype)

    chains = {
        "copy": measure.Chain(
            measure.forward_step(tf.negative),
            [(random(copied // dtype.size),) for _ in range(2)],
            device,
        ),
        "matmul": measure.Chain(
            measure.forward_step(tf.matmul),
            [(random(size, size), random(size, size)) for _ in range(2)],
            device,
        ),
        "call": measure.Chain(
            measure.forward_step(tf.negative), [(random(1),), (random(1),)], device
        ),
    }
    best = {n: t.minimum for n, t in measure.compare(chains, repeat).items()}
    return Ceilings(
        bytes_per_second=2 * copied / best["copy"],
        flops_per_second=2 * size**3 / best["matmul"],
        seconds_per_call=best["call"],
    )
