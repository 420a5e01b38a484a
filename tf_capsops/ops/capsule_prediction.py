# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Prediction vectors of a fully connected capsule layer."""

import tensorflow as tf

from tf_capsops import _library, _portable
from tf_capsops.arguments import float_tensors
from tf_capsops.shapes import ShapeRule


def capsule_prediction(inputs, weights, name=None):
    """Predicts every output capsule from every input capsule, each pair by a matrix.

    `output[b, i, j] = weights[i, j] @ inputs[b, i]`. This is equation 2 (left) of
    Sabour, Frosst and Hinton, "Dynamic Routing Between Capsules" (2017), and the
    operator of van de Wolfshaar, "CUDA, TensorFlow and Capsule Networks" (2018). It is
    differentiable any number of times in both arguments. Half types accumulate in
    float32.

    Args:
      inputs: Capsules, `[batch, in_caps, in_dim]`, of type float32, float64, float16
        or bfloat16.
      weights: Transformation matrices, `[in_caps, out_caps, out_dim, in_dim]`, of the
        same type.
      name: Name of the operation in a graph.

    Returns:
      Prediction vectors (`u_hat`), `[batch, in_caps, out_caps, out_dim]`. They are zero
      if `in_dim` is 0.

    Raises:
      ValueError: `inputs` or `weights` is of another type, ragged or sparse.
      tf.errors.InvalidArgumentError: A rank or a dimension does not fit (a
        `ValueError` while a graph is built).
      ImportError: The operator library is missing or of another TensorFlow version.

    Example:

    >>> import tensorflow as tf
    >>> import tf_capsops
    >>> u = tf.constant([[[1.0, 2.0]]])                # one sample, one capsule
    >>> w = tf.constant([[[[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]]])
    >>> tf_capsops.capsule_prediction(u, w).numpy()
    array([[[[1., 2., 3.]]]], dtype=float32)
    """
    owner = "capsule_prediction"
    inputs, weights = float_tensors(owner, inputs=inputs, weights=weights)
    if _portable.is_on():
        return _portable.compute(plain, inputs, weights, name=name or owner)
    return _library.load().capsule_prediction(input=inputs, weights=weights, name=name)


def plain(inputs, weights):
    """The definition of `capsule_prediction` in TensorFlow's own ops."""
    rule = ShapeRule("CapsulePrediction")
    inputs = rule.bind("input", inputs, ("batch", "in_caps", "in_dim"))
    axes = ("in_caps", "out_caps", "out_dim", "in_dim")
    operands = rule.checked(inputs, rule.bind("weights", weights, axes))
    return tf.einsum("bik,ijdk->bijd", *operands)


@tf.RegisterGradient("CapsulePrediction")
def _capsule_prediction_grad(op, grad):
    return _library.load().capsule_prediction_grad(grad, *op.inputs)


@tf.RegisterGradient("CapsulePredictionGrad")
def _capsule_prediction_grad_grad(op, grad_input_grad, grad_weights_grad):
    # The gradient op is bilinear in (grad, weights) and in (grad, input). So its own
    # gradient is the same op, with the incoming gradients as input and weights.
    grad, inputs, weights = op.inputs
    lib = _library.load()
    grad_grad = lib.capsule_prediction(grad_input_grad, weights)
    grad_grad += lib.capsule_prediction(inputs, grad_weights_grad)
    return grad_grad, *lib.capsule_prediction_grad(
        grad, grad_input_grad, grad_weights_grad
    )
