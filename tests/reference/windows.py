# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Capsules in windows over any number of axes, place by place, in float64."""

import itertools

import numpy as np

_PRODUCT = "n...cpq,coqr->n...opr"
_DEEP_PRODUCT = "n...cgpq,cogqr->n...ogpr"


def sizes(image, kernel, strides, padding, dilations):
    """Returns how many windows each axis has, and the padding before it."""
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    if padding == "VALID":
        return [
            -(-(size - span + 1) // s) for size, span, s in zip(image, spans, strides)
        ], [0] * len(image)
    out = [-(-size // s) for size, s in zip(image, strides, strict=True)]
    missing = [
        max((o - 1) * s + span - size, 0)
        for o, s, span, size in zip(out, strides, spans, image, strict=True)
    ]
    return out, [each // 2 for each in missing]


def convolution(inputs, weights, strides, padding, dilations):
    """`capsule_conv1d`, `capsule_conv2d` and `capsule_conv3d`."""
    axes = len(strides)
    image, kernel = inputs.shape[1 : 1 + axes], weights.shape[:axes]
    out, before = sizes(image, kernel, strides, padding, dilations)
    equation = _DEEP_PRODUCT if inputs.ndim == axes + 5 else _PRODUCT
    outputs = 0
    for tap in itertools.product(*map(range, kernel)):
        read = inputs
        for axis, place in enumerate(tap):
            at = place * dilations[axis] - before[axis]
            places = at + strides[axis] * np.arange(out[axis])
            there = (places >= 0) & (places < image[axis])
            read = np.take(read, np.where(there, places, 0), axis + 1)
            shape = [1] * read.ndim
            shape[axis + 1] = out[axis]
            read = read * there.reshape(shape)
        outputs = outputs + np.einsum(equation, read, weights[tap])
    return outputs


def transposed(inputs, weights, strides, padding):
    """`capsule_conv2d_transpose` and `capsule_conv3d_transpose`."""
    axes = len(strides)
    image, kernel = inputs.shape[1 : 1 + axes], weights.shape[:axes]
    deep = inputs.ndim == axes + 5
    windows = list(zip(image, strides, kernel, strict=True))
    full = [(size - 1) * s + max(k, s) for size, s, k in windows]
    capsules = (weights.shape[axes + 1], *inputs.shape[axes + 2 : -1])
    outputs = np.zeros((len(inputs), *full, *capsules, weights.shape[-1]))
    for tap in itertools.product(*map(range, kernel)):
        places = [
            slice(t, t + (size - 1) * s + 1, s)
            for t, (size, s, _) in zip(tap, windows, strict=True)
        ]
        votes = np.einsum(
            _DEEP_PRODUCT if deep else _PRODUCT, inputs, weights[tap], optimize=True
        )
        outputs[(slice(None), *places)] += votes
    if padding == "SAME":
        begins = [max(k - s, 0) // 2 for _, s, k in windows]
        ends = [b + size * s for b, (size, s, _) in zip(begins, windows, strict=True)]
        outputs = outputs[(slice(None), *map(slice, begins, ends))]
    return outputs


def moments(poses, activations, weights, statistics, strides, padding, normalize):
    """`capsule_moments` of order 2, and `moment_shares`, without dilations."""
    axes = len(strides)
    image, kernel = poses.shape[1 : 1 + axes], weights.shape[:axes]
    out, before = sizes(image, kernel, strides, padding, [1] * axes)
    batch, channels = len(poses), poses.shape[1 + axes]
    windows = (batch, *out, *kernel, channels)
    exists, active = np.zeros(windows, bool), np.zeros(windows)
    child = np.zeros(windows, int)
    votes = np.zeros(
        (*windows, weights.shape[axes + 1], poses.shape[-2], weights.shape[-1])
    )
    for place in itertools.product(range(batch), *map(range, out), *map(range, kernel)):
        sample, at, tap = place[0], place[1 : 1 + axes], place[1 + axes :]
        read = [y * s + t - b for y, s, t, b in zip(at, strides, tap, before)]
        if not all(0 <= r < size for r, size in zip(read, image)):
            continue
        exists[place], active[place] = True, activations[(sample, *read)]
        numbers = np.arange(np.prod((batch, *image)) * channels)
        child[place] = numbers.reshape(batch, *image, channels)[(sample, *read)]
        pose = poses[(sample, *read)]
        votes[place] = np.einsum("cpq,coqr->copr", pose, weights[tap])
    between = (1,) * (axes + 1)

    def of_parents(name):
        value = statistics[name]
        return value.reshape(
            *value.shape[: 1 + axes], *between, *value.shape[1 + axes :]
        )

    about = votes - of_parents("center")
    prior = statistics["prior"].reshape(1, *[1] * axes, *statistics["prior"].shape)
    quadratic = of_parents("linear") * votes - of_parents("precision") * about**2 / 2
    logits = prior + of_parents("bias") + quadratic.sum((-1, -2))
    seen = exists[..., None]
    shares = np.where(seen, logits if normalize == "none" else np.exp(logits), 0)
    if normalize == "parents":
        shares = shares / np.where(seen, shares.sum(-1, keepdims=True), 1)
    elif normalize == "all":
        totals = np.zeros(child.max() + 1)
        np.add.at(totals, child[exists], shares.sum(-1)[exists])
        shares = shares / np.where(exists, totals[child], 1)[..., None]
    divided = active[..., None] * shares
    inside = tuple(range(1 + axes, 2 + 2 * axes))
    powers = [np.ones_like(about), about, about**2]
    sums = [(divided[..., None, None] * power).sum(inside) for power in powers]
    return [sums[0][..., 0, 0], *sums[1:]], shares
