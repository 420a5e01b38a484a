# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Routing by agreement with weights that are zero or powers of two."""

import tensorflow as tf

from tf_capsops import _library
from tf_capsops.ops.capsule_routing import sum_type
from tf_capsops.shapes import sizes


def inq_capsule_routing(
    inputs, codes, top_exponent, logits, bits, iterations, epsilon=1e-7
):
    """Computes `tf_capsops.capsule_routing` with weights that are given by their codes.

    The outputs are those of the decoded weights, to the bit. The gradients in `inputs`
    and `logits` are differentiable any number of times, and decode the weights.

    Args:
      inputs, logits, iterations, epsilon: As for `tf_capsops.capsule_routing`.
      codes: Codes as for `tf_capsops.inq_conv2d`, uint8, of the shape of the weights,
        `[in_caps, out_caps, out_dim, in_dim]`.
      top_exponent: The exponent of the largest weights of the code book, an int64.
      bits: Bits of a code, 2 to 8.

    Raises:
      tf.errors.InvalidArgumentError: A rank or a dimension does not fit (a `ValueError`
        while a graph is built), or a code is past the end of the book. A GPU does not
        check the codes, and reads such a one as zero.
    """
    results = _library.load().inq_capsule_routing(
        inputs,
        codes,
        top_exponent,
        logits,
        U=sum_type(inputs),
        bits=bits,
        iterations=iterations,
        epsilon=epsilon,
    )
    return results.output


@tf.RegisterGradient("InqCapsuleRouting")
def _inq_capsule_routing_grad(op, grad, _):
    inputs, codes, top_exponent, logits = op.inputs
    ops = _library.load()
    weights = ops.inq_decode(
        tf.reshape(codes, [-1, 1]),
        tf.reshape(top_exponent, [1]),
        bits=op.get_attr("bits"),
        T=inputs.dtype,
    )
    grads = ops.capsule_routing_grad(
        grad,
        inputs,
        tf.reshape(weights, sizes(codes)),
        logits,
        op.outputs[1],
        epsilon=op.get_attr("epsilon"),
    )
    return grads.grad_input, None, None, grads.grad_logits
