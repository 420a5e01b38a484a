# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The fully connected layer whose weights are zero or signed powers of two."""

import keras
import tensorflow as tf

from tf_capsops.arguments import float_tensors, positive_int
from tf_capsops.layers.inq_layer import InqLayer
from tf_capsops.ops.fake_quant import range_of
from tf_capsops.registered import registered
from tf_capsops.shapes import dimensions


@registered
class InqDense(InqLayer):
    """A `keras.layers.Dense` with weights of few bits.

    It works like an `InqConv2D` with a kernel of one pixel, applied along the last
    axis. In float32, and on a GPU also in bfloat16, it decodes the weights and runs a
    matrix product.

    Input shape: `[..., C]`, of rank 2 or more. Output shape: `[..., units]`.

    Weights: `codes` `[1, 1, C, units]`, uint8; `top_exponent`, an int64; `bias`
    `[units]`. `kernel` is the decoded kernel, a NumPy array.

    Args:
      units: the size of the last axis of the output.
      bits, per_channel: as for `InqConv2D`.
      activation: a function of the output, or a name that Keras knows.
      use_bias: whether the layer has a bias.
      kernel_initializer: draws weights `[C, units]`, which are quantized.
      bias_initializer, bias_regularizer, bias_constraint: as for `keras.layers.Dense`.

    Raises:
      ValueError: if an argument is not as above, or the input's last axis is unknown.

    >>> import numpy as np
    >>> import tf_capsops
    >>> layer = tf_capsops.layers.InqDense(units=3, bits=5)
    >>> layer(np.ones([2, 7, 4])).shape.as_list()
    [2, 7, 3]
    """

    def __init__(self, units, bits=5, activation=None, *, per_channel=False, **kwargs):
        super().__init__(bits, activation, per_channel=per_channel, **kwargs)
        self.units = positive_int("InqDense", "units", units)
        self.supports_masking = True  # Like keras.layers.Dense.

    def build(self, input_shape):
        self.compute_output_shape(input_shape)
        channels = input_shape[-1]
        drawn = (channels, self.units)
        self._add_weights((1, 1, *drawn), drawn, self.units)
        self.input_spec = keras.layers.InputSpec(min_ndim=2, axes={-1: channels})

    def call(self, inputs):
        (inputs,) = float_tensors("InqDense", inputs=inputs)
        quantized_range = range_of(inputs)
        if self._may_decode(inputs, quantized_range):
            return self._finished(tf.tensordot(inputs, self._decoded()[0, 0], 1))
        *before, channels = dimensions(inputs)
        # Seen as one image of height 1, all rows keep their order in memory.
        row = tf.reshape(inputs, [1, 1, tf.reduce_prod(before), channels])
        outputs = self._convolve(row, quantized_range, padding="SAME")
        return tf.reshape(outputs, [*before, self.units])

    def compute_output_shape(self, input_shape):
        shape = tuple(input_shape)
        if not shape or shape[-1] is None:
            raise ValueError(
                "InqDense: the input must be [..., channels] with known channels, got "
                f"shape {shape}"
            )
        return (*shape[:-1], self.units)

    def get_config(self):
        return {**super().get_config(), "units": self.units}
