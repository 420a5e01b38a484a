# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Routing by agreement between two fully connected layers of capsules."""

import numpy as np
import tensorflow as tf

from tf_capsops import _library, _portable
from tf_capsops.arguments import (
    boolean,
    float_tensors,
    int_between,
    positive_float32,
)
from tf_capsops.ops import capsule_routing_second
from tf_capsops.shapes import ShapeRule, dimensions, joined, sizes

MOST_ITERATIONS = 2**31 - 1

# The arrays of an iteration that `plain_agreement` can round.
ROUNDED = "logits", "coefficients", "sums", "vectors"


def capsule_routing(
    inputs, weights, logits=None, iterations=3, epsilon=1e-7, name=None, *, leaky=False
):
    """Routes input capsules to output capsules by agreement.

    Procedure 1 of Sabour, Frosst and Hinton, "Dynamic Routing Between Capsules"
    (2017), with its equations 1 to 3:

        u_hat[b, i, j] = weights[i, j] @ inputs[b, i]
        l = logits, for every sample
        repeat `iterations` times:
            c = softmax of l[b, i] over the output capsules j
            s[b, j] = sum_i c[b, i, j] u_hat[b, i, j]
            v = s |s|^2 / (1 + |s|^2) / sqrt(|s|^2 + epsilon)
            l = l + <u_hat, v>
        output = v

    Neither `u_hat` nor `c` is ever stored. In iteration r the logits are
    `logits + <u_hat, V_r>`, where `V_r` is the sum of the outputs `v` so far. So the op
    keeps only `V_r`, and computes `u_hat` again in each iteration. In the backward
    pass, the gradient in `V_r` is `sum_i dl_r u_hat`, and the gradient in `u_hat` is
    `sum_r (c_r ds_r + dl_r V_r)`; the latter is contracted with weights and inputs
    immediately.

    In addition to inputs, outputs and gradients, the op therefore needs memory only for
    `iterations` times the output, kept for the gradient, and a small workspace. It is
    differentiable any number of times in inputs, weights and logits, through every
    iteration. TensorFlow's own ops compute second and higher derivatives, over blocks
    of input capsules, and do not store `u_hat` either. Half types are computed in
    float32.

    Args:
      inputs: Capsules, `[batch, in_caps, in_dim]`, of type float32, float64, float16
        or bfloat16.
      weights: Transformation matrices, `[in_caps, out_caps, out_dim, in_dim]`, of the
        same type.
      logits: The logits that routing starts from, `[in_caps, out_caps]`, of the same
        type; zeros by default.
      iterations: How often the output capsules are computed, 1 to 2^31 - 1.
      epsilon: A positive number (a normal float32), which keeps values and gradients
        finite where `s` is zero.
      name: Name of the operation in a graph.
      leaky: Whether the softmax has one extra entry with logit 0, whose share is
        discarded (as in the code of Sabour et al., 2017). It is routed as one more
        output capsule with zero weights, which takes a copy of the weights.

    Returns:
      Output capsules, `[batch, out_caps, out_dim]`, of length below one. They are zero
      if `in_caps` or `in_dim` is 0.

    Raises:
      ValueError: `iterations`, `epsilon` or `leaky` is not as above, or `inputs`,
        `weights` or `logits` is of another type, ragged or sparse.
      tf.errors.InvalidArgumentError: A rank or a dimension does not fit (a
        `ValueError` while a graph is built).
      ImportError: The operator library is missing or of another TensorFlow version.

    Example:

    >>> import tensorflow as tf
    >>> import tf_capsops
    >>> u = tf.constant([[[1.0, 0.0], [0.0, 1.0]]])    # one sample, two capsules
    >>> w = tf.ones([2, 3, 4, 2])                      # to three capsules of four
    >>> tf_capsops.capsule_routing(u, w, iterations=2).shape
    TensorShape([1, 3, 4])
    """
    owner = "capsule_routing"
    attributes = _attributes(owner, iterations, epsilon)
    leaky = boolean(owner, "leaky", leaky)
    operands = _operands(owner, inputs, weights, logits, leaky)
    if _portable.is_on():
        output = _portable.compute(plain, *operands, name=name or owner, **attributes)
    else:
        output = _with_sums(*operands, **attributes, name=name).output
    return output[:, :-1] if leaky else output


def routing_coefficients(
    inputs, weights, logits=None, iterations=3, epsilon=1e-7, name=None, *, leaky=False
):
    """Returns the coefficients by which `capsule_routing` divides input capsules.

    They are the `c` of its last iteration (equation 3 of Sabour et al., 2017), for
    inspection: no gradient flows through them, and a tape gives None.

    Args:
      inputs, weights, logits, iterations, epsilon, leaky: As `capsule_routing` takes
        them.
      name: Name of the operation in a graph.

    Returns:
      Coefficients, `[batch, in_caps, out_caps]`, nonnegative and adding up to 1 over
      `out_caps`, or to less with `leaky`.

    Raises:
      ValueError: An argument is not as `capsule_routing` takes it.
      tf.errors.InvalidArgumentError: A rank or a dimension does not fit (a
        `ValueError` while a graph is built).
      ImportError: The operator library is missing or of another TensorFlow version.

    Example:

    >>> import tensorflow as tf
    >>> import tf_capsops
    >>> u = tf.constant([[[1.0, 0.0], [0.0, 1.0]]])
    >>> w = tf.ones([2, 4, 3, 2])
    >>> tf_capsops.routing_coefficients(u, w).numpy()
    array([[[0.25, 0.25, 0.25, 0.25],
            [0.25, 0.25, 0.25, 0.25]]], dtype=float32)
    """
    owner = "routing_coefficients"
    attributes = _attributes(owner, iterations, epsilon)
    leaky = boolean(owner, "leaky", leaky)
    operands = _operands(owner, inputs, weights, logits, leaky)
    if _portable.is_on():
        found = tf.stop_gradient(
            _portable.compute(
                plain_coefficients, *operands, name=name or owner, **attributes
            )
        )
    else:
        found = _coefficients(*operands, **attributes, name=name)
    return found[..., :-1] if leaky else found


def plain(inputs, weights, logits, iterations, epsilon=1e-7, rounded=None):
    """The definition of `capsule_routing` in TensorFlow's own ops.

    It stores `u_hat`, transposed once so that both sums are matrix products. `rounded`
    is as for `plain_agreement`.
    """
    outputs, _ = _routed(inputs, weights, logits, iterations, epsilon, rounded)
    return tf.squeeze(outputs, axis=2)


def plain_coefficients(inputs, weights, logits, iterations, epsilon=1e-7, rounded=None):
    """The definition of `routing_coefficients` in TensorFlow's own ops."""
    _, coefficients = _routed(inputs, weights, logits, iterations, epsilon, rounded)
    batch = sizes(inputs)[0]
    coefficients = tf.transpose(tf.squeeze(coefficients, axis=2), (0, 2, 1))
    return tf.broadcast_to(coefficients, [batch, *dimensions(coefficients)[1:]])


def _routed(inputs, weights, logits, iterations, epsilon, rounded):
    """Returns outputs `[B, J, 1, D]` and the last coefficients, `[B, J, 1, I]`.

    After a single iteration, all samples share the coefficients: `[1, J, 1, I]`.
    """
    inputs, weights, logits = _bound(inputs, weights, logits)
    in_caps, out_caps, out_dim, in_dim = dimensions(weights)
    flat = tf.reshape(weights, [in_caps, out_caps * out_dim, in_dim])
    predictions = tf.matmul(flat, tf.transpose(inputs, (1, 2, 0)))
    batch = dimensions(inputs)[0]
    predictions = tf.reshape(predictions, [in_caps, out_caps, out_dim, batch])
    predictions = tf.transpose(predictions, (3, 1, 0, 2))  # [B, J, I, D]
    logits = tf.transpose(logits)[tf.newaxis, :, tf.newaxis, :]  # [1, J, 1, I]
    return plain_agreement(predictions, logits, iterations, epsilon, rounded=rounded)


def plain_agreement(
    votes, logits, iterations, epsilon, bias=None, leaky=False, rounded=None
):
    """Routes votes: the iterations of `capsule_routing`'s definition.

    Args:
      votes: `[B, J, I, D]`: for each of B samples, the votes of I children for J
        parents.
      logits: `[1, J, 1, I]`.
      iterations, epsilon: As for `capsule_routing`.
      bias: `[J, 1, D]`, added to the sums of votes, or None.
      leaky: Whether the softmax has one extra entry with logit 0, whose share is
        discarded.
      rounded: A function of a name in `ROUNDED`, the number of the iteration and a
        tensor. It returns the tensor that routing goes on with. None rounds nothing.

    Returns:
      Outputs `[B, J, 1, D]` and the last coefficients, `[B, J, 1, I]`, or
      `[1, J, 1, I]` after a single iteration.
    """
    epsilon = float(np.float32(epsilon))  # The op's attribute is a float32, too.
    rounded = rounded or (lambda name, iteration, tensor: tensor)
    for iteration in range(iterations):
        logits = rounded("logits", iteration, logits)
        if leaky:
            also = tf.concat([logits, tf.zeros_like(logits[:, :1])], axis=1)
            coefficients = tf.nn.softmax(also, axis=1)[:, :-1]
        else:
            coefficients = tf.nn.softmax(logits, axis=1)
        coefficients = rounded("coefficients", iteration, coefficients)
        sums = tf.matmul(coefficients, votes)
        sums = rounded("sums", iteration, sums if bias is None else sums + bias)
        outputs = plain_squash(sums, epsilon)
        if iteration + 1 < iterations:
            outputs = rounded("vectors", iteration, outputs)
            logits += tf.matmul(outputs, votes, transpose_b=True)
    return outputs, coefficients


def plain_squash(sums, epsilon):
    """Computes `tf_capsops.squash` of sums whose squared length is finite."""
    squared = tf.reduce_sum(sums * sums, axis=-1, keepdims=True)
    return sums * (squared / (1 + squared) / tf.sqrt(squared + epsilon))


def _attributes(owner, iterations, epsilon):
    return {
        "iterations": int_between(owner, "iterations", iterations, 1, MOST_ITERATIONS),
        "epsilon": positive_float32(owner, "epsilon", epsilon),
    }


def _operands(owner, inputs, weights, logits, leaky):
    """Returns the three operands as tensors of one type.

    If `leaky`, they have one more parent. All votes for it are 0, so its logit stays 0,
    and its only effect is to take a share.
    """
    if logits is not None:
        operands = float_tensors(owner, inputs=inputs, weights=weights, logits=logits)
    else:
        inputs, weights = float_tensors(owner, inputs=inputs, weights=weights)
        operands = inputs, weights, tf.zeros(sizes(weights)[:2], weights.dtype)
    if not leaky:
        return operands
    inputs, weights, logits = _bound(*operands)
    weights = tf.pad(weights, [[0, 0], [0, 1], [0, 0], [0, 0]])
    return inputs, weights, tf.pad(logits, [[0, 0], [0, 1]])


def _bound(inputs, weights, logits):
    """Checks that operands fit each other, and returns them with known ranks."""
    rule = ShapeRule("CapsuleRouting")
    inputs = rule.bind("input", inputs, ("batch", "in_caps", "in_dim"))
    axes = ("in_caps", "out_caps", "out_dim", "in_dim")
    weights = rule.bind("weights", weights, axes)
    logits = rule.bind("logits", logits, ("in_caps", "out_caps"))
    return rule.checked(inputs, weights, logits)


def sum_type(inputs):
    """Returns the type of the sums that an op keeps for its gradient."""
    return tf.float64 if inputs.dtype == tf.float64 else tf.float32


def _with_sums(inputs, weights, logits, iterations, epsilon, name=None):
    return _library.load().capsule_routing_with_sums(
        inputs,
        weights,
        logits,
        U=sum_type(inputs),
        iterations=iterations,
        epsilon=epsilon,
        name=name,
    )


def _coefficients(inputs, weights, logits, iterations, epsilon, name):
    iterations -= 1
    if iterations:
        sums = _with_sums(inputs, weights, logits, iterations, epsilon).sums
    else:
        shape = joined([0], sizes(inputs)[:1], sizes(weights)[1:3])
        sums = tf.zeros(shape, sum_type(inputs))
    return _library.load().capsule_routing_coefficients(
        inputs, weights, logits, sums, epsilon=epsilon, name=name
    )


@tf.RegisterGradient("CapsuleRoutingWithSums")
def _capsule_routing_with_sums_grad(op, grad, _):
    # The second output, the sums, exists only for this gradient. Nothing else depends
    # on it, so its incoming gradient is ignored.
    return _library.load().capsule_routing_grad(
        grad, *op.inputs, op.outputs[1], epsilon=op.get_attr("epsilon")
    )


@tf.RegisterGradient("CapsuleRouting")
def _capsule_routing_grad(op, grad):
    iterations, epsilon = op.get_attr("iterations"), op.get_attr("epsilon")
    sums = _with_sums(*op.inputs, iterations, epsilon).sums
    return _library.load().capsule_routing_grad(grad, *op.inputs, sums, epsilon=epsilon)


@tf.RegisterGradient("CapsuleRoutingGrad")
def _capsule_routing_second_grad(op, *grads):
    # The sums are a function of the other inputs, so they get no gradient of their own.
    *operands, sums = op.inputs
    epsilon = op.get_attr("epsilon")
    iterations = tf.compat.dimension_value(sums.shape[0])
    if iterations is None:
        iterations = tf.shape(sums)[0]
    found = capsule_routing_second.gradients(*operands, grads, iterations, epsilon)
    return [*found, None]


tf.no_gradient("CapsuleRoutingCoefficients")
