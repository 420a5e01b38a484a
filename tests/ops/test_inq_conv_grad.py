# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The gradient of InqConv's gradient op, and which inputs have none."""

import tensorflow as tf
from descriptions.inq_conv import OP
from finite_differences import assert_gradients_agree
from frames import both_ways
from registrations import bare

import tf_capsops
from tf_capsops.bench import cases


@OP.cases(cases.GRADIENT)
def test_gradients_of_the_gradient_op(case, device):
    grad, inputs, *others = OP.draw(case, tf.float64)

    def by_input(grad):
        op = case.bind(bare().inq_conv_backprop_input)
        return op(inputs.shape, *others, grad)

    assert_gradients_agree(by_input, [grad])


@both_ways
def test_only_images_have_gradients(way, device):
    (case, *_) = OP.suite.select(cases.SMOKE)
    grad, inputs, codes, top_exponent = OP.draw(case, tf.float64)

    @way
    def missing():
        sizes = tf.shape(inputs)
        discrete = [sizes, codes, top_exponent]
        with tf.GradientTape(persistent=True) as tape:
            tape.watch([*discrete, inputs, grad])
            output = tf_capsops.inq_conv2d(inputs, codes, top_exponent)
            by_input = bare().inq_conv_backprop_input(sizes, codes, top_exponent, grad)
        return [
            [gradient is None for gradient in tape.gradient(result, sources)]
            for result, sources in (
                (output, [inputs, *discrete]),
                (by_input, [grad, *discrete]),
            )
        ]

    assert missing() == [[False, True, True, True]] * 2
