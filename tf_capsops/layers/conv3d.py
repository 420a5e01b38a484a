# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The ordinary convolution of volumes, computed as a capsule convolution of images."""

import math

import keras
import tensorflow as tf

from tf_capsops import _portable
from tf_capsops.layers.conv2d import has_gpus, is_empty, is_for_hopper, of_nothing
from tf_capsops.ops.conv3d import conv3d
from tf_capsops.registered import registered

# Our kernels take over from these sizes on, the smallest that were measured: numbers in
# a window (KD * KH * KW * C), channels and filters.
_FEWEST_OF_WINDOW = 1024
_FEWEST_CHANNELS, _FEWEST_FILTERS = 16, 32


@registered
class Conv3D(keras.layers.Conv3D):
    """A `keras.layers.Conv3D` that runs `tf_capsops.capsule_conv2d` where it is faster.

    Arguments, weights, saved weights and results are those of `keras.layers.Conv3D`,
    except for rounding, and that channels must be last. A convolution without groups
    and strides runs on:

    * our kernels, if its window is dilated and large enough, and all GPUs have compute
      capability 9.0 and compute in 16-bit types or TF32;
    * a matrix product, if its window is one voxel, on any GPU.

    TensorFlow's convolution computes all others, and everything on a CPU or under
    `tf_capsops.portable`. docs/conv2d.md has the exact rule.

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
            # XLA can fuse the product with the ops that follow.
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
    """Whether training is expected to be faster with our kernels than TensorFlow's.

    The rule is fixed and measures nothing, so that all runs choose alike.
    docs/notebook/conv2d.md has the measurements behind it.

    Args:
      kernel_shape: `[KD, KH, KW, C, filters]`.
      dilation_rate: Three ints.
      dtype: The dtype of volumes and weights.
    """
    if {*dilation_rate} == {1} or not (has_gpus() and is_for_hopper(dtype)):
        return False
    *_, channels, filters = kernel_shape
    aligned = 16 // tf.as_dtype(dtype).size  # A GPU loads this many numbers at once.
    has_enough = channels >= _FEWEST_CHANNELS and filters >= _FEWEST_FILTERS
    is_large = math.prod(kernel_shape[:-1]) >= _FEWEST_OF_WINDOW and has_enough
    return is_large and channels % aligned == filters % aligned == 0
