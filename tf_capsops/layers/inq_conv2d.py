# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The convolution whose weights are zero or powers of two."""

import math

import keras
import tensorflow as tf

from tf_capsops.arguments import float_tensors, positive_int
from tf_capsops.layers.conv2d import (
    convolved,
    has_gpus,
    is_for_hopper,
    ours_is_faster,
)
from tf_capsops.layers.data_format import checked_images
from tf_capsops.layers.inq_layer import InqLayer
from tf_capsops.layers.window import map_size, set_window
from tf_capsops.ops.capsule_conv import capsule_conv2d, capsule_conv2d_bias_relu
from tf_capsops.ops.fake_quant import range_of
from tf_capsops.registered import registered

# Weights that a CPU decodes in less time than a pass over the outputs takes.
_MOST_DECODED = 1 << 16


@registered
class InqConv2D(InqLayer):
    """A `keras.layers.Conv2D` with weights of few bits, by `tf_capsops.inq_conv2d`.

    Its kernel holds codes of `tf_capsops.inq`, which take a byte for each weight in
    memory and `bits` bits in a file. Codes do not train; the bias does, and gradients
    reach the input. `tf_capsops.inq.IncrementalQuantization` trains weights for the
    layer, and `tf_capsops.inq.convert` makes one from a `Conv2D`; `set_kernel`
    quantizes weights at once. Regularizers and constraints exist for the bias only. A
    CPU convolves the output of a `FakeQuant` in integers, with up to 5 bits. In float32
    the layer decodes its weights where the kernels of `Conv2D` take less time: windows
    of one pixel, few weights with `relu` on a CPU, and what `Conv2D` computes by our
    kernels on a GPU in TF32 or bfloat16.

    Input shape: `[B, H, W, C]`. Output shape: `[B, H', W', filters]`. Batch, height and
    width may be unknown.

    Weights: `codes` `[KH, KW, C, filters]`, uint8; `top_exponent`, an int64; `bias`
    `[filters]`. `kernel` is the decoded kernel, a NumPy array.

    Args:
      filters: how many features each output pixel has.
      kernel_size: one or two ints.
      bits: bits of a weight, 2 to 8.
      per_channel: whether each output channel has its own code book, and its own number
        in `top_exponent`.
      strides: one or two ints.
      padding: `"valid"` or `"same"`.
      dilation_rate: one or two ints.
      activation: a function of the output, or a name that Keras knows.
      use_bias: whether there is a bias.
      kernel_initializer: draws weights, which are quantized.
      bias_initializer, bias_regularizer, bias_constraint: as for `keras.layers.Conv2D`.

    Raises:
      ValueError: if an argument or the input's shape is not as above.

    >>> import numpy as np
    >>> import tf_capsops
    >>> layer = tf_capsops.layers.InqConv2D(filters=2, kernel_size=1, bits=3)
    >>> layer(np.ones([1, 5, 5, 1])).shape.as_list()
    [1, 5, 5, 2]
    >>> layer.set_kernel([[[[0.7, -1.2]]]])
    >>> layer.kernel.tolist()
    [[[[0.5, -1.0]]]]
    """

    def __init__(
        self,
        filters,
        kernel_size,
        bits=5,
        strides=1,
        padding="valid",
        dilation_rate=1,
        activation=None,
        **kwargs,
    ):
        super().__init__(bits, activation, **kwargs)
        self.filters = positive_int("InqConv2D", "filters", filters)
        set_window(self, kernel_size, strides, padding, dilation_rate)

    def build(self, input_shape):
        self.compute_output_shape(input_shape)
        shape = (*self.kernel_size, input_shape[-1], self.filters)
        self._add_weights(shape, shape, self.filters)
        self.input_spec = keras.layers.InputSpec(ndim=4, axes={3: input_shape[-1]})

    def call(self, images):
        (images,) = float_tensors("InqConv2D", images=images)
        quantized_range = range_of(images)
        may_decode = self._may_decode(images, quantized_range)
        if may_decode and self._is_faster_decoded(images.dtype):
            return self._convolve_decoded(images)
        return self._convolve(
            images,
            quantized_range,
            strides=self.strides,
            padding=self.padding.upper(),
            dilations=self.dilation_rate,
        )

    @property
    def _is_product(self):
        """Whether windows are single pixels."""
        return {*self.kernel_size, *self.strides} == {1}

    @property
    def _is_rectified(self):
        return self.use_bias and self.activation is keras.activations.relu

    def _is_faster_decoded(self, dtype):
        """Whether it takes less time to decode, and convolve as `Conv2D` does.

        Windows of one pixel are a product of matrices. Otherwise a GPU gains where
        `Conv2D` runs our kernels, and a CPU only by the one that adds the bias and
        rectifies, and with few weights: docs/notebook/inq_conv.md has the times.
        """
        on_gpu, shape = has_gpus(), self.codes.shape
        if on_gpu and not is_for_hopper(dtype):
            return False
        is_small = self._is_rectified and math.prod(shape) <= _MOST_DECODED
        may_gain = on_gpu or is_small
        return self._is_product or (may_gain and ours_is_faster(shape, dtype))

    def _convolve_decoded(self, images):
        kernel = self._decoded()
        if self._is_product:
            return self._finished(tf.tensordot(images, kernel[0, 0], 1))
        if not self._is_rectified:
            return self._finished(convolved(self, capsule_conv2d, images, kernel))
        bias = tf.convert_to_tensor(self.bias)
        return convolved(self, capsule_conv2d_bias_relu, images, kernel, bias)

    def compute_output_shape(self, input_shape):
        shape = checked_images(self, input_shape)
        return (shape[0], *map_size(self, shape), self.filters)

    def get_config(self):
        return {
            **super().get_config(),
            "filters": self.filters,
            "kernel_size": self.kernel_size,
            "strides": self.strides,
            "padding": self.padding,
            "dilation_rate": self.dilation_rate,
        }
