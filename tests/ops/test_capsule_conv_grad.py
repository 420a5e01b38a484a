# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The gradients of CapsuleConv's gradient ops."""

import tensorflow as tf
from descriptions.capsule_conv import OP
from finite_differences import assert_gradients_agree
from frames import both_ways
from registrations import bare

from tf_capsops.bench import cases

gradient_cases = OP.cases(cases.GRADIENT)


@gradient_cases
def test_gradients_of_the_gradient_ops(case, device):
    grad, inputs, weights = OP.draw(case, tf.float64)

    def by_input(weights, grad):
        op = case.bind(bare().capsule_conv_backprop_input)
        return op(inputs.shape, weights, grad)

    def by_weights(inputs, grad):
        op = case.bind(bare().capsule_conv_backprop_weights)
        return op(inputs, weights.shape, grad)

    assert_gradients_agree(by_input, [weights, grad])
    assert_gradients_agree(by_weights, [inputs, grad])


@both_ways
def test_sizes_have_no_gradient(way, device):
    (case, *_) = OP.suite.select(cases.SMOKE)
    grad, inputs, weights = OP.draw(case, tf.float64)

    @way
    def gradients():
        sizes = tf.shape(inputs), tf.shape(weights)
        with tf.GradientTape() as tape:
            tape.watch([*sizes, grad])
            results = (
                bare().capsule_conv_backprop_input(sizes[0], weights, grad),
                bare().capsule_conv_backprop_weights(inputs, sizes[1], grad),
            )
        return [g is None for g in tape.gradient(results, [*sizes, grad])]

    assert gradients() == [True, True, False]
