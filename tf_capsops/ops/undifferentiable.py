# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Errors for ops that have no gradient."""

import tensorflow as tf


def register(gradient_op, op):
    """Makes differentiating a gradient op an error that says so.

    Args:
      gradient_op: the name of the op, in C++, that computes the gradient of `op`.
      op: the name of the op whose second derivative somebody asks for.
    """
    refuse(
        gradient_op,
        f"{op} has no second derivative and no forward-mode derivative, because its "
        f"gradient op {gradient_op} is not differentiable; within "
        "tf_capsops.portable() both exist.",
    )


def refuse(op, why):
    """Makes differentiating an op a `LookupError` with the text `why`.

    TensorFlow's own speaks of its gradient registry, and AutoGraph turns it into an
    error of another type.
    """

    @tf.RegisterGradient(op)
    def refused(*_):
        error = LookupError(why)
        error.ag_pass_through = True  # AutoGraph raises it as it is
        raise error
