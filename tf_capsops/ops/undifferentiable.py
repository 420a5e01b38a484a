# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Errors for ops that have no gradient."""

import tensorflow as tf


def register(gradient_op, op):
    """Makes a second derivative of an op an error that says there is none.

    Args:
      gradient_op: the name of the C++ op that computes the gradient of `op`.
      op: the name of the op.
    """
    refuse(
        gradient_op,
        f"{op} has no second derivative and no forward-mode derivative, because its "
        f"gradient op {gradient_op} is not differentiable; within "
        "tf_capsops.portable() both exist.",
    )


def refuse(op, why):
    """Makes differentiating an op raise a `LookupError` with the text `why`.

    TensorFlow's own error is about its gradient registry, and AutoGraph changes its
    type.
    """

    @tf.RegisterGradient(op)
    def refused(*_):
        error = LookupError(why)
        error.ag_pass_through = True  # Tells AutoGraph not to change the error.
        raise error
