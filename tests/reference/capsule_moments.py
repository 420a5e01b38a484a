# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Moments of votes in NumPy, float64: every vote is stored.

Shapes, with h w for the place in a window: poses [n,y,x,c,p,q], weights [h,w,c,o,q,r],
bias [n,y,x,o], linear, precision and center [n,y,x,o,p,r], prior [h,w,c,o]. Statistics
are arguments by name; what is left out is zero, and activations are one.
"""

import numpy as np

from reference.capsule_conv import output_size

STATISTICS = ("bias", "linear", "precision", "center", "prior")


class _Window:
    """Which pixel a window reads at each place, and whether it is in the image."""

    def __init__(self, image, kernel, strides, padding, dilations):
        self.image = image
        axes = []
        for axis in range(2):
            size, places = image[axis], np.arange(kernel[axis])
            out, before = output_size(
                size, kernel[axis], strides[axis], dilations[axis], padding
            )
            source = np.arange(out)[:, None] * strides[axis] - before
            axes.append(source + places * dilations[axis])
        rows, columns = axes[0][:, None, :, None], axes[1][None, :, None, :]
        rows, columns = np.broadcast_arrays(rows, columns)
        inside = (rows >= 0) & (rows < image[0]) & (columns >= 0) & (columns < image[1])
        self.at = np.where(inside, rows, 0), np.where(inside, columns, 0)
        self.inside = inside

    def _kept(self, values):
        axes = (1,) * (values.ndim - 5)
        return np.where(self.inside.reshape(*self.inside.shape, *axes), values, 0)

    def gather(self, array):
        """From [n, in_height, in_width, ...] to [n, y, x, h, w, ...]; zero outside."""
        return self._kept(array[:, self.at[0], self.at[1]])

    def scatter(self, values, add=np.add, start=0.0):
        """The other way, combining all places that read a pixel."""
        result = np.full((values.shape[0], *self.image, *values.shape[5:]), start)
        places = np.nonzero(self.inside)
        pixels = (slice(None), self.at[0][places], self.at[1][places])
        add.at(result, pixels, values[(slice(None), *places)])
        return result


def _softmax(logits, normalize, window):
    """The shares; `logits` are zero where there is no child."""
    exist = window.inside[..., None, None]
    if normalize == "none":
        return logits
    if normalize == "parents":
        e = np.exp(logits - logits.max(axis=-1, keepdims=True, initial=-np.inf))
        shares = e / e.sum(axis=-1, keepdims=True)
    else:
        best = logits.max(axis=-1, initial=-np.inf)
        largest = window.gather(window.scatter(best, np.maximum, -np.inf))[..., None]
        e = np.where(exist, np.exp(logits - largest), 0)
        total = window.gather(window.scatter(e.sum(axis=-1)))[..., None]
        shares = e / np.where(total > 0, total, 1)
    return np.where(exist, shares, 0)


class _Pass:
    """Everything that a pass over the votes makes.

    With `of` np.abs, the sums of absolute values of terms, by shares that are right.
    """

    def __init__(self, poses, weights, given, attributes, of=np.positive):
        window = _Window(poses.shape[1:3], weights.shape[:2], *attributes)
        self.window, self.of = window, of
        self.activations = of(window.gather(given["activations"]))[..., None]
        self.poses = window.gather(poses)
        votes = np.einsum("nyxhwcpq,hwcoqr->nyxhwcopr", self.poses, weights)
        center = _spread(given["center"])
        self.u = of(votes - center)
        self.votes = of(votes)
        u2 = (votes - center) ** 2
        linear, precision = _spread(given["linear"]), _spread(given["precision"])
        self.linear, self.precision = of(linear), of(precision)
        logits = given["prior"] + given["bias"][:, :, :, None, None, None]
        logits = logits + (linear * votes - 0.5 * precision * u2).sum(axis=(-2, -1))
        exist = window.inside[..., None, None]
        self.shares = of(
            _softmax(np.where(exist, logits, 0), given["normalize"], window)
        )
        self.q = self.activations * self.shares

    def moments(self, order):
        powers = [self.u**power for power in range(1, order + 1)]
        sums = [np.einsum("nyxhwco,nyxhwcopr->nyxopr", self.q, u) for u in powers]
        return [self.q.sum(axis=(3, 4, 5)), *sums]


def _spread(statistic):
    return statistic[:, :, :, None, None, None]


def _completed(poses, weights, strides, padding, dilations, normalize, given):
    """Returns all that may be given, as arrays of zeros and ones where it is not."""
    attributes = (strides, padding, dilations)
    window = _Window(poses.shape[1:3], weights.shape[:2], *attributes)
    parents = (poses.shape[0], *window.inside.shape[:2], weights.shape[3])
    votes = (*parents, poses.shape[4], weights.shape[5])
    zeros = dict.fromkeys(STATISTICS, np.zeros(votes))
    zeros |= {"bias": np.zeros(parents), "prior": np.zeros(weights.shape[:4])}
    ones = {"activations": np.ones(poses.shape[:4])}
    return {**ones, **zeros, **given, "normalize": normalize}, attributes


def forward(
    poses,
    weights,
    *,
    order,
    normalize="parents",
    strides=(1, 1),
    padding="VALID",
    dilations=(1, 1),
    of=np.positive,
    **given,
):
    """Returns the list of `order + 1` moments."""
    given, attributes = _completed(
        poses, weights, strides, padding, dilations, normalize, given
    )
    return _Pass(poses, weights, given, attributes, of).moments(order)


def shares(
    poses,
    weights,
    *,
    normalize="parents",
    strides=(1, 1),
    padding="VALID",
    dilations=(1, 1),
    **given,
):
    given, attributes = _completed(
        poses, weights, strides, padding, dilations, normalize, given
    )
    return _Pass(poses, weights, given, attributes).shares


def backward(
    grads,
    poses,
    weights,
    *,
    normalize="parents",
    strides=(1, 1),
    padding="VALID",
    dilations=(1, 1),
    of=np.positive,
    **given,
):
    """Returns the gradients of `sum(grads * forward(...))` by name."""
    given, attributes = _completed(
        poses, weights, strides, padding, dilations, normalize, given
    )
    passed = _Pass(poses, weights, given, attributes, of)
    minus = -1 if of is np.positive else 1
    grads = [_spread(of(grad)) for grad in grads]
    mass, first, second = [*grads, 0.0, 0.0][:3]
    u, shares = passed.u, passed.shares
    dq = mass + (first * u + second * u**2).sum(axis=(-2, -1))
    dr = passed.activations * dq
    mean = np.zeros(())
    if normalize == "parents":
        mean = (shares * dr).sum(axis=-1, keepdims=True)
    elif normalize == "all":
        total = (shares * dr).sum(axis=-1)
        mean = passed.window.gather(passed.window.scatter(total))[..., None]
    dz = dr if normalize == "none" else shares * (dr + minus * mean)
    dz = np.where(passed.window.inside[..., None, None], dz, 0)
    wide, q = dz[..., None, None], passed.q[..., None, None]
    by_u = q * (first + 2 * second * u) + minus * wide * passed.precision * u
    by_vote = by_u + wide * passed.linear
    # The op has u alone, and adds the center to it again.
    votes = passed.votes if of is np.positive else u
    children = (3, 4, 5)
    return {
        "poses": passed.window.scatter(
            np.einsum("nyxhwcopr,hwcoqr->nyxhwcpq", by_vote, of(weights))
        ),
        "activations": passed.window.scatter((shares * dq).sum(axis=-1)),
        "weights": np.einsum("nyxhwcpq,nyxhwcopr->hwcoqr", of(passed.poses), by_vote),
        "bias": dz.sum(axis=children),
        "linear": (wide * votes).sum(axis=children),
        "precision": minus * 0.5 * (wide * u**2).sum(axis=children),
        "center": minus * by_u.sum(axis=children),
        "prior": dz.sum(axis=(0, 1, 2)),
    }
