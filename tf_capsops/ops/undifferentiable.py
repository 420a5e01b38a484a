# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a gradient op that has no gradient of its own says."""

import tensorflow as tf


def register(gradient_op, op):
    """Makes differentiating a gradient op an error that says so.

    TensorFlow's own speaks of its gradient registry, and AutoGraph turns it into an
    error of another type.

    Args:
      gradient_op: the name of the op, in C++, that computes the gradient of `op`.
      op: the name of the op whose second derivative somebody asks for.
    """

    @tf.RegisterGradient(gradient_op)
    def refused(*_):
        error = LookupError(
            f"{op} has no second derivative and no forward-mode derivative, because "
            f"its gradient op {gradient_op} is not differentiable; within "
            "tf_capsops.portable() both exist."
        )
        error.ag_pass_through = True  # AutoGraph raises it as it is
        raise error
