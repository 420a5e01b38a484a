# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Functions with the gradient of other functions."""

import tensorflow as tf


def with_gradient_of(function, values):
    """Returns the function `values`, with the gradient of `function`.

    Args:
      function: takes tensors and returns one.
      values: takes the same tensors, and returns one of the same shape and type.
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
