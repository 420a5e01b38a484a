# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Keras' 1-D, 3-D and transposed convolutions with power-of-two weights."""

import keras

from tf_capsops.codes import checked_bits
from tf_capsops.layers.coded import Coded
from tf_capsops.layers.conv2d import is_empty, of_nothing
from tf_capsops.registered import registered


class _InCodes(Coded):
    """Base class of Keras convolutions that always store their kernel as codes."""

    def __init__(self, filters, kernel_size, bits=5, *, per_channel=False, **kwargs):
        bits = checked_bits(type(self).__name__, bits)
        kwargs |= {"bits": bits, "per_channel": per_channel}
        super().__init__(filters, kernel_size, **kwargs)


class _Convolved(_InCodes):
    """A layer with codes that gives empty batches the right shape on a CPU, too."""

    def call(self, inputs):
        if is_empty(inputs):
            biases = [self.bias] if self.use_bias else []
            return of_nothing(self, inputs, self.kernel, *biases)
        return super().call(inputs)


@registered
class InqConv1D(_Convolved, keras.layers.Conv1D):
    """A `keras.layers.Conv1D` with weights of few bits.

    The kernel is stored as codes of `tf_capsops.inq`: one byte for each weight in
    memory, and `bits` bits in a file. Each call decodes them. `tf_capsops.inq.convert`
    converts a `Conv1D`, and `set_kernel` quantizes weights in one step.

    Input and output shape: those of `keras.layers.Conv1D`.

    Weights: `codes`, uint8 of the kernel's shape; `top_exponent`, an int64; `bias`.

    Args:
      filters, kernel_size: as for `keras.layers.Conv1D`.
      bits, per_channel: as for `InqConv2D`.
      **kwargs: other arguments of `keras.layers.Conv1D`; the kernel's regularizer and
        constraint have no effect.

    Raises:
      ValueError: if `bits` or `per_channel` is not as for `InqConv2D`, or Keras rejects
        another argument.

    >>> import numpy as np
    >>> import tf_capsops
    >>> layer = tf_capsops.layers.InqConv1D(4, kernel_size=3, bits=4)
    >>> layer(np.ones([2, 9, 3])).shape.as_list()
    [2, 7, 4]
    """


@registered
class InqConv3D(_Convolved, keras.layers.Conv3D):
    """A `keras.layers.Conv3D` with weights of few bits.

    The kernel is stored as codes of `tf_capsops.inq`: one byte for each weight in
    memory, and `bits` bits in a file. Each call decodes them. `tf_capsops.inq.convert`
    converts a `Conv3D`, and `set_kernel` quantizes weights in one step.

    Input and output shape: those of `keras.layers.Conv3D`.

    Weights: `codes`, uint8 of the kernel's shape; `top_exponent`, an int64; `bias`.

    Args:
      filters, kernel_size: as for `keras.layers.Conv3D`.
      bits, per_channel: as for `InqConv2D`.
      **kwargs: other arguments of `keras.layers.Conv3D`; the kernel's regularizer and
        constraint have no effect.

    Raises:
      ValueError: if `bits` or `per_channel` is not as for `InqConv2D`, or Keras rejects
        another argument.

    >>> import numpy as np
    >>> import tf_capsops
    >>> layer = tf_capsops.layers.InqConv3D(4, kernel_size=3, bits=4)
    >>> layer(np.ones([1, 5, 5, 5, 2])).shape.as_list()
    [1, 3, 3, 3, 4]
    """


@registered
class InqConv2DTranspose(_InCodes, keras.layers.Conv2DTranspose):
    """A `keras.layers.Conv2DTranspose` with weights of few bits.

    The kernel is stored as codes of `tf_capsops.inq`: one byte for each weight in
    memory, and `bits` bits in a file. Each call decodes them. `tf_capsops.inq.convert`
    converts a `Conv2DTranspose`, and `set_kernel` quantizes weights in one step.

    Input and output shape: those of `keras.layers.Conv2DTranspose`.

    Weights: `codes`, uint8 of the kernel's shape; `top_exponent`, an int64; `bias`.

    Args:
      filters, kernel_size: as for `keras.layers.Conv2DTranspose`.
      bits, per_channel: as for `InqConv2D`.
      **kwargs: other arguments of `keras.layers.Conv2DTranspose`; the kernel's
        regularizer and constraint have no effect.

    Raises:
      ValueError: if `bits` or `per_channel` is not as for `InqConv2D`, or Keras rejects
        another argument.

    >>> import numpy as np
    >>> import tf_capsops
    >>> layer = tf_capsops.layers.InqConv2DTranspose(4, 2, bits=4, strides=2)
    >>> layer(np.ones([1, 5, 5, 2])).shape.as_list()
    [1, 10, 10, 4]
    """

    channel_axes = (-2,)


@registered
class InqConv3DTranspose(_InCodes, keras.layers.Conv3DTranspose):
    """A `keras.layers.Conv3DTranspose` with weights of few bits.

    The kernel is stored as codes of `tf_capsops.inq`: one byte for each weight in
    memory, and `bits` bits in a file. Each call decodes them. `tf_capsops.inq.convert`
    converts a `Conv3DTranspose`, and `set_kernel` quantizes weights in one step.

    Input and output shape: those of `keras.layers.Conv3DTranspose`.

    Weights: `codes`, uint8 of the kernel's shape; `top_exponent`, an int64; `bias`.

    Args:
      filters, kernel_size: as for `keras.layers.Conv3DTranspose`.
      bits, per_channel: as for `InqConv2D`.
      **kwargs: other arguments of `keras.layers.Conv3DTranspose`; the kernel's
        regularizer and constraint have no effect.

    Raises:
      ValueError: if `bits` or `per_channel` is not as for `InqConv2D`, or Keras rejects
        another argument.

    >>> import numpy as np
    >>> import tf_capsops
    >>> layer = tf_capsops.layers.InqConv3DTranspose(4, 2, bits=4, strides=2)
    >>> layer(np.ones([1, 3, 3, 3, 2])).shape.as_list()
    [1, 6, 6, 6, 4]
    """

    channel_axes = (-2,)
