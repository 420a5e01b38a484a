# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The first capsule layer, a convolution whose channels are read as capsules."""

import math

import tensorflow as tf

from tf_capsops.arguments import boolean, float_tensors, known_shape, positive_int
from tf_capsops.layers.convolving import Convolving
from tf_capsops.layers.data_format import (
    IMAGE_AXES,
    checked_data_format,
    checked_images,
    with_channels_last,
)
from tf_capsops.layers.window import map_size
from tf_capsops.ops.squash import squash
from tf_capsops.registered import registered
from tf_capsops.shapes import dimensions


@registered
class PrimaryCaps(Convolving):
    """Convolves to `channels * capsule_dim` features, read as squashed capsules.

    Section 4 of Sabour et al. (2017), who use 32 channels of 8-dimensional capsules,
    a 9 x 9 kernel and a stride of 2. The convolution is `conv`, a `Conv2D` of this
    package; its images always have their channels last.

    Input shape: `[B, H, W, C]`, or `[B, C, H, W]` with `"channels_first"`. Output
    shape: `[B, H' * W' * channels, capsule_dim]`. The capsules of one position are next
    to each other, and their order is the same for both data formats. With
    `flatten=False` the output is `[B, H', W', channels, capsule_dim]`, as `SlimCaps2D`
    takes it, and height and width may be unknown.

    Args:
      channels: the number of capsules at each position.
      capsule_dim: the length of a capsule's vector.
      kernel_size: one or two ints.
      strides: one or two ints.
      padding: `"valid"` or `"same"`.
      use_bias: whether the convolution has a bias.
      kernel_initializer, bias_initializer: as for `keras.layers.Conv2D`.
      kernel_regularizer, bias_regularizer: as for `keras.layers.Conv2D`.
      kernel_constraint, bias_constraint: as for `keras.layers.Conv2D`.
      data_format: `"channels_last"`, `"channels_first"`, or None for Keras' default.
      flatten: whether to merge height, width and channels into one axis.
      bits, per_channel: as for `InqConv2D`; None keeps a floating-point kernel.

    Raises:
      ValueError: if an argument or the input's shape is not as above.

    >>> import numpy as np
    >>> from tf_capsops.layers import PrimaryCaps
    >>> layer = PrimaryCaps(channels=4, capsule_dim=8, kernel_size=3, strides=2)
    >>> layer(np.ones([2, 7, 7, 3])).shape.as_list()
    [2, 36, 8]
    """

    def __init__(
        self,
        channels,
        capsule_dim,
        kernel_size,
        strides=1,
        padding="valid",
        use_bias=True,
        kernel_initializer="glorot_uniform",
        bias_initializer="zeros",
        kernel_regularizer=None,
        bias_regularizer=None,
        kernel_constraint=None,
        bias_constraint=None,
        data_format=None,
        flatten=True,
        *,
        bits=None,
        per_channel=False,
        **kwargs,
    ):
        channels = positive_int("PrimaryCaps", "channels", channels)
        capsule_dim = positive_int("PrimaryCaps", "capsule_dim", capsule_dim)
        super().__init__(
            channels * capsule_dim,
            kernel_size,
            strides,
            padding,
            use_bias,
            kernel_initializer,
            bias_initializer,
            kernel_regularizer,
            bias_regularizer,
            kernel_constraint,
            bias_constraint,
            bits=bits,
            per_channel=per_channel,
            **kwargs,
        )
        self.channels = channels
        self.capsule_dim = capsule_dim
        self.data_format = checked_data_format("PrimaryCaps", data_format)
        self.flatten = boolean("PrimaryCaps", "flatten", flatten)

    def build(self, input_shape):
        self.compute_output_shape(input_shape)
        if self.data_format == "channels_first":
            input_shape = (input_shape[0], *input_shape[2:], input_shape[1])
        self.conv.build(input_shape)

    def call(self, images):
        (images,) = float_tensors("PrimaryCaps", images=images)
        map_size(self, images.shape)  # Rejects too small images.
        features = self.conv(with_channels_last(images, self.data_format))
        batch, height, width, _ = dimensions(features)
        capsules = [height, width, self.channels]
        if self.flatten:
            batch, capsules = -1, [math.prod(capsules)]
        return squash(tf.reshape(features, [batch, *capsules, self.capsule_dim]))

    def compute_output_shape(self, input_shape):
        shape = tuple(input_shape)
        if self.flatten:
            known_shape("PrimaryCaps", shape, IMAGE_AXES[self.data_format])
        else:
            checked_images(self, shape, self.data_format)
        height, width = map_size(self, shape)
        capsules = (height, width, self.channels)
        if self.flatten:
            capsules = (math.prod(capsules),)
        return (shape[0], *capsules, self.capsule_dim)

    def get_config(self):
        return {
            **super().get_config(),
            "channels": self.channels,
            "capsule_dim": self.capsule_dim,
            "data_format": self.data_format,
            "flatten": self.flatten,
        }

    @classmethod
    def from_config(cls, config):
        # Configs of releases before data_format existed mean channels_last.
        return super().from_config({"data_format": "channels_last", **config})
