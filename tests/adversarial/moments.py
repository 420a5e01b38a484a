# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Judges calls of CapsuleMoments, its gradient and its shares."""

import functools

import numpy as np
import signatures
import tensorflow as tf
from descriptions import DTYPES
from reference import capsule_moments as reference
from registrations import bare
from tolerances import assert_close

from tf_capsops.ops import capsule_moments

_INPUTS = tuple(signatures.INPUTS["CapsuleMoments"])
_GRADS = ("grad_mass", "grad_first", "grad_second")


def belonging(call, found):
    """Returns mass and first of the other inputs, where those are numbers."""
    if not all(each.dtype in DTYPES for each in found.values()):
        return {}
    inputs = {name: found[name] for name in _INPUTS}
    try:
        moments = bare().capsule_moments(**inputs, **call.attributes)
    except tf.errors.OpError:  # types that do not belong together
        return {}
    return {"mass": moments[0], "first": moments[1]}


def assert_right(call, found, results):
    """Asserts that results are those of the reference."""
    given = {n: found[n] for n in _INPUTS if found[n].shape.as_list() != [0]}
    attributes = dict(call.attributes)
    order = attributes.pop("order", None)
    wide = tf.float64 if found["poses"].dtype == tf.float64 else tf.float32
    widened = {name: tf.cast(each, wide) for name, each in given.items()}
    arrays = {name: each.numpy().astype(np.float64) for name, each in given.items()}
    if call.op == "CapsuleMomentShares":
        truths = [reference.shares(**arrays, **attributes)]
        sizes = [1 + np.abs(truths[0])]
    elif call.op == "CapsuleMoments":
        truths, sizes = [
            reference.forward(**arrays, order=order, of=of, **attributes)
            for of in (np.positive, np.abs)
        ]
        results = results[: order + 1]
    else:
        grads = [found[name] for name in _GRADS[: order + 1]]
        truths, sizes = [
            reference.backward(
                [g.numpy() for g in grads], **arrays, of=of, **attributes
            )
            for of in (np.positive, np.abs)
        ]
        results = dict(zip(_INPUTS, results, strict=True))
        results, truths, sizes = [
            [each[name] for name in given] for each in (results, truths, sizes)
        ]

    def plain_results():
        operands = [widened.get(name) for name in _INPUTS]
        if call.op == "CapsuleMomentShares":
            return [capsule_moments.plain_shares(*operands, **attributes)]
        with tf.GradientTape() as tape:
            tape.watch(widened)
            plain = capsule_moments.plain(*operands, order=order, **attributes)
        if call.op == "CapsuleMoments":
            return plain
        found = tape.gradient(plain, widened, grads, unconnected_gradients="zero")
        return [found[name] for name in given]

    assert_mixed_close(results, truths, plain_results, sizes)


def assert_mixed_close(results, truths, plain_results, sizes):
    """Asserts that results are as exact as plain TensorFlow's.

    Softmax and squashing mix elements: small ones are as exact as large ones.

    Args:
        plain_results: returns plain TensorFlow's results. It is called only where it
            must be, since it takes most of the time.
    """

    @functools.cache
    def computed():
        found = plain_results()
        assert len(found) == len(results)
        return found

    for place, (result, truth, size) in enumerate(
        zip(results, truths, sizes, strict=True)
    ):

        def plain(place=place, dtype=result.dtype):
            return tf.cast(computed()[place], dtype).numpy()

        size = np.full(truth.shape, np.max(size, initial=0))
        assert_close(result.numpy(), truth, plain, size)
