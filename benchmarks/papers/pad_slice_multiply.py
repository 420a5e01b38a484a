# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""High-order convolution in framework ops, as Simeng and Zhejin, "PyTorch Extension".

Its "Python" and its "C++" implementation. Both call the framework's ops one by one, so
both are functions of TensorFlow ops here; they differ in who makes the gradient. The
layout of tensors is the paper's: inputs [batch, channels, height, width], weights
[kernel_height * kernel_width, batch, 1, height, width].
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import tensorflow as tf

Size = tuple[int, int]


def _padded(inputs: tf.Tensor, kernel_size: Size) -> tf.Tensor:
    down, across = (size // 2 for size in kernel_size)
    return tf.pad(inputs, [[0, 0], [0, 0], [down, down], [across, across]])


def _slices(padded: tf.Tensor, kernel_size: Size) -> Iterator[tf.Tensor]:
    """Yields the part of the input that each position of the kernel reads."""
    height, width = (
        padded.shape[2 + axis] - size + 1 for axis, size in enumerate(kernel_size)
    )
    for down, across in itertools.product(*map(range, kernel_size)):
        yield padded[:, :, down : down + height, across : across + width]


def python(inputs, weights, kernel_size: Size) -> tf.Tensor:
    """Pads, slices, multiplies and adds; the gradient is the framework's."""
    output = tf.zeros_like(inputs)
    for i, read in enumerate(_slices(_padded(inputs, kernel_size), kernel_size)):
        output += read * weights[i]
    return output


def cpp(inputs, weights, kernel_size: Size) -> tf.Tensor:
    """Computes like `python`; the gradient also pads, slices and multiplies."""

    @tf.custom_gradient
    def compute(inputs, weights):
        def gradients(grad):
            padded = _padded(inputs, kernel_size)
            grad_padded, grad_weights = tf.zeros_like(padded), []
            rows, columns = (size - 1 for size in kernel_size)
            for i, read in enumerate(_slices(padded, kernel_size)):
                down, across = divmod(i, kernel_size[1])
                outside = [[down, rows - down], [across, columns - across]]
                grad_padded += tf.pad(grad * weights[i], [[0, 0], [0, 0], *outside])
                grad_weights.append(tf.reduce_sum(grad * read, axis=1, keepdims=True))
            top, left = rows // 2, columns // 2
            _, _, height, width = inputs.shape
            inside = grad_padded[:, :, top : top + height, left : left + width]
            return inside, tf.stack(grad_weights)

        return python(inputs, weights, kernel_size), gradients

    return compute(inputs, weights)
