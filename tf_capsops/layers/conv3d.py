# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The ordinary convolution of volumes, as capsule convolutions of images."""

import math

import keras
import tensorflow as tf

from tf_capsops import _portable
from tf_capsops.layers.conv2d import has_gpus, is_empty, is_for_hopper, of_nothing
from tf_capsops.ops.conv3d import conv3d
from tf_capsops.registered import registered

# The fewest that were measured: numbers of a window, channels and filters.
_FEWEST_OF_WINDOW = 1024
_FEWEST_CHANNELS, _FEWEST_FILTERS = 16, 32


@registered
class Conv3D(keras.layers.Conv3D):
    """`keras.layers.Conv3D`, by `tf_capsops.capsule_conv2d` where that is faster.

    Arguments, weights, saved weights and results are those of `keras.layers.Conv3D`,
    but for rounding, with channels last. On GPUs of compute capability 9.0, in 16-bit
    types or with TF32 allowed, our kernels convolve with windows that are dilated, and
    on any GPU windows of one voxel are a product of matrices: docs/conv2d.md has the
    rule. All others run on TensorFlow's convolution, and so does everything on a CPU or
    under `tf_capsops.portable`.

    Raises:
      ValueError: when the layer is built, if its `data_format`, by default that of
        Keras' configuration, is not `"channels_last"`.

    >>> import numpy as np
    >>> from tf_capsops.layers import Conv3D
    >>> Conv3D(8, 3, dilation_rate=2)(np.ones([2, 7, 7, 7, 3])).shape.as_list()
    [2, 3, 3, 3, 8]
    """

    def build(self, input_shape):
        if self.data_format != "channels_last":
            raise ValueError(
                f"{type(self).__name__}: data_format must be 'channels_last', got "
                f"{self.data_format!r}"
            )
        super().build(input_shape)

    def convolution_op(self, inputs, kernel):
        if is_empty(inputs):
            return of_nothing(self, inputs, kernel)
        if _portable.is_on() or self.groups != 1 or {*self.strides} != {1}:
            return super().convolution_op(inputs, kernel)
        if {*self.kernel_size} == {1} and has_gpus():
            # XLA fuses what follows with the product.
            matrix = keras.ops.reshape(kernel, kernel.shape[-2:])
            return keras.ops.tensordot(inputs, matrix, axes=1)
        if ours_is_faster(kernel.shape, self.dilation_rate, inputs.dtype):
            return conv3d(
                tf.convert_to_tensor(inputs),
                tf.convert_to_tensor(kernel),
                self.padding.upper(),
                self.dilation_rate,
            )
        return super().convolution_op(inputs, kernel)


def ours_is_faster(kernel_shape, dilation_rate, dtype):
    """Whether training with our kernels takes less time than with TensorFlow's.

    The rule is fixed, so that runs do not differ. docs/notebook/conv2d.md has the times
    that it was made from.

    Args:
      kernel_shape: `[KD, KH, KW, C, filters]`.
      dilation_rate: three ints.
      dtype: of volumes and weights.
    """
    if {*dilation_rate} == {1} or not (has_gpus() and is_for_hopper(dtype)):
        return False
    *_, channels, filters = kernel_shape
    aligned = 16 // tf.as_dtype(dtype).size  # numbers that a GPU loads at once
    has_enough = channels >= _FEWEST_CHANNELS and filters >= _FEWEST_FILTERS
    is_large = math.prod(kernel_shape[:-1]) >= _FEWEST_OF_WINDOW and has_enough
    return is_large and channels % aligned == filters % aligned == 0
