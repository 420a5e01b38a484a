# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""CapsuleMoments, as the tests that all ops share see it."""

import numpy as np
import robustness
import tensorflow as tf
from reference import capsule_moments as reference

from descriptions import Description
from tf_capsops import capsule_moments
from tf_capsops._portable import widened
from tf_capsops.bench import cases


def _pair(value):
    return (value, value) if isinstance(value, int) else value


def arguments(given, arrays, attributes):
    """Returns what the reference takes by name."""
    attributes = dict(attributes)
    for name in ("strides", "dilations"):
        attributes[name] = _pair(attributes[name])
    return dict(zip(given, arrays, strict=True)), attributes


def split(joined, order, pose):
    """Returns the moments that a suite's output joins."""
    mass, *others = np.split(joined, [1, 1 + pose[0] * pose[1]][: order or 0], axis=-1)
    if order == 0:
        return [joined[..., 0]]
    return [mass[..., 0], *(each.reshape(*each.shape[:-1], *pose) for each in others)]


def _join(moments):
    flat = [each.reshape(*each.shape[:4], -1) for each in moments[1:] if each.size]
    return np.concatenate([moments[0][..., None], *flat], axis=-1)


def _results(of):
    def compute(grad, poses, weights, *others, given, order, **attributes):
        named, attributes = arguments(given, others, attributes)
        pose = (poses.shape[4], weights.shape[5])
        moments = reference.forward(
            poses, weights, order=order, of=of, **named, **attributes
        )
        empty = not moments[0].size
        output = np.zeros_like(grad) if empty else _join(moments)
        grads = reference.backward(
            *(split(grad, order, pose), poses, weights), of=of, **named, **attributes
        )
        return (output, *(grads[name] for name in ("poses", "weights", *given)))

    return compute


_SUITE = cases.suites()["CapsuleMoments"]
_FRAMES = {
    "rivals": ("primes_parents", "primes_all", "primes_none", "order_0_all"),
    "unknown_shapes": ("primes_parents", "strides_all", "matrices_none"),
}
OP = Description(
    _SUITE,
    widened(_SUITE.rivals["votes"]),
    _results(np.positive),
    _results(np.abs),
    _FRAMES,
)

# Two images of 5 x 6, 3 children and 7 parents; windows of 2 x 3 give 4 x 4.
IMAGE, PAIRS, PARENTS = (2, 5, 6, 3), (2, 3, 3, 7), (2, 4, 4, 7)
SHAPES = {
    "poses": (*IMAGE, 4, 5),
    "activations": IMAGE,
    "weights": (*PAIRS, 5, 2),
    "bias": PARENTS,
    "linear": (*PARENTS, 4, 2),
    "precision": (*PARENTS, 4, 2),
    "center": (*PARENTS, 4, 2),
    "prior": PAIRS,
}


def draw(dtype, shapes=SHAPES):
    """Returns all inputs of the op itself by name; statistics in their own type."""
    wide = tf.float64 if dtype == tf.float64 else tf.float32
    drawn = robustness.draw(tf.float64, *shapes.values())
    named = dict(zip(shapes, drawn, strict=True))
    narrow = ("poses", "activations", "weights")
    return {n: tf.cast(t, dtype if n in narrow else wide) for n, t in named.items()}


def moments_and_gradients(named, **attributes):
    """Returns moments and all gradients."""
    named = dict(named)
    sources = list(named.values())
    with tf.GradientTape() as tape:
        tape.watch(sources)
        moments = capsule_moments(**named, order=2, **attributes)
        loss = sum(tf.reduce_sum(tf.sin(each)) for each in moments)
    return [*moments, *tape.gradient(loss, sources)]
