# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""High-order convolution in NumPy, from its definition; NHWC."""

import numpy as np


def _taps(inputs, filters, kernel_size, dilations):
    """Yields (index of the kernel position, pixels, the pixels that they read)."""
    for kh in range(kernel_size[0]):
        for kw in range(kernel_size[1]):
            pixels, source = [], []
            for axis, k in enumerate((kh, kw)):
                place = np.arange(inputs.shape[1 + axis])
                read = place + (k - kernel_size[axis] // 2) * dilations[axis]
                inside = (read >= 0) & (read < inputs.shape[1 + axis])
                pixels.append(place[inside])
                source.append(read[inside])
            yield (
                kh * kernel_size[1] + kw,
                (slice(None), *np.ix_(*pixels)),
                (slice(None), *np.ix_(*source)),
            )


def _by_group(tensor, groups):
    return tensor.reshape(*tensor.shape[:3], groups, tensor.shape[3] // groups)


def forward(inputs, filters, kernel_size, groups=1, dilations=(1, 1)):
    """output[n,y,x,c] = sum over kh, kw of input[n,y',x',c] * filters[n,y,x,g,k]."""
    x, w = _by_group(inputs, groups), _by_group(filters, groups)
    output = np.zeros(x.shape)
    for k, pixels, source in _taps(inputs, filters, kernel_size, dilations):
        output[pixels] += x[source] * w[pixels][..., k, np.newaxis]
    return output.reshape(inputs.shape)


def backward(grad, inputs, filters, kernel_size, groups=1, dilations=(1, 1)):
    """The gradients of `forward` in (inputs, filters)."""
    x, w = _by_group(inputs, groups), _by_group(filters, groups)
    g = _by_group(grad, groups)
    grad_inputs, grad_filters = np.zeros(x.shape), np.zeros(w.shape)
    for k, pixels, source in _taps(inputs, filters, kernel_size, dilations):
        grad_inputs[source] += g[pixels] * w[pixels][..., k, np.newaxis]
        grad_filters[..., k][pixels] = (g[pixels] * x[source]).sum(-1)
    return grad_inputs.reshape(inputs.shape), grad_filters.reshape(filters.shape)
