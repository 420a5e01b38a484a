# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The ordinary convolution, as a capsule convolution whose poses are one number."""

import math

import keras
import tensorflow as tf

from tf_capsops import _portable
from tf_capsops.layers.data_format import with_channels_last
from tf_capsops.ops.capsule_conv import capsule_conv2d, capsule_conv2d_bias_relu
from tf_capsops.ops.conv2d import padded_for_tflite
from tf_capsops.registered import registered

# Thresholds of `ours_is_faster` for the numbers in a window, KH * KW * C.
_MOST_OF_FEW_CHANNELS = 256
_FEWEST_ON_GPU = 1024
_FEWEST_ON_CPU = 8192


@registered
class Conv2D(keras.layers.Conv2D):
    """A `keras.layers.Conv2D` that runs `tf_capsops.capsule_conv2d` where it is faster.

    Arguments, weights, saved weights and results are those of `keras.layers.Conv2D`,
    except for rounding. Our kernels run for some shapes only; which ones depends on the
    visible devices, the dtype and whether TF32 is allowed (docs/conv2d.md has the
    rule). TensorFlow's convolution always runs for groups, for `"channels_first"` and
    under `tf_capsops.portable`.

    >>> import numpy as np
    >>> from tf_capsops.layers import Conv2D
    >>> Conv2D(8, 3, activation="relu")(np.ones([2, 7, 7, 3])).shape.as_list()
    [2, 5, 5, 8]
    """

    def call(self, inputs):
        kernel = self.kernel
        if not (self._is_plain and is_rectified_by_ours(self, kernel, inputs.dtype)):
            return super().call(inputs)
        return rectified(self, inputs, kernel)

    def convolution_op(self, inputs, kernel):
        if is_empty(inputs):
            return of_nothing(self, inputs, kernel)
        if self._is_plain:
            return convolution(self, inputs, kernel)
        if not _portable.is_on():
            return super().convolution_op(inputs, kernel)
        images = with_channels_last(tf.convert_to_tensor(inputs), self.data_format)
        window = self.strides, self.padding.upper(), self.dilation_rate
        images, padding = padded_for_tflite(images, self.kernel_size, *window)
        outputs = keras.ops.conv(
            images,
            kernel,
            strides=self.strides,
            padding=padding.lower(),
            data_format="channels_last",
            dilation_rate=self.dilation_rate,
        )
        if self.data_format == "channels_last":
            return outputs
        return tf.transpose(outputs, [0, 3, 1, 2])

    @property
    def _is_plain(self):
        """Whether `convolution` can compute this layer's convolution."""
        is_ordinary = self.data_format == "channels_last" and self.groups == 1
        return is_ordinary and not _portable.is_on()


def is_empty(tensor):
    """Whether a tensor's shape is fully known and it has no elements."""
    shape = tuple(tensor.shape)
    return 0 in shape and None not in shape


def of_nothing(layer, inputs, *weights):
    """Returns the convolution of an empty tensor, with the right shape.

    On a CPU, TensorFlow 2.21 wrongly gives it the input's height and width. The result
    depends on the inputs and weights, so that their gradients exist.
    """
    shape = layer.compute_output_shape(tuple(inputs.shape))
    nothing = 0 * sum(tf.reduce_sum(each) for each in (inputs, *weights))
    return tf.broadcast_to(nothing, shape)


def convolution(layer, images, kernel):
    """Computes a channels-last `Conv2D` without its bias and activation.

    Args:
      layer: A convolution layer with kernel size, strides, padding and dilation rate.
      images: `[B, H, W, C]`.
      kernel: `[KH, KW, C, filters]`.
    """
    if ours_is_faster(kernel.shape, images.dtype):
        return convolved(layer, capsule_conv2d, images, kernel)
    if is_product(layer):  # XLA can fuse a product with the ops that follow.
        matrix = keras.ops.reshape(kernel, kernel.shape[-2:])
        return keras.ops.tensordot(images, matrix, axes=1)
    return keras.ops.conv(
        images,
        kernel,
        strides=layer.strides,
        padding=layer.padding,
        data_format="channels_last",
        dilation_rate=layer.dilation_rate,
    )


def is_product(layer):
    """Whether a convolution is a matrix product: its kernel size and strides are 1."""
    return {*layer.kernel_size, *layer.strides} == {1}


def is_rectified_by_ours(layer, kernel, dtype):
    """Whether our kernel also adds a convolution's bias and applies its relu."""
    is_rectified = layer.use_bias and layer.activation is keras.activations.relu
    return is_rectified and ours_is_faster(kernel.shape, dtype)


def rectified(layer, images, kernel):
    """Computes a layer's convolution, bias and relu with one kernel."""
    bias = tf.convert_to_tensor(layer.bias)
    return convolved(layer, capsule_conv2d_bias_relu, images, kernel, bias)


def convolved(layer, op, *tensors):
    """Calls a capsule op on numbers, with a layer's strides, padding and dilation.

    Each number becomes a pose of one row and one column.

    Args:
      layer: A convolution layer.
      op: `capsule_conv2d` or `capsule_conv2d_bias_relu`.
      *tensors: Images, weights and, if the op takes one, the bias.
    """
    outputs = op(
        *map(_poses, tensors),
        strides=layer.strides,
        padding=layer.padding.upper(),
        dilations=layer.dilation_rate,
    )
    return tf.squeeze(outputs, [-2, -1])


def ours_is_faster(kernel_shape, dtype):
    """Whether training is expected to be faster with our kernels than TensorFlow's.

    The rule is fixed and measures nothing, so that all runs choose alike.
    docs/notebook/conv2d.md has the measurements behind it.

    Args:
      kernel_shape: `[KH, KW, C, filters]`.
      dtype: The dtype of images and weights.
    """
    *_, channels, filters = kernel_shape
    window = math.prod(kernel_shape[:-1])
    if not has_gpus():
        has_enough = window >= _FEWEST_ON_CPU or channels == 1
        return dtype == tf.float32 and filters >= 16 and has_enough
    if not is_for_hopper(dtype):
        return False
    aligned = 16 // tf.as_dtype(dtype).size  # A GPU loads this many numbers at once.
    if filters % aligned:
        return False
    if channels % 4:
        return window <= _MOST_OF_FEW_CHANNELS
    is_large = window >= _FEWEST_ON_GPU and min(channels, filters) >= 128
    return is_large and channels % aligned == 0


def has_gpus():
    """Whether TensorFlow sees any GPU."""
    return bool(tf.config.get_visible_devices("GPU"))


def is_for_hopper(dtype):
    """Whether all GPUs have compute capability 9.0 and a dtype runs on tensor cores.

    Args:
      dtype: The dtype of the factors; float32 runs on tensor cores if TF32 is allowed.
    """
    if dtype == tf.float32:
        allowed = tf.config.experimental.tensor_float_32_execution_enabled()
    else:
        allowed = dtype in (tf.float16, tf.bfloat16)
    return allowed and all(map(_is_hopper, tf.config.get_visible_devices("GPU")))


def _is_hopper(gpu):
    details = tf.config.experimental.get_device_details(gpu)
    return details.get("compute_capability") == (9, 0)


def _poses(numbers):
    return tf.expand_dims(tf.expand_dims(numbers, -1), -1)
