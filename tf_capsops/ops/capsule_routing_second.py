# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Second derivatives of routing by agreement, in TensorFlow's own ops.

The gradient op gives dx = J(x)^T g, where x stands for inputs, weights and logits, J
for the Jacobian of the output capsules, and g for their gradient. Backpropagating t
through that op means computing the gradients of <t, J(x)^T g> = <J(x) t, g> in g and x.
J(x) t, the output's tangent along t, follows from the same passes over the input
capsules as the output itself. A pass goes through them in blocks. When it is
differentiated, it computes the predictions of a block again, so that the predictions of
only one block are stored at any time.
"""

import functools

import tensorflow as tf

from tf_capsops.ops.squash import at_least_float32
from tf_capsops.shapes import sizes

# The most predictions of a block. About twenty tensors of this size exist at a time.
_BLOCK = 2**18


def gradients(grad, inputs, weights, logits, tangents, iterations, epsilon):
    """Returns the gradients of <tangents, gradients of routing> in the first four.

    Args:
      grad: the gradient that routing's gradient op took, `[batch, out_caps, out_dim]`.
      inputs, weights, logits: as `capsule_routing` takes them.
      tangents: the incoming gradients of that op's results for those three.
      iterations: the routing's iterations, an int, or a scalar tensor if unknown.
      epsilon: the routing's epsilon.
    """
    primals = inputs, weights, logits
    return _traced(epsilon)(grad, primals, tangents, iterations)


@functools.cache
def _traced(epsilon):
    """Returns the computation of `gradients` as a graph function.

    A graph frees what it no longer needs. An eager tape would keep every block.
    """

    @tf.function(autograph=False, reduce_retracing=True)
    def backpropagated(grad, primals, tangents, iterations):
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
    tangent = _output_tangent(values, widened(tangents), iterations, epsilon)
    found = _backpropagated(tangent, values, at_least_float32(grad))
    return [tf.cast(each, grad.dtype) for each in (tangent, *found)]


def _backpropagated(results, values, grads):
    """Returns the gradients of `results` in `values`, inside a graph.

    A tape would record nothing while a `tf.autodiff.ForwardAccumulator` is active.
    """
    return tf.gradients(results, values, grads, unconnected_gradients="zero")


def _output_tangent(values, tangents, iterations, epsilon):
    """Returns the tangent of the output capsules, `[batch, out_caps, out_dim]`."""
    inputs, weights, _ = values
    batch, out = sizes(inputs)[0], sizes(weights)[1:3]
    blocks = _in_blocks([*values, *tangents], batch * out[0] * out[1])

    def iterate(total, total_tangent, _):
        sums, sums_tangent = _pass(_block_sums, blocks, [total, total_tangent], 0, 2)
        output, tangent = _squash(sums, sums_tangent, epsilon)
        return total + output, total_tangent + tangent, tangent

    state = [tf.zeros([batch, *tf.unstack(out)], inputs.dtype)] * 3
    if tf.is_tensor(iterations):
        state = tf.while_loop(
            lambda *_: True, iterate, state, maximum_iterations=iterations
        )
    else:
        for _ in range(iterations):
            state = iterate(*state)
    return state[-1]


def _in_blocks(operands, predictions):
    """Splits inputs, weights, logits and their tangents into blocks of input capsules.

    The blocks are the first axis of the results. Zero capsules fill up the last block.
    They predict zeros, which add nothing to any sum.
    """
    in_caps = sizes(operands[1])[0]
    most = tf.minimum(_BLOCK // tf.maximum(predictions, 1), in_caps)
    size = tf.maximum(most, 1)
    count = tf.maximum(-(-in_caps // size), 1)  # TensorFlow cannot stack empty lists.

    def divided(tensor):
        rest = [count * size - in_caps, *[0] * (tensor.shape.rank - 1)]
        padded = tf.pad(tensor, [[0, more] for more in rest])
        return tf.reshape(padded, tf.concat([[count, size], tf.shape(tensor)[1:]], 0))

    return [
        divided(tf.transpose(each, [1, 0, 2]) if place % 3 == 0 else each)
        for place, each in enumerate(operands)
    ]


def _pass(compute, blocks, shared, arrays, sums):
    """Calls a function on each block, and stacks some of its results and sums others.

    The gradient of a pass is another pass. So derivatives of any order compute the
    predictions block by block, and never store more than those of one block.

    Args:
      compute: a function of one block of each operand in `blocks`, followed by the
        operands in `shared`. It returns the results to stack, followed by those to sum.
      blocks: operands whose first axis is the block.
      shared: operands that are the same for all blocks.
      arrays: the number of results to stack. They have the shapes of the first `arrays`
        operands of `blocks`.
      sums: the number of results to sum. They have the shapes of the first `sums`
        operands of `shared`.
    """

    @tf.custom_gradient
    def run(*operands):
        # In the graph of a gradient, these copies replace tensors of the outer graph.
        operands = [tf.identity(each) for each in operands]
        blocks_of, rest = operands[: len(blocks)], operands[len(blocks) :]
        count = tf.shape(blocks_of[0])[0]

        def take(number, stacked, *totals):
            results = compute(*[each[number] for each in blocks_of], *rest)
            pairs = zip(stacked, results[:arrays], strict=True)
            stacked = [array.write(number, result) for array, result in pairs]
            added = [a + b for a, b in zip(totals, results[arrays:], strict=True)]
            return number + 1, stacked, *added

        empty = [
            tf.TensorArray(each.dtype, count, element_shape=each.shape[1:])
            for each in blocks_of[:arrays]
        ]
        zeros = [tf.zeros_like(each) for each in rest[:sums]]
        _, stacked, *totals = tf.while_loop(
            lambda number, *_: number < count,
            take,
            [0, empty, *zeros],
            parallel_iterations=1,
        )

        def backward(*grads):
            both = [*blocks_of, *grads[:arrays]], [*rest, *grads[arrays:]]
            return _pass(differentiated, *both, len(blocks_of), len(rest))

        return [*(array.stack() for array in stacked), *totals], backward

    def differentiated(*operands):
        ends = len(blocks), len(blocks) + arrays, len(operands) - sums
        values = [*operands[: ends[0]], *operands[ends[1] : ends[2]]]
        values = [tf.identity(each) for each in values]
        grads = [*operands[ends[0] : ends[1]], *operands[ends[2] :]]
        return _backpropagated(compute(*values), values, grads)

    return run(*blocks, *shared)


def _block_sums(x, w, b, dx, dw, db, total, dtotal):
    """Returns a block's contribution to the sums of a pass, and its tangent.

    The axes are: i input capsules, b samples, j output capsules, d dimensions of an
    output capsule, k dimensions of an input capsule.
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
