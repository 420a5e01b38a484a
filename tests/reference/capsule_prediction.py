# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""NumPy float64 reference of CapsulePrediction, with first and second derivatives.

Shapes: input [batch, in_caps, in_dim] (b i k), weights [in_caps, out_caps, out_dim,
in_dim] (i j d k), output [batch, in_caps, out_caps, out_dim] (b i j d).
"""

import numpy as np


def _einsum(equation, *operands):
    operands = [np.asarray(operand, np.float64) for operand in operands]
    return np.einsum(equation, *operands)


def forward(inputs, weights):
    """Returns `output[b,i,j] = weights[i,j] @ inputs[b,i]`."""
    return _einsum("bik,ijdk->bijd", inputs, weights)


def input_gradient(grad, weights):
    """Returns the gradient of `sum(grad * forward(inputs, weights))` by inputs."""
    return _einsum("bijd,ijdk->bik", grad, weights)


def weight_gradient(grad, inputs):
    """Returns the gradient of `sum(grad * forward(inputs, weights))` by weights."""
    return _einsum("bijd,bik->ijdk", grad, inputs)


def backward(grad, inputs, weights):
    """Returns what CapsulePredictionGrad does: (grad_input, grad_weights)."""
    return input_gradient(grad, weights), weight_gradient(grad, inputs)
