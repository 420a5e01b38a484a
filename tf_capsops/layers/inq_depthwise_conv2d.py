# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The depthwise convolution whose weights are zero or signed powers of two."""

import keras

from tf_capsops.arguments import float_tensors, positive_int
from tf_capsops.layers.conv2d import is_empty, of_nothing
from tf_capsops.layers.data_format import checked_images
from tf_capsops.layers.inq_layer import InqLayer
from tf_capsops.layers.window import map_size, set_window
from tf_capsops.ops.conv2d import padded_for_tflite
from tf_capsops.registered import registered


@registered
class InqDepthwiseConv2D(InqLayer):
    """A `keras.layers.DepthwiseConv2D` with weights of few bits.

    Like `InqConv2D`, it stores its kernel as codes of `tf_capsops.inq`: one byte for
    each weight in memory, and `bits` bits in a file. Each call decodes all
    `KH * KW * C * depth_multiplier` weights and runs TensorFlow's own depthwise
    convolution.

    Input shape: `[B, H, W, C]`. Output shape: `[B, H', W', C * depth_multiplier]`; the
    features of channel 0 come first. Batch, height and width may be unknown.

    Weights: `codes` `[KH, KW, C, depth_multiplier]`, uint8; `top_exponent`, an int64;
    `bias` `[C * depth_multiplier]`. `kernel` is the decoded kernel, a NumPy array.

    Args:
      kernel_size: one or two ints.
      bits, per_channel: as for `InqConv2D`.
      strides: one or two ints.
      padding: `"valid"` or `"same"`.
      depth_multiplier: the number of output features for each input channel.
      dilation_rate: one or two ints.
      activation: a function of the output, or a name that Keras knows.
      use_bias: whether the layer has a bias.
      depthwise_initializer: draws weights, which are quantized.
      bias_initializer, bias_regularizer, bias_constraint: as for
        `keras.layers.DepthwiseConv2D`.

    Raises:
      ValueError: if an argument or the input's shape is not as above.

    >>> import numpy as np
    >>> import tf_capsops
    >>> layer = tf_capsops.layers.InqDepthwiseConv2D(kernel_size=1, bits=3)
    >>> layer(np.ones([1, 5, 5, 2])).shape.as_list()
    [1, 5, 5, 2]
    >>> layer.set_kernel([[[[0.7], [-1.2]]]])
    >>> layer(np.ones([1, 1, 1, 2])).numpy().tolist()
    [[[[0.5, -1.0]]]]
    """

    channel_axes = (-2, -1)

    def __init__(
        self,
        kernel_size,
        bits=5,
        strides=1,
        padding="valid",
        depth_multiplier=1,
        dilation_rate=1,
        activation=None,
        depthwise_initializer="glorot_uniform",
        *,
        per_channel=False,
        **kwargs,
    ):
        super().__init__(
            bits,
            activation,
            kernel_initializer=depthwise_initializer,
            per_channel=per_channel,
            **kwargs,
        )
        set_window(self, kernel_size, strides, padding, dilation_rate)
        self.depth_multiplier = positive_int(
            "InqDepthwiseConv2D", "depth_multiplier", depth_multiplier
        )

    def build(self, input_shape):
        outputs = self.compute_output_shape(input_shape)[-1]
        shape = (*self.kernel_size, input_shape[-1], self.depth_multiplier)
        self._add_weights(shape, shape, outputs)
        self.input_spec = keras.layers.InputSpec(ndim=4, axes={3: input_shape[-1]})

    def call(self, images):
        (images,) = float_tensors("InqDepthwiseConv2D", images=images)
        map_size(self, images.shape)  # Rejects too small images.
        if is_empty(images):
            return self._finished(of_nothing(self, images, self._decoded()))
        window = self.strides, self.padding.upper(), self.dilation_rate
        images, padding = padded_for_tflite(images, self.kernel_size, *window)
        outputs = keras.ops.depthwise_conv(
            images,
            self._decoded(),
            strides=self.strides,
            padding=padding.lower(),
            data_format="channels_last",
            dilation_rate=self.dilation_rate,
        )
        return self._finished(outputs)

    def compute_output_shape(self, input_shape):
        shape = checked_images(self, input_shape)
        return (shape[0], *map_size(self, shape), shape[3] * self.depth_multiplier)

    def get_config(self):
        config = super().get_config()
        initializer = config.pop("kernel_initializer")
        return {
            **config,
            "depthwise_initializer": initializer,
            "kernel_size": self.kernel_size,
            "strides": self.strides,
            "padding": self.padding,
            "depth_multiplier": self.depth_multiplier,
            "dilation_rate": self.dilation_rate,
        }
