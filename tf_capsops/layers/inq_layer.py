# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The base class of layers whose weights are always zero or signed powers of two."""

import math

import keras
import tensorflow as tf

from tf_capsops import _portable
from tf_capsops.arguments import boolean
from tf_capsops.codes import checked_bits, decode
from tf_capsops.layers.coded import Coded
from tf_capsops.layers.conv2d import has_gpus
from tf_capsops.ops.fake_quant import scale_and_zero_point
from tf_capsops.ops.inq_conv import inq_conv2d, powers_of_two
from tf_capsops.ops.inq_conv_int8 import MOST_BITS, inq_conv2d_int8, most_terms
from tf_capsops.ops.squash import at_least_float32
from tf_capsops.ops.straight_through import with_gradient_of


class InqLayer(Coded):
    """A layer whose kernel is always codes, with a bias and an activation.

    Weights: `codes`, uint8 of the kernel's shape; `top_exponent`, an int64 within the
    range of an int32; and `bias`. The first two do not train. In a file, a code takes
    `bits` bits.
    """

    def __init__(
        self,
        bits,
        activation=None,
        use_bias=True,
        kernel_initializer="glorot_uniform",
        bias_initializer="zeros",
        bias_regularizer=None,
        bias_constraint=None,
        **kwargs,
    ):
        super().__init__(bits=checked_bits(type(self).__name__, bits), **kwargs)
        self.activation = keras.activations.get(activation)
        self.use_bias = boolean(type(self).__name__, "use_bias", use_bias)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.bias_regularizer = keras.regularizers.get(bias_regularizer)
        self.bias_constraint = keras.constraints.get(bias_constraint)

    @property
    def kernel(self):
        """The decoded kernel, a NumPy array of float32."""
        exponents = self.top_exponent.numpy()
        return decode(self.codes, self.bits, exponents, axes=self.book_axes)

    def get_config(self):
        return {
            **super().get_config(),
            "activation": keras.activations.serialize(self.activation),
            "use_bias": self.use_bias,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
            "bias_regularizer": keras.regularizers.serialize(self.bias_regularizer),
            "bias_constraint": keras.constraints.serialize(self.bias_constraint),
        }

    def _add_weights(self, kernel_shape, drawn_shape, outputs):
        """Adds the codes and the bias, of `outputs` numbers.

        The initializer draws the kernel in `drawn_shape`, as Keras' own layer would.
        """
        self._add_codes(kernel_shape, self.kernel_initializer, drawn_shape)
        self.bias = None
        if self.use_bias:
            self.bias = self.add_weight(
                name="bias",
                shape=(outputs,),
                initializer=self.bias_initializer,
                regularizer=self.bias_regularizer,
                constraint=self.bias_constraint,
            )

    def _convolve(self, images, quantized_range, **options):
        """Convolves with the kernel, then applies bias and activation.

        Args:
          images: as for `inq_conv2d`.
          quantized_range: the `QuantizedRange` of these images, or None.
          **options: `strides`, `padding` and `dilations`, as for `inq_conv2d`.
        """
        codes = tf.convert_to_tensor(self.codes)
        exponents = tf.convert_to_tensor(self.top_exponent)
        options["bits"] = self.bits

        def of_numbers(images):
            if not self.per_channel:
                return inq_conv2d(
                    images, codes, tf.cast(exponents, tf.int32), **options
                )
            # With top exponent 0 the weights are at most 1, and their sums may still be
            # too large for float16.
            sums = inq_conv2d(at_least_float32(images), codes, 0, **options)
            return tf.cast(sums * powers_of_two(exponents, sums.dtype), images.dtype)

        def of_integers(images):
            scale, zero_point = scale_and_zero_point(*quantized_range)
            zero_point, exponent = (
                tf.cast(n, tf.int32) for n in (zero_point, exponents)
            )
            return inq_conv2d_int8(
                images, codes, exponent, scale, zero_point, **options
            )

        if not self._takes_integers(images, quantized_range):
            return self._finished(of_numbers(images))
        return self._finished(with_gradient_of(of_numbers, of_integers)(images))

    def _may_decode(self, images, quantized_range):
        """Whether the layer may decode its kernel and compute like Keras' own layer.

        bfloat16 can hold every weight exactly, because it has the exponents of float32.
        """
        if _portable.is_on() or self._takes_integers(images, quantized_range):
            return False
        dtype = images.dtype
        if dtype != self.compute_dtype:  # `_decoded` returns the compute dtype.
            return False
        return dtype == tf.float32 or (dtype == tf.bfloat16 and has_gpus())

    def _takes_integers(self, images, quantized_range):
        """Whether to convolve rounded images as integers, which is faster on CPUs."""
        if quantized_range is None or _portable.is_on() or has_gpus():
            return False
        few_bits = images.dtype == tf.float32 and self.bits <= MOST_BITS
        terms = math.prod(self.codes.shape[:-1])
        return few_bits and terms <= most_terms(self.bits)

    def _finished(self, outputs):
        """Applies bias and activation, which follow the convolution."""
        if self.bias is not None:
            outputs += tf.convert_to_tensor(self.bias)
        return self.activation(outputs)
