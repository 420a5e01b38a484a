# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""A function's values with another function's gradient."""

import tensorflow as tf


def with_gradient_of(function, values):
    """Returns a function with the values of `values` and the gradient of `function`.

    Args:
      function: a function of tensors that returns one tensor.
      values: a function of the same tensors, whose result has the same shape and type.
    """

    @tf.custom_gradient
    def call(*tensors):
        def gradient(upstream):
            with tf.GradientTape() as tape:
                tape.watch(tensors)
                outputs = function(*tensors)
            return tape.gradient(outputs, tensors, upstream)

        return values(*tensors), gradient

    return call
