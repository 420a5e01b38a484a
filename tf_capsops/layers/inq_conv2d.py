# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The convolution whose weights are zero or signed powers of two."""

import math

import keras

from tf_capsops.arguments import float_tensors, positive_int
from tf_capsops.layers.conv2d import (
    convolution,
    has_gpus,
    is_for_hopper,
    is_product,
    is_rectified_by_ours,
    ours_is_faster,
    rectified,
)
from tf_capsops.layers.data_format import checked_images
from tf_capsops.layers.inq_layer import InqLayer
from tf_capsops.layers.window import map_size, set_window
from tf_capsops.ops.fake_quant import range_of
from tf_capsops.registered import registered

# A CPU decodes up to this many weights faster than it passes over the outputs once.
_MOST_DECODED = 1 << 16


@registered
class InqConv2D(InqLayer):
    """A `keras.layers.Conv2D` with weights of few bits, with `tf_capsops.inq_conv2d`.

    The kernel is stored as codes of `tf_capsops.inq`: one byte for each weight in
    memory, and `bits` bits in a file. The codes do not train; the bias does, and
    gradients reach the input. There are three ways to set the kernel:

    * `tf_capsops.inq.IncrementalQuantization` trains weights for such a layer.
    * `tf_capsops.inq.convert` converts a `Conv2D`.
    * `set_kernel` quantizes weights in one step.

    Only the bias has a regularizer and a constraint. The layer computes on one of
    several paths:

    * On a CPU, with up to 5 bits, it convolves the output of a `FakeQuant` in integers.
    * On a CPU in float32, it decodes the kernel and computes like `Conv2D` if that is a
      matrix product (windows of one pixel, strides of 1), or if there are few weights
      and `Conv2D` runs our kernel with bias and relu.
    * On a GPU of compute capability 9.0, in bfloat16 or in float32 with TF32, it also
      decodes the kernel, unless the window is dilated and `Conv2D` would be slow.
    * Otherwise it runs `tf_capsops.inq_conv2d`.

    Input shape: `[B, H, W, C]`. Output shape: `[B, H', W', filters]`. Batch, height and
    width may be unknown.

    Weights: `codes` `[KH, KW, C, filters]`, uint8; `top_exponent`, an int64, of shape
    `[filters]` with `per_channel`; `bias` `[filters]`. `kernel` is the decoded kernel,
    a NumPy array.

    Args:
      filters: the number of features at each output pixel.
      kernel_size: one or two ints.
      bits: bits of a weight, 2 to 8.
      per_channel: whether each output channel has its own code book, and so its own
        entry in `top_exponent`.
      strides: one or two ints.
      padding: `"valid"` or `"same"`.
      dilation_rate: one or two ints.
      activation: a function of the output, or a name that Keras knows.
      use_bias: whether the layer has a bias.
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
        *,
        per_channel=False,
        **kwargs,
    ):
        super().__init__(bits, activation, per_channel=per_channel, **kwargs)
        self.filters = positive_int("InqConv2D", "filters", filters)
        set_window(self, kernel_size, strides, padding, dilation_rate)

    def build(self, input_shape):
        self.compute_output_shape(input_shape)
        shape = (*self.kernel_size, input_shape[-1], self.filters)
        self._add_weights(shape, shape, self.filters)
        self.input_spec = keras.layers.InputSpec(ndim=4, axes={3: input_shape[-1]})

    def call(self, images):
        (images,) = float_tensors("InqConv2D", images=images)
        map_size(self, images.shape)  # Rejects too small images.
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

    def _is_faster_decoded(self, dtype):
        """Whether decoding the kernel and convolving as `Conv2D` does is faster.

        GPU: `inq_conv2d` with one code book reads its exponent on the host, so each
        call waits for it. It is still faster in exact float32. With dilated windows,
        TensorFlow's convolution is slow or unsupported. CPU: decoding pays off if
        `Conv2D` is a matrix product, or adds bias and relu in its kernel.
        docs/notebook/inq_conv.md has the measurements.
        """
        if has_gpus():
            is_dilated = {*self.dilation_rate} != {1}
            may_gain = not is_dilated or ours_is_faster(self.codes.shape, dtype)
            return may_gain and is_for_hopper(dtype)
        if is_product(self):
            return True
        is_small = math.prod(self.codes.shape) <= _MOST_DECODED
        return is_small and is_rectified_by_ours(self, self.codes, dtype)

    def _convolve_decoded(self, images):
        kernel = self._decoded()
        if is_rectified_by_ours(self, kernel, images.dtype):
            return rectified(self, images, kernel)
        return self._finished(convolution(self, images, kernel))

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
