# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Cases, rivals and costs of CapsuleRouting.

The sizes are below, at and above those of tiles and vectors: batches around 16 and 32,
in_dim around 8 and 16, out_dim around 8, 16 and 32, and out_caps around 4, 12 and 48.
There are also the sizes of known networks, and more input capsules and samples than one
dimension of a CUDA grid holds.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tf_capsops.bench import cases
from tf_capsops.bench.cases import Case, Cost
from tf_capsops.ops.capsule_routing import capsule_routing, plain, plain_squash

_DIMS = ("batch", "in_caps", "out_caps", "out_dim", "in_dim")
_EPSILON = float(np.float32(1e-7))  # as the op's attribute holds it


def _case(name, sizes, *uses, iterations=3, devices=("CPU", "GPU")):
    sizes = dict(zip(_DIMS, sizes, strict=True))
    return Case(name, sizes, uses, devices, {"iterations": iterations})


def _correctness_cases():
    use = cases.CORRECTNESS
    yield _case("ones", (1, 1, 1, 1, 1), use, cases.GRADIENT)
    yield _case("primes", (7, 13, 5, 3, 11), use)
    yield _case("large_primes", (37, 19, 7, 23, 17), use)
    yield _case("mnist_layer", (9, 36, 10, 16, 8), use)
    yield _case("many_in_caps", (6, 100003, 2, 3, 2), use)
    yield _case("many_samples", (70001, 2, 3, 2, 2), use)
    for iterations in (1, 2, 4, 5):
        sizes = (6, 11, 5, 4, 3)
        yield _case(f"iterations_{iterations}", sizes, use, iterations=iterations)
    for batch in (1, 15, 16, 17, 31, 33):
        yield _case(f"batch_{batch}", (batch, 9, 4, 8, 8), use)
    for in_caps in (1, 2, 37, 257):
        yield _case(f"in_caps_{in_caps}", (5, in_caps, 4, 6, 8), use)
    for out_caps in (1, 3, 4, 5, 10, 12, 13, 32, 48, 49, 100, 1000, 2000):
        yield _case(f"out_caps_{out_caps}", (3, 5, out_caps, 6, 4), use)
    for out_dim in (1, 3, 8, 9, 15, 16, 17, 33, 64):
        yield _case(f"out_dim_{out_dim}", (3, 7, 5, out_dim, 4), use)
    for in_dim in (1, 2, 7, 8, 9, 16, 17, 64):
        yield _case(f"in_dim_{in_dim}", (5, 7, 3, 6, in_dim), use)
    # So few samples that a CPU's vectors hold other numbers than samples.
    for sizes in (
        (1, 37, 5, 17, 8),
        (1, 9, 2, 3, 64),
        (2, 19, 18, 16, 16),
        (3, 7, 49, 6, 5),
        (3, 21, 10, 16, 8),
    ):
        yield _case("few_" + "_".join(map(str, sizes)), sizes, use)
    yield _case("all_long", (19, 35, 13, 33, 17), use, iterations=2)
    # Sizes for tensor cores: tiles of 16 samples in pairs, groups of 4 output capsules
    # (at most 12, or 8 in the gradient of 16 elements), input capsules in pairs, and 3
    # iterations at once.
    for sizes, iterations in (
        ((1, 1, 1, 8, 8), 3),
        ((2, 1153, 3, 16, 8), 3),
        ((3, 5, 43, 8, 8), 2),
        ((5, 2, 28, 16, 16), 3),
        ((16, 5, 4, 16, 8), 1),
        ((17, 37, 5, 16, 16), 2),
        ((31, 9, 12, 8, 8), 3),
        ((33, 67, 10, 16, 8), 3),
        ((48, 300, 13, 16, 8), 4),
        ((65, 30, 9, 8, 8), 7),
        ((18, 7, 32, 16, 16), 3),
        ((19, 29, 48, 16, 16), 3),
    ):
        name = "tiles_" + "_".join(map(str, sizes))
        yield _case(name, sizes, use, iterations=iterations)
    yield _case("empty_batch", (0, 3, 2, 4, 8), use)
    yield _case("no_in_caps", (4, 0, 2, 4, 8), use)
    yield _case("no_out_caps", (4, 3, 0, 4, 8), use)
    yield _case("no_out_dim", (4, 3, 2, 0, 8), use)
    yield _case("no_in_dim", (4, 3, 2, 4, 0), use)


def _all_cases():
    yield from _correctness_cases()
    for iterations in (1, 2, 3, 5):
        name, sizes = f"gradient_{iterations}", (2, 3, 4, 3, 2)
        yield _case(name, sizes, cases.GRADIENT, iterations=iterations)
    yield _case("gradient_odd", (3, 2, 5, 1, 3), cases.GRADIENT)
    yield _case("smoke", (2, 3, 4, 5, 6), cases.SMOKE)
    yield _case("mnist_b128", (128, 1152, 10, 16, 8), cases.ANCHORS, devices=("GPU",))
    yield _case("mnist_b64", (64, 1152, 10, 16, 8), cases.ANCHORS, devices=("CPU",))
    yield _case("mnist_b1", (1, 1152, 10, 16, 8), cases.NETWORKS)
    yield _case("cifar_b64", (64, 2048, 10, 16, 8), cases.NETWORKS)
    yield _case("smallnorb_b64", (64, 1152, 5, 16, 8), cases.NETWORKS)
    yield _case("deep_k16_j32_b32", (32, 512, 32, 16, 16), cases.NETWORKS)
    yield _case("wide_b256", (256, 4608, 32, 16, 8), cases.NETWORKS, devices=("GPU",))


def _draw(case, rng):
    """Draws weights with which the sums are about 1 long.

    Routing then neither fades away nor decides for one output capsule at once, which
    would amplify every rounding error from one iteration to the next.
    """
    batch, in_caps, out_caps, out_dim, in_dim = (case.sizes[d] for d in _DIMS)
    scale = min(1, 3 * out_caps / max(1, in_caps * out_dim * in_dim) ** 0.5)
    inputs = rng.uniform(-1, 1, (batch, in_caps, in_dim))
    weights = rng.uniform(-scale, scale, (in_caps, out_caps, out_dim, in_dim))
    logits = rng.uniform(-1, 1, (in_caps, out_caps))
    return np.float64(inputs), np.float64(weights), np.float64(logits)


def _output_shape(case):
    return tuple(case.sizes[d] for d in ("batch", "out_caps", "out_dim"))


def _einsum(inputs, weights, logits, iterations, epsilon=_EPSILON):
    """Routes by procedure 1 of Sabour et al. (2017), step by step."""
    predictions = tf.einsum("bik,ijdk->bijd", inputs, weights)
    logits = tf.tile(logits[tf.newaxis], [tf.shape(inputs)[0], 1, 1])
    for iteration in range(iterations):
        coefficients = tf.nn.softmax(logits, axis=2)
        sums = tf.einsum("bij,bijd->bjd", coefficients, predictions)
        outputs = plain_squash(sums, epsilon)
        if iteration + 1 < iterations:
            logits += tf.einsum("bijd,bjd->bij", predictions, outputs)
    return outputs


def _operands(case):
    """Returns the elements of inputs, weights, logits, output and predictions."""
    batch, in_caps, out_caps, out_dim, in_dim = (case.sizes[d] for d in _DIMS)
    inputs = batch * in_caps * in_dim
    weights = in_caps * out_caps * out_dim * in_dim
    output = batch * out_caps * out_dim
    return inputs, weights, in_caps * out_caps, output, output * in_caps


def _forward_flops(case):
    """Counts predictions and their sum in all R iterations, and R - 1 logit updates.

    Each number of a prediction costs in_dim multiply-adds, and one in each of the two
    sums.
    """
    iterations, in_dim = case.attributes["iterations"], case.sizes["in_dim"]
    predictions = _operands(case)[-1]
    return 2 * predictions * (iterations * (in_dim + 1) + iterations - 1)


def _forward_cost(case):
    inputs, weights, logits, output, _ = _operands(case)
    return Cost(inputs + weights + logits + output, _forward_flops(case))


def _training_cost(case):
    """Counts forward, which writes the sums of each iteration, and backward.

    In the backward pass, each iteration but the first has a pass that computes the
    predictions, the logits, the gradient of the coefficients and one sum. A last pass
    computes the predictions once; then, for each iteration, logits, the gradient of the
    coefficients and two products (the first iteration has neither logits nor the second
    product); and multiplies the result with weights and inputs.
    """
    inputs, weights, logits, output, predictions = _operands(case)
    iterations, in_dim = case.attributes["iterations"], case.sizes["in_dim"]
    saved = 2 * iterations * output
    passes = (iterations - 1) * (in_dim + 3)
    last = 3 * in_dim + 4 * iterations - 2
    return Cost(
        3 * (inputs + weights + logits) + 2 * output + saved,
        _forward_flops(case) + 2 * predictions * (passes + last),
    )


SUITE = cases.OpSuite(
    op="CapsuleRouting",
    cases=tuple(_all_cases()),
    draw=_draw,
    output_shape=_output_shape,
    ours=capsule_routing,
    rivals={"einsum": _einsum, "matmul": plain},
    forward_cost=_forward_cost,
    training_cost=_training_cost,
)
