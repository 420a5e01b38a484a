# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Convolution with weights from the INQ code book in NumPy, from its definition.

Weights are taken relative to the largest one and results are scaled, so that top
exponents may be past those of float64. To poses of one row, one channel and as many
columns as there are channels it is a capsule convolution.
"""

import numpy as np

from reference import capsule_conv, inq


def absolute(codes):
    """Returns the codes of the weights' absolute values."""
    return codes - ((codes > 0) & (codes % 2 == 0))


def decode_columns(codes, top_exponents, bits=5):
    """InqDecode: the weights of codes, of which each column has its own book."""
    return inq.decode(codes, bits, 0) * np.ldexp(1.0, top_exponents)


def _poses(image):
    return image[:, :, :, None, None, :]


def _weights(codes, bits):
    return inq.decode(codes, bits, 0)[:, :, None, None]


def _moved(strides, padding, dilations):
    return {"strides": strides, "padding": padding, "dilations": dilations}


def output_shape(
    inputs_shape, codes_shape, strides=(1, 1), padding="SAME", dilations=(1, 1)
):
    *image, in_channels = inputs_shape
    *kernel, _, out_channels = codes_shape
    *shape, _, _, out_channels = capsule_conv.output_shape(
        (*image, 1, 1, in_channels),
        (*kernel, 1, 1, in_channels, out_channels),
        **_moved(strides, padding, dilations),
    )
    return (*shape, out_channels)


def forward(
    inputs,
    codes,
    top_exponent,
    bits=5,
    strides=(1, 1),
    padding="SAME",
    dilations=(1, 1),
):
    """The sum over kh, kw, c of input[n,y',x',c] * weight(codes[kh,kw,c,o])."""
    output = capsule_conv.forward(
        _poses(inputs), _weights(codes, bits), **_moved(strides, padding, dilations)
    )
    return np.ldexp(output[:, :, :, 0, 0], top_exponent)


def backprop_input(
    inputs_shape,
    codes,
    top_exponent,
    grad,
    bits=5,
    strides=(1, 1),
    padding="SAME",
    dilations=(1, 1),
):
    """The gradient of `forward` in its inputs."""
    result = capsule_conv.backprop_input(
        (*inputs_shape[:3], 1, 1, inputs_shape[3]),
        _weights(codes, bits),
        _poses(grad),
        **_moved(strides, padding, dilations),
    )
    return np.ldexp(result[:, :, :, 0, 0], top_exponent)
