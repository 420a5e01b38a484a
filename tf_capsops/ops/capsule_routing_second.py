# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Second derivatives of routing by agreement, in TensorFlow's own ops.

The gradient op gives dx = J(x)^T g, where x stands for inputs, weights and logits, J
for the derivative of the output capsules, and g for their gradient. Backpropagating t
through it means the gradients of <t, J(x)^T g> = <J(x) t, g> in g and x. J(x) t, the
output's tangent along t, follows from the same passes over the input capsules as the
output itself. A pass goes through them in blocks and computes the predictions of a
block again when it is differentiated, so that no more than those are ever stored.
"""

import functools

import tensorflow as tf

from tf_capsops.ops.squash import at_least_float32
from tf_capsops.shapes import sizes

# Predictions of a block. Some twenty tensors of this size exist at a time.
_BLOCK = 2**18


def gradients(grad, inputs, weights, logits, tangents, iterations, epsilon):
    """Returns the gradients of <tangents, gradients of routing> in the first four.

    Args:
      grad: what routing's gradient op was given, `[batch, out_caps, out_dim]`.
      inputs, weights, logits: as `capsule_routing` takes them.
      tangents: the gradients that come in for those three.
      iterations, epsilon: of the routing.
    """
    primals = inputs, weights, logits
    return _traced(iterations, epsilon)(grad, primals, tangents)


@functools.cache
def _traced(iterations, epsilon):
    """Returns a function of the gradient, the primals and their tangents.

    In a graph, what is not needed is not kept. An eager tape would record every block.
    """

    @tf.function(autograph=False, reduce_retracing=True)
    def backpropagated(grad, primals, tangents):
        return _gradients(grad, primals, tangents, iterations, epsilon)

    return backpropagated


def _gradients(grad, primals, tangents, iterations, epsilon):
    def widened(tensors):
        ranks = 3, 4, 2
        return [
            tf.ensure_shape(at_least_float32(tensor), [None] * rank)
            for tensor, rank in zip(tensors, ranks, strict=True)
        ]

    values = widened(primals)
    with tf.GradientTape() as tape:
        tape.watch(values)
        tangent = _output_tangent(values, widened(tangents), iterations, epsilon)
    found = tape.gradient(tangent, values, at_least_float32(grad))
    return [tf.cast(each, grad.dtype) for each in (tangent, *found)]


def _output_tangent(values, tangents, iterations, epsilon):
    """Returns the tangent of the output capsules, `[batch, out_caps, out_dim]`."""
    inputs, weights, _ = values
    batch, out = sizes(inputs)[0], sizes(weights)[1:3]
    blocks = _in_blocks([*values, *tangents], batch * out[0] * out[1])
    total = total_tangent = tf.zeros([batch, *tf.unstack(out)], inputs.dtype)
    for _ in range(iterations):
        sums, sums_tangent = _pass(*blocks, total, total_tangent)
        output, tangent = _squash(sums, sums_tangent, epsilon)
        total, total_tangent = total + output, total_tangent + tangent
    return tangent


def _in_blocks(operands, predictions):
    """Returns inputs, weights, logits and their tangents with an axis of blocks first.

    Input capsules of zeros complete the last block. They predict zeros, which add
    nothing to any sum.
    """
    in_caps = sizes(operands[1])[0]
    most = tf.minimum(_BLOCK // tf.maximum(predictions, 1), in_caps)
    size = tf.maximum(most, 1)
    count = tf.maximum(-(-in_caps // size), 1)  # TensorFlow stacks no empty lists

    def divided(tensor):
        rest = [count * size - in_caps, *[0] * (tensor.shape.rank - 1)]
        padded = tf.pad(tensor, [[0, more] for more in rest])
        return tf.reshape(padded, tf.concat([[count, size], tf.shape(tensor)[1:]], 0))

    return [
        divided(tf.transpose(each, [1, 0, 2]) if place % 3 == 0 else each)
        for place, each in enumerate(operands)
    ]


@tf.custom_gradient
def _pass(*operands):
    """Returns the sums of a pass over the input capsules, and their tangents.

    Args:
      operands: what `_in_blocks` gave, then the sum of the outputs so far and its
        tangent, `[batch, out_caps, out_dim]` each.
    """
    *blocks, total, total_tangent = operands
    count = tf.shape(blocks[0])[0]

    def add(number, *sums):
        more = _block_sums(*[each[number] for each in blocks], total, total_tangent)
        return number + 1, *(a + b for a, b in zip(sums, more))

    zeros = tf.zeros_like(total)
    _, *sums = tf.while_loop(
        lambda number, *_: number < count, add, [0, zeros, zeros], parallel_iterations=1
    )

    def backward(*grads):
        def differentiate(number, arrays, *by_totals):
            chosen = [*(each[number] for each in blocks), total, total_tangent]
            with tf.GradientTape() as tape:
                tape.watch(chosen)
                more = _block_sums(*chosen)
            found = tape.gradient(more, chosen, grads)
            arrays = [a.write(number, f) for a, f in zip(arrays, found)]
            return number + 1, arrays, *(a + b for a, b in zip(by_totals, found[-2:]))

        arrays = [
            tf.TensorArray(each.dtype, count, element_shape=each.shape[1:])
            for each in blocks
        ]
        _, arrays, *by_totals = tf.while_loop(
            lambda number, *_: number < count,
            differentiate,
            [0, arrays, zeros, zeros],
            parallel_iterations=1,
        )
        return *(array.stack() for array in arrays), *by_totals

    return tuple(sums), backward


def _block_sums(x, w, b, dx, dw, db, total, dtotal):
    """Returns what one block adds to the sums of a pass, and its tangent.

    The letters i, b and j are the axes of input capsules, samples and output capsules,
    d and k those of the output's and the input's dimensions.
    """
    u = tf.einsum("ijdk,ibk->ibjd", w, x)
    du = tf.einsum("ijdk,ibk->ibjd", dw, x) + tf.einsum("ijdk,ibk->ibjd", w, dx)
    logits = b[:, None] + tf.einsum("ibjd,bjd->ibj", u, total)
    dlogits = db[:, None] + tf.einsum("ibjd,bjd->ibj", du, total)
    dlogits += tf.einsum("ibjd,bjd->ibj", u, dtotal)
    c = tf.nn.softmax(logits)
    dc = c * (dlogits - tf.reduce_sum(c * dlogits, axis=-1, keepdims=True))
    sums = tf.einsum("ibj,ibjd->bjd", c, u)
    return sums, tf.einsum("ibj,ibjd->bjd", dc, u) + tf.einsum("ibj,ibjd->bjd", c, du)


def _squash(s, ds, epsilon):
    """Returns the squashed sums and their tangent."""
    square = tf.reduce_sum(s * s, axis=-1, keepdims=True)
    root = tf.sqrt(square + epsilon)
    factor = square / (1 + square) / root
    slope = (1 / (1 + square) - square / (2 * root * root)) / (1 + square) / root
    along = 2 * tf.reduce_sum(s * ds, axis=-1, keepdims=True)
    return factor * s, factor * ds + slope * along * s
