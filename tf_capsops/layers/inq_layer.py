# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the layers with kernels of powers of two have in common."""

import keras
import numpy as np
import tensorflow as tf

from tf_capsops.codes import checked_bits, decode, encode
from tf_capsops.ops.inq_conv import inq_conv2d
from tf_capsops.packing import pack, unpack


class InqLayer(keras.layers.Layer):
    """Kernel as codes, bias and activation. The kernel is `[KH, KW, C, O]`.

    Weights: `codes`, uint8, and `top_exponent`, int32, which are not trained; and
    `bias` `[O]`. Saved, codes have `bits` bits.
    """

    def __init__(
        self,
        bits,
        activation,
        use_bias,
        kernel_initializer,
        bias_initializer,
        bias_regularizer,
        bias_constraint,
        **kwargs,
    ):
        super().__init__(**kwargs)
        # InqConv has no XLA kernel, and Keras compiles with XLA by default where there
        # is a GPU.
        self.supports_jit = False
        self.bits = checked_bits(type(self).__name__, bits)
        self.activation = keras.activations.get(activation)
        self.use_bias = bool(use_bias)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.bias_regularizer = keras.regularizers.get(bias_regularizer)
        self.bias_constraint = keras.constraints.get(bias_constraint)

    @property
    def kernel(self):
        """The kernel as numbers, a NumPy array of float32."""
        return decode(self.codes, self.bits, self.top_exponent.numpy())

    def set_kernel(self, weights, top_exponent=None):
        """Quantizes weights and takes them for the kernel.

        Args:
          weights: of the kernel's shape; those of a book are taken as they are.
          top_exponent: as `tf_capsops.inq.encode` takes it.

        Raises:
          ValueError: the shape differs, or `tf_capsops.inq.encode` refuses them.
        """
        codes, top_exponent = encode(weights, self.bits, top_exponent)
        self.codes.assign(codes)
        self.top_exponent.assign(top_exponent)

    def save_own_variables(self, store):
        store["codes"] = pack(self.codes, self.bits)
        store["top_exponent"] = self.top_exponent.numpy()
        if self.bias is not None:
            store["bias"] = self.bias.numpy()

    def load_own_variables(self, store):
        packed = np.asarray(store["codes"])
        self.codes.assign(unpack(packed, self.bits, self.codes.shape))
        self.top_exponent.assign(np.asarray(store["top_exponent"]))
        if self.bias is not None:
            self.bias.assign(np.asarray(store["bias"]))

    def get_config(self):
        return {
            **super().get_config(),
            "bits": self.bits,
            "activation": keras.activations.serialize(self.activation),
            "use_bias": self.use_bias,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
            "bias_regularizer": keras.regularizers.serialize(self.bias_regularizer),
            "bias_constraint": keras.constraints.serialize(self.bias_constraint),
        }

    def _add_weights(self, kernel_shape, drawn_shape):
        """Adds codes, of a kernel drawn in the shape that plain layers give it."""
        with tf.init_scope():
            drawn = self.kernel_initializer(drawn_shape, dtype="float32")
            codes, top_exponent = encode(drawn, self.bits)
        self.codes = self.add_weight(
            name="codes",
            shape=kernel_shape,
            dtype="uint8",
            initializer=lambda shape, dtype: tf.constant(codes.reshape(shape), dtype),
            trainable=False,
        )
        self.top_exponent = self.add_weight(
            name="top_exponent",
            shape=(),
            dtype="int32",
            initializer=lambda shape, dtype: tf.constant(top_exponent, dtype),
            trainable=False,
        )
        self.bias = None
        if self.use_bias:
            self.bias = self.add_weight(
                name="bias",
                shape=kernel_shape[-1:],
                initializer=self.bias_initializer,
                regularizer=self.bias_regularizer,
                constraint=self.bias_constraint,
            )

    def _convolve(self, images, **options):
        """Convolution with the kernel, bias and activation."""
        outputs = inq_conv2d(
            images,
            tf.convert_to_tensor(self.codes),
            tf.convert_to_tensor(self.top_exponent),
            bits=self.bits,
            **options,
        )
        if self.bias is not None:
            outputs += tf.convert_to_tensor(self.bias)
        return self.activation(outputs)
