# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""NumPy float64 reference of convolution and routing in one, with its gradient.

Shapes: inputs [batch, spatial..., types, in_dim] (n i k), weights [kernel..., (types,)
in_dim, parents, out_dim] (i k j d), bias [parents, out_dim] (j d), logits [types,
parents] (i j), output [batch, spatial..., parents, out_dim] (n j d). All votes are
stored, and every operation is differentiated by itself.
"""

import itertools
import math

import numpy as np

from reference import squash, windows

# As the op's attribute holds it.
EPSILON = float(np.float32(1e-7))


def forward(inputs, weights, bias, logits, *, iterations, **attributes):
    """Returns the parents after `iterations` computations of them."""
    epsilon, leaky, window = _split(attributes)
    cast = votes(inputs, weights, **window)
    steps = _route(_flat(cast, 3), bias, logits, iterations, epsilon, leaky)
    return steps[-1][2].reshape(*cast.shape[:-3], *cast.shape[-2:])


def shares(inputs, weights, bias, logits, *, iterations, **attributes):
    """Returns how the last iteration divides children, [batch, spatial..., i, j]."""
    epsilon, leaky, window = _split(attributes)
    cast = votes(inputs, weights, **window)
    steps = _route(_flat(cast, 3), bias, logits, iterations, epsilon, leaky)
    return steps[-1][0].reshape(cast.shape[:-1])


def backward(grad, inputs, weights, bias, logits, *, iterations, **attributes):
    """Returns the gradients of `sum(grad * forward(...))` by the four inputs."""
    return _backward(
        grad, inputs, weights, bias, logits, iterations, attributes, lambda x: x
    )


def backward_magnitude(
    grad, inputs, weights, bias, logits, *, iterations, **attributes
):
    """Returns what `backward` does, with the last sums taken over absolute values."""
    return _backward(grad, inputs, weights, bias, logits, iterations, attributes, abs)


def votes(inputs, weights, strides, padding="VALID", dilations=None, transposed=False):
    """Returns the votes, [batch, spatial..., types, parents, out_dim]."""
    dilations = dilations or [1] * len(strides)
    weights = _per_type(inputs, weights)
    out, taps = _window(inputs, weights, strides, padding, dilations, transposed)
    result = np.zeros((len(inputs), *out, inputs.shape[-2], *weights.shape[-2:]))
    for tap, source, target in taps:
        result[target] += np.einsum("...ik,ikjd->...ijd", inputs[source], weights[tap])
    return result


def votes_backward(
    grad, inputs, weights, strides, padding="VALID", dilations=None, transposed=False
):
    """Returns the gradients of `sum(grad * votes(...))` by inputs and weights."""
    dilations = dilations or [1] * len(strides)
    whole = _per_type(inputs, weights)
    _, taps = _window(inputs, whole, strides, padding, dilations, transposed)
    by_inputs, by_weights = np.zeros(inputs.shape), np.zeros(whole.shape)
    for tap, source, target in taps:
        by_inputs[source] += np.einsum("...ijd,ikjd->...ik", grad[target], whole[tap])
        by_weights[tap] = np.einsum(
            "nik,nijd->ikjd",
            _flat(inputs[source], 2),
            _flat(grad[target], 3),
        )
    shared = weights.ndim < whole.ndim
    return by_inputs, by_weights.sum(axis=-4) if shared else by_weights


def _window(inputs, weights, strides, padding, dilations, transposed):
    """Returns the output's size and, for each tap, what it reads and where it adds.

    They are (tap, index of inputs, index of votes). A tap joins pixels y of the side
    with fewer pixels to y * stride + tap * dilation - before of the other, which are
    the inputs unless transposed.
    """
    axes = len(strides)
    image, kernel = inputs.shape[1 : 1 + axes], weights.shape[:axes]
    if transposed:
        beyond = [max(k - s, 0) for k, s in zip(kernel, strides, strict=True)]
        same = padding == "SAME"
        out = [
            n * s + (0 if same else b)
            for n, s, b in zip(image, strides, beyond, strict=True)
        ]
        before = [b // 2 if same else 0 for b in beyond]
        few, many = image, out
    else:
        out, before = windows.sizes(image, kernel, strides, padding, dilations)
        out = [max(size, 0) for size in out]  # of empty images
        few, many = out, image
    return out, [
        (tap, *(pairs if transposed else pairs[::-1]))
        for tap in itertools.product(*map(range, kernel))
        for pairs in [_pairs(tap, few, many, strides, dilations, before)]
    ]


def _pairs(tap, few, many, strides, dilations, before):
    """Returns indices of pixels of both sides that a tap joins."""
    near, far = [], []
    for t, n, size, s, d, b in zip(
        tap, few, many, strides, dilations, before, strict=True
    ):
        places = np.arange(n) * s + t * d - b
        inside = (places >= 0) & (places < size)
        near.append(_slice(np.arange(n)[inside], 1))
        far.append(_slice(places[inside], s))
    return (slice(None), *near), (slice(None), *far)


def _slice(places, step):
    """Returns the slice of places that are `step` apart."""
    return slice(places[0], places[-1] + 1, step) if len(places) else slice(0)


def _per_type(inputs, weights):
    """Returns weights [kernel..., types, in_dim, parents, out_dim]."""
    if weights.ndim == inputs.ndim + 1:
        return weights
    shape = weights.shape
    return np.broadcast_to(
        weights[..., None, :, :, :], (*shape[:-3], inputs.shape[-2], *shape[-3:])
    )


def _split(attributes):
    """Returns epsilon, leaky, and the attributes of the window."""
    window = dict(attributes)
    return window.pop("epsilon", EPSILON), window.pop("leaky", False), window


def _flat(array, kept):
    """Makes one axis of all but the last `kept` axes; -1 cannot count empty ones."""
    shape = array.shape[-kept:]
    return array.reshape(math.prod(array.shape[:-kept]), *shape)


def _route(cast, bias, logits, iterations, epsilon, leaky):
    """Returns shares, sums and outputs of each iteration."""
    logits = np.broadcast_to(np.asarray(logits, np.float64), cast.shape[:3])
    steps = []
    for _ in range(iterations):
        shares = _softmax(logits, leaky)
        sums = np.einsum("nij,nijd->njd", shares, cast) + bias
        outputs = squash.forward(sums, epsilon=epsilon)
        steps.append((shares, sums, outputs))
        logits = logits + np.einsum("nijd,njd->nij", cast, outputs)
    return steps


def _backward(grad, inputs, weights, bias, logits, iterations, attributes, magnitude):
    epsilon, leaky, window = _split(attributes)
    cast = votes(inputs, weights, **window)
    shape, cast = cast.shape, _flat(cast, 3)
    steps = _route(cast, bias, logits, iterations, epsilon, leaky)
    by_cast, by_bias, by_logits = 0, 0, 0
    by_outputs = _flat(np.asarray(grad, np.float64), 2)
    by_later_logits = np.zeros(cast.shape[:3])
    for iteration in reversed(range(iterations)):
        shares, sums, _ = steps[iteration]
        by_sums = squash.backward(by_outputs, sums, epsilon=epsilon)
        by_bias += magnitude(by_sums)
        by_cast += magnitude(np.einsum("nij,njd->nijd", shares, by_sums))
        by_shares = np.einsum("nijd,njd->nij", cast, by_sums)
        mean = np.sum(shares * by_shares, axis=-1, keepdims=True)
        by_logits += magnitude(shares * by_shares) + magnitude(-shares * mean)
        # The logits are those of the iteration before and the agreement with its
        # outputs, so they hand their gradient, with that of later ones, to both.
        by_later_logits = by_later_logits + shares * (by_shares - mean)
        if iteration > 0:
            outputs = steps[iteration - 1][2]
            by_cast += magnitude(np.einsum("nij,njd->nijd", by_later_logits, outputs))
            by_outputs = np.einsum("nij,nijd->njd", by_later_logits, cast)
    return (
        *votes_backward(
            by_cast.reshape(shape), magnitude(inputs), magnitude(weights), **window
        ),
        by_bias.sum(axis=0),
        by_logits.sum(axis=0),
    )


def _softmax(logits, leaky):
    """Softmax over the parents and, where leaky, one extra entry with logit 0."""
    most = logits.max(axis=-1, keepdims=True, initial=0 if leaky else -np.inf)
    exponentials = np.exp(logits - most)
    total = exponentials.sum(axis=-1, keepdims=True)
    return exponentials / (total + np.exp(-most) if leaky else total)
