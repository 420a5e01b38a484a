# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""NumPy float64 reference of routing by agreement, with its gradient.

Shapes: input [batch, in_caps, in_dim] (b i k), weights [in_caps, out_caps, out_dim,
in_dim] (i j d k), logits [in_caps, out_caps] (i j), output [batch, out_caps, out_dim]
(b j d). Everything is kept and differentiated one operation after the other, without
the identities that the kernels rest on.
"""

import numpy as np

from reference import capsule_prediction, fake_quant, squash

# As the op's attribute holds it.
EPSILON = float(np.float32(1e-7))

ARRAYS = "logits", "coefficients", "sums", "vectors"


def forward(inputs, weights, logits, iterations, epsilon=EPSILON):
    """Returns the output capsules after `iterations` computations of them."""
    predictions = capsule_prediction.forward(inputs, weights)
    return _iterate(predictions, logits, iterations, epsilon)[-1][2]


def coefficients(inputs, weights, logits, iterations, epsilon=EPSILON):
    """Returns the coefficients of the last iteration, [batch, in_caps, out_caps]."""
    predictions = capsule_prediction.forward(inputs, weights)
    return _iterate(predictions, logits, iterations, epsilon)[-1][0]


def sums(inputs, weights, logits, iterations, epsilon=EPSILON):
    """Returns the sums of all iterations, [iterations, batch, out_caps, out_dim]."""
    predictions = capsule_prediction.forward(inputs, weights)
    steps = _iterate(predictions, logits, iterations, epsilon)
    return np.stack([sums for _, sums, _ in steps])


def backward(grad, inputs, weights, logits, iterations, epsilon=EPSILON):
    """Returns the gradients of `sum(grad * forward(...))` by the first three inputs."""
    by_predictions, by_logits = _backpropagate(
        grad, inputs, weights, logits, iterations, epsilon
    )
    by_predictions = sum(by_predictions)
    return (
        *capsule_prediction.backward(by_predictions, inputs, weights),
        sum(by_logits).sum(axis=0),
    )


def backward_magnitude(grad, inputs, weights, logits, iterations, epsilon=EPSILON):
    """Returns what `backward` does, with the last sums taken over absolute values."""
    by_predictions, by_logits = _backpropagate(
        grad, inputs, weights, logits, iterations, epsilon
    )
    by_predictions = sum(map(np.abs, by_predictions))
    return (
        *capsule_prediction.backward(by_predictions, np.abs(inputs), np.abs(weights)),
        sum(map(np.abs, by_logits)).sum(axis=0),
    )


def rounded(predictions, logits, ranges, bits, bias=0.0, epsilon=EPSILON):
    """Returns outputs and the last coefficients of routing in few bits.

    Ranges are `[iterations, 4, 2]`, of logits, coefficients, sums and vectors; bits are
    None to round nothing. A third result has the arrays, before they were rounded.
    """
    arrays = {}

    def as_integers(name, iteration, numbers):
        arrays[iteration, name] = numbers
        lo, hi = ranges[iteration][ARRAYS.index(name)]
        if bits is None:
            return numbers
        return fake_quant.fake_quant(numbers, lo, hi, bits) if hi > lo else 0 * numbers

    steps = _iterate(
        predictions, logits, len(ranges), epsilon, as_integers, np.asarray(bias)
    )
    return steps[-1][2], steps[-1][0], arrays


def _iterate(predictions, logits, iterations, epsilon, rounded=None, bias=0.0):
    """Returns coefficients, sums and outputs of each iteration."""
    rounded = rounded or (lambda name, iteration, numbers: numbers)
    logits = np.broadcast_to(np.asarray(logits, np.float64), predictions.shape[:3])
    steps = []
    for iteration in range(iterations):
        logits = rounded("logits", iteration, logits)
        shares = rounded("coefficients", iteration, _softmax(logits))
        sums = np.einsum("bij,bijd->bjd", shares, predictions) + bias
        sums = rounded("sums", iteration, sums)
        outputs = squash.forward(sums, epsilon=epsilon)
        if iteration + 1 < iterations:
            outputs = rounded("vectors", iteration, outputs)
        steps.append((shares, sums, outputs))
        logits = logits + np.einsum("bijd,bjd->bij", predictions, outputs)
    return steps


def _backpropagate(grad, inputs, weights, logits, iterations, epsilon):
    """Returns the terms of two gradients, two for each iteration.

    They are those by predictions, [batch, in_caps, out_caps, out_dim], and by the
    logits of every sample, [batch, in_caps, out_caps].
    """
    predictions = capsule_prediction.forward(inputs, weights)
    steps = _iterate(predictions, logits, iterations, epsilon)
    by_predictions, by_logits = [], []
    by_outputs = np.asarray(grad, np.float64)
    by_later_logits = np.zeros(predictions.shape[:3])
    for iteration in reversed(range(iterations)):
        shares, sums, _ = steps[iteration]
        by_sums = squash.backward(by_outputs, sums, epsilon=epsilon)
        by_predictions.append(np.einsum("bij,bjd->bijd", shares, by_sums))
        by_shares = np.einsum("bijd,bjd->bij", predictions, by_sums)
        mean = np.sum(shares * by_shares, axis=-1, keepdims=True)
        by_logits += [shares * by_shares, -shares * mean]
        # The logits are those of the iteration before and the agreement with its
        # outputs, so they hand their gradient, with that of later ones, to both.
        by_later_logits = by_later_logits + shares * (by_shares - mean)
        if iteration > 0:
            outputs = steps[iteration - 1][2]
            by_predictions.append(np.einsum("bij,bjd->bijd", by_later_logits, outputs))
            by_outputs = np.einsum("bij,bijd->bjd", by_later_logits, predictions)
    return by_predictions, by_logits


def _softmax(logits):
    """Softmax over the output capsules, the last axis."""
    exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True, initial=-np.inf))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)
