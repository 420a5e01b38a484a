# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Convolution over pose matrices in NumPy, from its definition.

Capsules may be of any rank: axes between the channel and the matrix multiply side by
side.
"""

import numpy as np


def output_size(size, kernel, stride, dilation, padding):
    """Returns (output size, zeros before the image) along one axis, as TensorFlow."""
    effective = (kernel - 1) * dilation + 1
    if padding == "VALID":
        return max(0, -(-(size - effective + 1) // stride)), 0
    out = -(-size // stride)
    return out, max((out - 1) * stride + effective - size, 0) // 2


def _pairs(inputs_shape, weights_shape, strides, dilations, padding):
    """Yields (kernel position, output pixels, the input pixels they read there)."""
    axes = []
    for axis in range(2):
        size, kernel = inputs_shape[1 + axis], weights_shape[axis]
        out, before = output_size(size, kernel, strides[axis], dilations[axis], padding)
        reads = []
        for k in range(kernel):
            pixels = np.arange(out)
            source = pixels * strides[axis] + k * dilations[axis] - before
            inside = (source >= 0) & (source < size)
            reads.append((pixels[inside], source[inside]))
        axes.append(reads)
    for kh, (y, source_y) in enumerate(axes[0]):
        for kw, (x, source_x) in enumerate(axes[1]):
            pixels, source = np.ix_(y, x), np.ix_(source_y, source_x)
            yield (kh, kw), (slice(None), *pixels), (slice(None), *source)


def output_shape(inputs_shape, weights_shape, strides, dilations, padding):
    size = [
        output_size(
            inputs_shape[1 + a], weights_shape[a], strides[a], dilations[a], padding
        )[0]
        for a in range(2)
    ]
    pose = (*inputs_shape[4:-1], weights_shape[-1])
    return (inputs_shape[0], *size, weights_shape[3], *pose)


def _einsum(equation, *operands):
    return np.einsum(equation, *operands, optimize=True)  # a product of matrices


def forward(inputs, weights, strides=(1, 1), padding="VALID", dilations=(1, 1)):
    """output[n,y,x,o] = sum over kh, kw, c of input[n,y',x',c] @ weights[kh,kw,c,o]."""
    shape = output_shape(inputs.shape, weights.shape, strides, dilations, padding)
    output = np.zeros(shape)
    for k, pixels, source in _pairs(
        inputs.shape, weights.shape, strides, dilations, padding
    ):
        output[pixels] += _einsum(
            "nyxc...pq,co...qr->nyxo...pr", inputs[source], weights[k]
        )
    return output


def backprop_input(
    inputs_shape, weights, grad, strides=(1, 1), padding="VALID", dilations=(1, 1)
):
    """The gradient of `forward` in its inputs."""
    result = np.zeros(inputs_shape)
    for k, pixels, source in _pairs(
        inputs_shape, weights.shape, strides, dilations, padding
    ):
        result[source] += _einsum(
            "nyxo...pr,co...qr->nyxc...pq", grad[pixels], weights[k]
        )
    return result


def backprop_weights(
    inputs, weights_shape, grad, strides=(1, 1), padding="VALID", dilations=(1, 1)
):
    """The gradient of `forward` in its weights."""
    result = np.zeros(weights_shape)
    for k, pixels, source in _pairs(
        inputs.shape, weights_shape, strides, dilations, padding
    ):
        result[k] += _einsum(
            "nyxc...pq,nyxo...pr->co...qr", inputs[source], grad[pixels]
        )
    return result
