# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""A convolution of sequences that generates a different filter for every step."""

import keras
import tensorflow as tf

from tf_capsops.arguments import float_tensors, positive_int
from tf_capsops.layers.high_order_conv2d import HighOrderConv2D
from tf_capsops.registered import registered


@registered
class HighOrderConv1D(HighOrderConv2D):
    """Filters every step of a sequence with weights that are generated from that step.

    The product of a step's channels and `kernel` is `kernel_size` numbers for each
    group of channels. After `filter_activation`, these are the filter that all channels
    of the group share at that step. With the defaults, this is the dynamic convolution
    of Wu et al., "Pay Less Attention with Lightweight and Dynamic Convolutions" (2019);
    `groups` are its heads. `tf_capsops.layers.HighOrderConv2D` is the layer for images.

    Input shape: `[B, T, C]`; batch and T may be unknown. Output shape: that of
    `inputs`. Masked steps count as zeros, as do steps before the first.

    Weights: `kernel` `[1, 1, C, groups * kernel_size]`; with `use_bias`, `bias`
    `[groups * kernel_size]`.

    Args:
      kernel_size: taps of a filter, an odd int.
      groups: the number of groups of channels, each with its own filter at a step.
      padding: `"causal"`: a filter's last tap reads its own step, so no output depends
        on later steps. `"same"`: its middle tap does.
      dilation_rate: steps from one tap to the next, an int.
      filter_activation: applied to the filters, `[..., groups, kernel_size]`; a
        function, a name that Keras knows, or None.
      use_bias: whether the filters have a bias.
      kernel_initializer, kernel_regularizer, kernel_constraint: as for
        `keras.layers.Conv1D`.
      bias_initializer, bias_regularizer, bias_constraint: likewise; the initializer is
        called with the shape `[groups, 1, kernel_size]`.
      bits, per_channel: as for `InqConv2D`; None keeps a floating-point kernel.

    Raises:
      ValueError: if an argument or the input's shape is not as above, or `groups` does
        not divide the channels.

    >>> import numpy as np
    >>> import tf_capsops
    >>> layer = tf_capsops.layers.HighOrderConv1D(3, kernel_initializer="zeros")
    >>> mean_so_far = layer(np.arange(8.0).reshape([1, 4, 2]))
    >>> mean_so_far[0, :, 0].numpy().round(2)
    array([0.  , 0.67, 2.  , 4.  ], dtype=float32)
    """

    def __init__(
        self,
        kernel_size=3,
        groups=1,
        padding="causal",
        dilation_rate=1,
        filter_activation="softmax",
        use_bias=False,
        kernel_initializer="glorot_uniform",
        bias_initializer="zeros",
        kernel_regularizer=None,
        bias_regularizer=None,
        kernel_constraint=None,
        bias_constraint=None,
        *,
        bits=None,
        per_channel=False,
        **kwargs,
    ):
        owner = "HighOrderConv1D"
        if padding not in ("causal", "same"):
            raise ValueError(
                f"{owner}: padding must be 'causal' or 'same', got {padding!r}"
            )
        super().__init__(
            (1, positive_int(owner, "kernel_size", kernel_size)),
            groups,
            (1, positive_int(owner, "dilation_rate", dilation_rate)),
            filter_activation,
            generator_kernel_size=1,
            data_format="channels_last",
            use_bias=use_bias,
            kernel_initializer=kernel_initializer,
            bias_initializer=bias_initializer,
            kernel_regularizer=kernel_regularizer,
            bias_regularizer=bias_regularizer,
            kernel_constraint=kernel_constraint,
            bias_constraint=bias_constraint,
            bits=bits,
            per_channel=per_channel,
            **kwargs,
        )
        self.padding = padding
        self.supports_masking = True

    def build(self, inputs_shape):
        self.compute_output_shape(inputs_shape)
        batch, steps, channels = inputs_shape
        super().build((batch, 1, steps, channels))
        self.input_spec = keras.layers.InputSpec(ndim=3, axes={2: channels})

    def call(self, inputs, mask=None):
        (inputs,) = float_tensors("HighOrderConv1D", inputs=inputs)
        if mask is not None:
            inputs = tf.where(tf.cast(mask, bool)[..., tf.newaxis], inputs, 0)
        images = inputs[:, tf.newaxis]
        if self.padding == "same":
            return super().call(images)[:, 0]
        # The middle tap of a filter reads this many steps before its last tap.
        late = self.kernel_size[1] // 2 * self.dilation_rate[1]
        outputs = super().call(
            tf.pad(images, [[0, 0], [0, 0], [late, 0], [0, 0]]),
            guide=tf.pad(images, [[0, 0], [0, 0], [0, late], [0, 0]]),
        )
        return outputs[:, 0, : -late or None]

    def compute_output_shape(self, inputs_shape):
        shape = tuple(inputs_shape)
        if len(shape) != 3 or shape[2] is None:
            raise ValueError(
                "HighOrderConv1D: the input must be [batch, steps, channels] with "
                f"known channels, got shape {shape}"
            )
        self._checked((shape[0], 1, *shape[1:]), None)
        return shape

    def get_config(self):
        config = super().get_config()
        for name in ("generator_kernel_size", "data_format"):
            del config[name]
        return {
            **config,
            "kernel_size": self.kernel_size[1],
            "dilation_rate": self.dilation_rate[1],
            "padding": self.padding,
        }
