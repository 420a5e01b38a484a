# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""CapsuleRouting, as the tests that all ops share see it."""

import numpy as np
import tensorflow as tf
from reference import capsule_routing as reference

from descriptions import Description, widened
from tf_capsops.bench import cases


def _reference(grad, *inputs, **attributes):
    return (
        reference.forward(*inputs, **attributes),
        *reference.backward(grad, *inputs, **attributes),
    )


def _magnitude(grad, *inputs, **attributes):
    """Output capsules are shorter than one, which is their magnitude."""
    return (
        np.ones_like(reference.forward(*inputs, **attributes)),
        *reference.backward_magnitude(grad, *inputs, **attributes),
    )


_SUITE = cases.suites()["CapsuleRouting"]
_FRAMES = {"unknown_shapes": ("primes", "iterations_1")}
_PLAIN = widened(_SUITE.rivals["einsum"])
OP = Description(_SUITE, _PLAIN, _reference, _magnitude, _FRAMES)


def plain_coefficients(inputs, weights, logits, iterations, **attributes):
    """Returns what `routing_coefficients` would, in plain TensorFlow."""
    predictions = tf.einsum("bik,ijdk->bijd", inputs, weights)
    total = tf.zeros_like(predictions[:, 0])
    for done in range(1, iterations):
        total += OP.plain(inputs, weights, logits, iterations=done, **attributes)
    agreement = tf.einsum("bijd,bjd->bij", predictions, total)
    return tf.nn.softmax(logits + agreement)
