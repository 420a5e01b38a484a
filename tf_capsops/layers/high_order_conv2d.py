# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""A convolution that generates a different filter for every pixel."""

import keras
import tensorflow as tf

from tf_capsops.arguments import (
    boolean,
    float_tensors,
    odd_pair,
    positive_int,
    positive_pair,
)
from tf_capsops.layers.coded import Coded
from tf_capsops.layers.data_format import (
    channels_axis,
    checked_data_format,
    checked_images,
    with_channels_last,
)
from tf_capsops.layers.initializers import CenterTap
from tf_capsops.ops.high_order_conv import high_order_conv2d
from tf_capsops.registered import registered
from tf_capsops.shapes import joined, sizes


@registered
class HighOrderConv2D(Coded):
    """Filters every pixel with weights that a convolution of the image generates.

    First an ordinary convolution, the generator, computes KH x KW numbers at each pixel
    for each group of channels, and `filter_activation` is applied to them. Then
    `tf_capsops.high_order_conv2d` uses them as the filter at that pixel. All channels
    of a group share it:

        filters = filter_activation(conv2d(inputs, kernel) + bias)
        outputs = high_order_conv2d(inputs, filters, kernel_size, groups)

    With the defaults, this is the High Order Convolution Module of Zhejin and Simeng,
    "PyTorch_Extension", section 2. With several groups and a 1 x 1 generator, it is
    close to an involution (Li et al., 2021).

    With `"softmax"` each filter is a weighted average. The layer then smooths, and
    learns how far and in which directions; its output stays within the range of its
    input and 0.

    Filters can be generated from one image and applied to another:
    `layer(inputs, guide=features)` generates them from `features`, such as the output
    of other layers.

    Input shape: `[B, H, W, C]`, or `[B, C, H, W]` with `"channels_first"`; a guide
    has the same batch, height and width. Output shape: that of `inputs`. Batch,
    height and width may be unknown.

    Weights: `kernel` `[GH, GW, guide channels, groups * KH * KW]`, where (GH, GW) is
    `generator_kernel_size`; `bias` `[groups * KH * KW]`. By default the layer starts
    close to the identity: `bias` is a filter that is 1 in the middle, and `kernel` adds
    about a hundredth of the input's magnitude to each tap. With `"softmax"` the layer
    starts close to an average, because `exp(1)` and `exp(0)` do not differ much.

    Args:
      kernel_size: the size of the filter at each pixel, one or two odd ints.
      groups: the number of groups of channels, each with its own filter at a pixel.
      dilation_rate: pixels from one tap of a filter to the next, one or two ints.
      filter_activation: applied to the filters; a function, or a name that Keras knows.
        It is given `[..., groups, KH * KW]`, so that `"softmax"` makes the taps of each
        group sum to 1.
      generator_kernel_size: the kernel size of the generator, one or two ints; None for
        `kernel_size`.
      data_format: `"channels_last"`, `"channels_first"`, or None for Keras' default.
      use_bias: whether the generator has a bias.
      kernel_initializer: None for `VarianceScaling(1e-4)`.
      bias_initializer: called with the shape `[groups, KH, KW]`; None for
        `tf_capsops.layers.CenterTap(1)`.
      kernel_regularizer, bias_regularizer, kernel_constraint, bias_constraint: as for
        `keras.layers.Conv2D`.
      bits, per_channel: as for `InqConv2D`; None keeps a floating-point kernel.

    Raises:
      ValueError: if an argument or the input's shape is not as above, or `groups` does
        not divide the channels.

    >>> import numpy as np
    >>> import tf_capsops
    >>> layer = tf_capsops.layers.HighOrderConv2D(5, filter_activation="softmax")
    >>> outputs = layer(np.ones([2, 32, 32, 3]))
    >>> outputs.shape.as_list()
    [2, 32, 32, 3]
    >>> bool(abs(outputs[0, 16, 16, 0] - 1) < 1e-6)   # a weighted average of ones
    True
    """

    def __init__(
        self,
        kernel_size=5,
        groups=1,
        dilation_rate=1,
        filter_activation=None,
        generator_kernel_size=None,
        data_format=None,
        use_bias=True,
        kernel_initializer=None,
        bias_initializer=None,
        kernel_regularizer=None,
        bias_regularizer=None,
        kernel_constraint=None,
        bias_constraint=None,
        *,
        bits=None,
        per_channel=False,
        **kwargs,
    ):
        super().__init__(bits=bits, per_channel=per_channel, **kwargs)
        owner = type(self).__name__
        try:
            self.kernel_size = odd_pair(owner, "kernel_size", kernel_size)
        except ValueError as error:
            raise ValueError(
                f"{error}: the arguments begin with kernel_size and groups, and there "
                "is none for filters, since the output has the input's channels"
            ) from error
        self.groups = positive_int(owner, "groups", groups)
        self.dilation_rate = positive_pair(owner, "dilation_rate", dilation_rate)
        self.filter_activation = keras.activations.get(filter_activation)
        if generator_kernel_size is None:
            generator_kernel_size = self.kernel_size
        self.generator_kernel_size = positive_pair(
            owner, "generator_kernel_size", generator_kernel_size
        )
        self.data_format = checked_data_format(owner, data_format)
        self._channels = channels_axis(self.data_format)
        self.use_bias = boolean(owner, "use_bias", use_bias)
        if kernel_initializer is None:
            kernel_initializer = keras.initializers.VarianceScaling(1e-4)
        if bias_initializer is None:
            bias_initializer = CenterTap()
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.bias_regularizer = keras.regularizers.get(bias_regularizer)
        self.kernel_constraint = keras.constraints.get(kernel_constraint)
        self.bias_constraint = keras.constraints.get(bias_constraint)

    def build(self, inputs_shape, guide_shape=None):
        self._checked(inputs_shape, guide_shape)
        guide_shape = inputs_shape if guide_shape is None else guide_shape
        numbers = self.groups * self.kernel_size[0] * self.kernel_size[1]
        self._guide_channels = guide_shape[self._channels]
        self.kernel = self.add_weight(
            name="kernel",
            shape=(*self.generator_kernel_size, self._guide_channels, numbers),
            initializer=self.kernel_initializer,
            regularizer=self.kernel_regularizer,
            constraint=self.kernel_constraint,
        )
        self.bias = None
        if self.use_bias:
            self.bias = self.add_weight(
                name="bias",
                shape=(numbers,),
                initializer=self._initial_bias,
                regularizer=self.bias_regularizer,
                constraint=self.bias_constraint,
            )
        axes = {self._channels: inputs_shape[self._channels]}
        self.input_spec = keras.layers.InputSpec(ndim=4, axes=axes)

    def call(self, inputs, guide=None):
        owner = type(self).__name__
        (inputs,) = float_tensors(owner, inputs=inputs)
        (guide,) = float_tensors(owner, guide=inputs if guide is None else guide)
        # TensorFlow would take a guide with a multiple of the kernel's channels for a
        # grouped convolution, and raise no error.
        if guide.shape[self._channels] != self._guide_channels:
            raise ValueError(
                f"{owner}: the guide must have {self._guide_channels} channels, got "
                f"shape {tuple(guide.shape)}"
            )
        self._checked(inputs.shape, guide.shape)
        # Transposing the images and the guide is cheap. The filters, which may take
        # many times as much memory, are generated in channels_last order.
        images = with_channels_last(inputs, self.data_format)
        is_guided = guide is not inputs
        guide = with_channels_last(guide, self.data_format) if is_guided else images
        outputs = high_order_conv2d(
            images,
            self._filters(guide),
            self.kernel_size,
            groups=self.groups,
            dilations=self.dilation_rate,
        )
        if self.data_format == "channels_first":
            outputs = tf.transpose(outputs, [0, 3, 1, 2])
        return outputs

    def compute_output_shape(self, inputs_shape, guide_shape=None):
        return self._checked(inputs_shape, guide_shape)

    def _checked(self, inputs_shape, guide_shape):
        """Returns the shape of the images, or raises a ValueError.

        The groups must divide its channels, and a guide must have its batch and size.
        """
        shape = checked_images(self, inputs_shape, self.data_format)
        if shape[self._channels] % self.groups:
            raise ValueError(
                f"{type(self).__name__}: groups must divide the channels of the input, "
                f"got {self.groups} groups and shape {shape}"
            )
        if guide_shape is not None:
            guide = checked_images(self, guide_shape, self.data_format, "guide")
            for axis in {0, 1, 2, 3} - {self._channels}:
                if (
                    None not in (shape[axis], guide[axis])
                    and shape[axis] != guide[axis]
                ):
                    raise ValueError(
                        f"{type(self).__name__}: the guide must have the batch, height "
                        f"and width of the input, got shapes {guide} and {shape}"
                    )
        return shape

    def get_config(self):
        return {
            **super().get_config(),
            "kernel_size": self.kernel_size,
            "groups": self.groups,
            "dilation_rate": self.dilation_rate,
            "filter_activation": keras.activations.serialize(self.filter_activation),
            "generator_kernel_size": self.generator_kernel_size,
            "data_format": self.data_format,
            "use_bias": self.use_bias,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
            "kernel_regularizer": keras.regularizers.serialize(self.kernel_regularizer),
            "bias_regularizer": keras.regularizers.serialize(self.bias_regularizer),
            "kernel_constraint": keras.constraints.serialize(self.kernel_constraint),
            "bias_constraint": keras.constraints.serialize(self.bias_constraint),
        }

    def _initial_bias(self, shape, dtype=None):
        values = self.bias_initializer((self.groups, *self.kernel_size), dtype=dtype)
        return keras.ops.reshape(values, shape)

    def _filters(self, guide):
        """Generates the filters of all pixels, `[B, H, W, groups * KH * KW]`."""
        kernel = tf.convert_to_tensor(self.kernel)
        if 0 in guide.shape:
            # On a CPU, TensorFlow's convolution gives empty images the wrong channels.
            filters = tf.tensordot(guide, kernel[0, 0], 1)
        else:
            filters = tf.nn.conv2d(guide, kernel, 1, "SAME")
        if self.bias is not None:
            filters += tf.convert_to_tensor(self.bias)
        if self.filter_activation is not keras.activations.linear:
            flat = sizes(filters)
            taps = self.kernel_size[0] * self.kernel_size[1]
            by_group = joined(flat[:-1], [self.groups, taps])
            filters = self.filter_activation(tf.reshape(filters, by_group))
            filters = tf.reshape(filters, flat)
        return filters
