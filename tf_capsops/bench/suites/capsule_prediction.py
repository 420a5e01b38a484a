# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Cases, rivals and costs of CapsulePrediction.

The kernels work differently around these sizes:

* vectors of 4, 8 and 16 numbers;
* in_dim up to 8, 16, 32 and beyond;
* tiles of 32, 64, 160 and 512 output columns (out_caps * out_dim);
* batches of up to 16 samples, and tiles of 4, 8, 32, 64 and 128 samples.

The cases are one below, at, and one above each. There are also panels of columns,
outputs that bypass the caches, and more blocks than one dimension of a CUDA grid holds.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import tensorflow as tf

from tf_capsops.bench import cases
from tf_capsops.bench.cases import Case, Cost
from tf_capsops.ops.capsule_prediction import capsule_prediction, plain

_DIMS = ("batch", "in_caps", "out_caps", "out_dim", "in_dim")


def _case(name, sizes, *uses, devices=("CPU", "GPU")):
    return Case(name, dict(zip(_DIMS, sizes, strict=True)), uses, devices)


def _around(*tiles):
    return sorted({size for tile in tiles for size in (tile - 1, tile, tile + 1)})


def _columns(total):
    """Splits out_caps * out_dim == total into the two most equal factors."""
    out_caps = max(d for d in range(1, math.isqrt(total) + 1) if total % d == 0)
    return out_caps, total // out_caps


def _correctness_cases():
    use = cases.CORRECTNESS
    yield _case("ones", (1, 1, 1, 1, 1), use, cases.GRADIENT)
    yield _case("primes", (7, 13, 5, 3, 11), use)
    yield _case("large_primes", (67, 11, 7, 23, 19), use)
    yield _case("many_in_caps", (3, 257, 2, 3, 5), use)
    yield _case("long_rows", (2, 3, 4, 16, 129), use)
    yield _case("mnist_layer", (9, 36, 10, 16, 8), use)
    yield _case("past_the_caches", (46, 1152, 10, 16, 1), use)
    yield _case("panels", (13, 2, 65, 65, 8), use)
    yield _case("panels_of_long_rows", (3, 2, 27, 19, 129), use)
    yield _case("product_below_tile", (63, 3, 7, 9, 47), use)
    yield _case("product_tile", (64, 3, 8, 8, 48), use)
    yield _case("product_above_tile", (65, 3, 5, 13, 49), use)
    yield _case("grid_of_in_caps", (2, 70001, 1, 2, 3), use)
    yield _case("grid_of_samples", (2200003, 1, 1, 2, 1), use)
    for in_dim in sorted({*_around(4, 8, 16, 32), 24, 40}):
        yield _case(f"in_dim_{in_dim}", (5, 3, 2, 6, in_dim), use)
    for columns in _around(32, 64, 160, 512):
        yield _case(f"columns_{columns}", (5, 3, *_columns(columns), 8), use)
    for batch in sorted({*_around(4, 8, 16, 32, 64, 128), 1, 2}):
        yield _case(f"batch_{batch}", (batch, 3, 4, 8, 8), use)
    for in_dim in (1, 2, 4, 16):  # with few samples, a CPU does not transpose weights
        yield _case(f"few_in_dim_{in_dim}", (3, 3, 2, 16, in_dim), use)
    yield _case("tiles_of_both", (37, 3, 16, 20, 13), use)
    yield _case("tiles_of_both_in_words", (37, 3, 32, 16, 16), use)
    yield _case("one_long_capsule", (1, 1, 1, 1, 5000), use)
    yield _case("empty_batch", (0, 3, 2, 4, 8), use)
    yield _case("empty_reduction", (4, 3, 2, 4, 0), use)
    yield _case("no_in_caps", (4, 0, 2, 4, 8), use)
    yield _case("no_out_caps", (4, 3, 0, 4, 8), use)
    yield _case("no_out_dim", (4, 3, 2, 0, 8), use)


def _all_cases():
    yield from _correctness_cases()
    yield _case("gradient_even", (2, 3, 2, 4, 4), cases.GRADIENT)
    yield _case("gradient_odd", (3, 2, 5, 1, 3), cases.GRADIENT)
    for batch, in_caps, out_caps, in_dim, out_dim in itertools.product(
        (4, 8), repeat=5
    ):
        yield _case(
            f"paper_{batch}_{in_caps}_{out_caps}_{in_dim}_{out_dim}",
            (batch, in_caps, out_caps, out_dim, in_dim),
            cases.PAPER,
        )
    yield _case("smoke", (2, 3, 4, 5, 6), cases.SMOKE)
    yield _case("mnist_b128", (128, 1152, 10, 16, 8), cases.ANCHORS, devices=("GPU",))
    yield _case("mnist_b64", (64, 1152, 10, 16, 8), cases.ANCHORS, devices=("CPU",))
    yield _case("mnist_b1", (1, 1152, 10, 16, 8), cases.NETWORKS)
    yield _case("cifar_b64", (64, 2048, 10, 16, 8), cases.NETWORKS)
    yield _case("smallnorb_b64", (64, 1152, 5, 16, 8), cases.NETWORKS)
    yield _case("deep_k16_j32_b32", (32, 512, 32, 16, 16), cases.NETWORKS)


def _draw(case, rng):
    sizes = case.sizes
    inputs = rng.uniform(-1, 1, [sizes[d] for d in ("batch", "in_caps", "in_dim")])
    weights = rng.uniform(
        -1, 1, [sizes[d] for d in ("in_caps", "out_caps", "out_dim", "in_dim")]
    )
    return np.float64(inputs), np.float64(weights)


def _output_shape(case):
    return tuple(case.sizes[d] for d in ("batch", "in_caps", "out_caps", "out_dim"))


def _matmul(inputs, weights):
    """Multiplies as van de Wolfshaar's `digit_caps` does without the op."""
    in_caps, out_caps, out_dim, in_dim = weights.shape
    flat = tf.reshape(weights, (in_caps, out_caps * out_dim, in_dim))
    product = tf.matmul(flat, tf.transpose(inputs, (1, 2, 0)))
    return tf.reshape(
        tf.transpose(product, (2, 0, 1)), (-1, in_caps, out_caps, out_dim)
    )


def _operands(case):
    batch, in_caps, out_caps, out_dim, in_dim = (case.sizes[d] for d in _DIMS)
    inputs = batch * in_caps * in_dim
    weights = in_caps * out_caps * out_dim * in_dim
    output = batch * in_caps * out_caps * out_dim
    return inputs, weights, output, 2 * output * in_dim


def _forward_cost(case):
    inputs, weights, output, flops = _operands(case)
    return Cost(inputs + weights + output, flops)


def _training_cost(case):
    """Counts the forward pass, then one pass over grad that gives both gradients."""
    inputs, weights, output, flops = _operands(case)
    return Cost(3 * (inputs + weights) + 2 * output, 3 * flops)


SUITE = cases.OpSuite(
    op="CapsulePrediction",
    cases=tuple(_all_cases()),
    draw=_draw,
    output_shape=_output_shape,
    ours=capsule_prediction,
    rivals={"einsum": plain, "matmul": _matmul},
    forward_cost=_forward_cost,
    training_cost=_training_cost,
)
