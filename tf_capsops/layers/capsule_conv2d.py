# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The convolution over capsules, matrices instead of numbers."""

import keras
import tensorflow as tf

from tf_capsops.arguments import float_tensors, positive_int
from tf_capsops.layers.window import map_size, set_window
from tf_capsops.ops.capsule_conv import capsule_conv2d
from tf_capsops.ops.squash import squash
from tf_capsops.registered import registered

# So that models whose layers have it as their activation can be saved and loaded.
keras.saving.register_keras_serializable("tf_capsops")(squash)

_AXES = {
    2: "[batch, height, width, channels, pose rows, pose columns]",
    3: "[batch, height, width, channels, pose depth, pose rows, pose columns]",
}


@registered
class CapsuleConv2D(keras.layers.Layer):
    """Convolution that multiplies pose matrices, by `tf_capsops.capsule_conv2d`.

    Where `keras.layers.Conv2D` multiplies a feature by a weight, this layer multiplies
    the P x Q pose of a capsule by a Q x R matrix, adds a pose `bias[o]` and applies
    `activation`. All rows of a pose meet the same weights and stay apart, so a layer of
    4 x 4 poses has a sixteenth of the weights of a `Conv2D` between as many features.
    With poses of one row it is a `Conv2D` from C * Q features to filters * R.

    Capsules may be of rank 3, as in P-CapsNets (Chen et al., 2019): G matrices side by
    side, each with its own weights.

    Input shape: `[B, H, W, C, P, Q]`, or `[B, H, W, C, G, P, Q]` for rank 3.
    Output shape: `[B, H', W', filters, P, R]`, or `[B, H', W', filters, G, P, R]`.
    Batch, height and width may be unknown.

    Weights: `kernel` `[KH, KW, C, filters, Q, R]`, or `[KH, KW, C, filters, G, Q, R]`;
    `bias` `[filters, P, R]`, or `[filters, G, P, R]`, a pose for each filter.

    Args:
      filters: how many capsules each output pixel has.
      pose_shape: the shape of the output poses, (P, R), or (G, P, R) for capsules of
        rank 3. P and G are the input's: a convolution changes the columns alone.
      kernel_size: one or two ints.
      strides: one or two ints.
      padding: `"valid"` or `"same"`, as for `keras.layers.Conv2D`.
      dilation_rate: one or two ints.
      activation: a function of the output `[..., P, R]`, such as
        `tf_capsops.squash`, which then squashes each row, or a name that Keras knows.
      use_bias: whether there is a bias.
      kernel_initializer: called for `[KH, KW, C * Q, filters * R]`, the kernel of the
        plain convolution with the same fans, and once for each of the G matrices.
      bias_initializer: as for `keras.layers.Conv2D`.
      kernel_regularizer, bias_regularizer: as for `keras.layers.Conv2D`.
      kernel_constraint, bias_constraint: as for `keras.layers.Conv2D`.

    Raises:
      ValueError: if an argument or the input's shape is not as above.

    >>> import numpy as np
    >>> import tf_capsops
    >>> layer = tf_capsops.layers.CapsuleConv2D(
    ...     filters=8, pose_shape=(4, 4), kernel_size=3, activation=tf_capsops.squash)
    >>> layer(np.ones([2, 7, 7, 3, 4, 4])).shape.as_list()
    [2, 5, 5, 8, 4, 4]
    """

    def __init__(
        self,
        filters,
        pose_shape,
        kernel_size,
        strides=1,
        padding="valid",
        dilation_rate=1,
        activation=None,
        use_bias=True,
        kernel_initializer="glorot_uniform",
        bias_initializer="zeros",
        kernel_regularizer=None,
        bias_regularizer=None,
        kernel_constraint=None,
        bias_constraint=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.filters = positive_int("CapsuleConv2D", "filters", filters)
        if not isinstance(pose_shape, (list, tuple)) or len(pose_shape) not in _AXES:
            raise ValueError(
                "CapsuleConv2D: pose_shape must be (rows, columns) or (depth, rows, "
                f"columns), got {pose_shape!r}"
            )
        self.pose_shape = tuple(
            positive_int("CapsuleConv2D", "pose_shape", size) for size in pose_shape
        )
        set_window(self, kernel_size, strides, padding, dilation_rate)
        self.activation = keras.activations.get(activation)
        self.use_bias = bool(use_bias)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.bias_regularizer = keras.regularizers.get(bias_regularizer)
        self.kernel_constraint = keras.constraints.get(kernel_constraint)
        self.bias_constraint = keras.constraints.get(bias_constraint)

    def build(self, input_shape):
        self.compute_output_shape(input_shape)
        *depth, _, columns = self.pose_shape
        channels, inner = input_shape[3], input_shape[-1]
        self.kernel = self.add_weight(
            name="kernel",
            shape=(*self.kernel_size, channels, self.filters, *depth, inner, columns),
            initializer=_of_a_convolution(self.kernel_initializer),
            regularizer=self.kernel_regularizer,
            constraint=self.kernel_constraint,
        )
        self.bias = None
        if self.use_bias:
            self.bias = self.add_weight(
                name="bias",
                shape=(self.filters, *self.pose_shape),
                initializer=self.bias_initializer,
                regularizer=self.bias_regularizer,
                constraint=self.bias_constraint,
            )
        rank = len(input_shape)
        axes = {axis: input_shape[axis] for axis in range(3, rank)}
        self.input_spec = keras.layers.InputSpec(ndim=rank, axes=axes)

    def call(self, capsules):
        (capsules,) = float_tensors("CapsuleConv2D", capsules=capsules)
        outputs = capsule_conv2d(
            capsules,
            tf.convert_to_tensor(self.kernel),
            strides=self.strides,
            padding=self.padding.upper(),
            dilations=self.dilation_rate,
        )
        if self.bias is not None:
            outputs += tf.convert_to_tensor(self.bias)
        return self.activation(outputs)

    def compute_output_shape(self, input_shape):
        axes = _AXES[len(self.pose_shape)]
        shape = tuple(input_shape)
        if len(shape) != 4 + len(self.pose_shape):
            raise ValueError(
                f"CapsuleConv2D: with pose_shape {self.pose_shape} the input must be "
                f"{axes}, got shape {shape}"
            )
        if None in shape[3:]:
            raise ValueError(
                f"CapsuleConv2D: only batch, height and width of {axes} may be "
                f"unknown, got shape {shape}"
            )
        if shape[4:-1] != self.pose_shape[:-1]:
            raise ValueError(
                "CapsuleConv2D: a convolution changes only the last dimension of a "
                f"pose: pose_shape must be {(*shape[4:-1], self.pose_shape[-1])} for "
                f"an input of shape {shape}, got {self.pose_shape}"
            )
        return (shape[0], *map_size(self, shape), self.filters, *self.pose_shape)

    def get_config(self):
        return {
            **super().get_config(),
            "filters": self.filters,
            "pose_shape": self.pose_shape,
            "kernel_size": self.kernel_size,
            "strides": self.strides,
            "padding": self.padding,
            "dilation_rate": self.dilation_rate,
            "activation": keras.activations.serialize(self.activation),
            "use_bias": self.use_bias,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
            "kernel_regularizer": keras.regularizers.serialize(self.kernel_regularizer),
            "bias_regularizer": keras.regularizers.serialize(self.bias_regularizer),
            "kernel_constraint": keras.constraints.serialize(self.kernel_constraint),
            "bias_constraint": keras.constraints.serialize(self.bias_constraint),
        }


def _of_a_convolution(initializer):
    """Adapts an initializer of plain kernels to kernels `[KH, KW, C, O, ..., Q, R]`.

    Keras' initializers count every axis but the last two as the window. They would
    count O as part of the fan-in, and the values would be far too small.
    """

    def initialize(shape, dtype=None):
        height, width, channels, filters, *depth, inner, columns = shape
        draw = _unlike_each_other(initializer) if depth else initializer
        plain = (height, width, channels * inner, filters * columns)
        split = (height, width, channels, inner, filters, columns)
        matrices = []
        for _ in range(depth[0] if depth else 1):
            values = keras.ops.convert_to_tensor(draw(plain, dtype=dtype), dtype)
            values = keras.ops.reshape(values, split)
            matrices.append(keras.ops.transpose(values, (0, 1, 2, 4, 3, 5)))
        return keras.ops.stack(matrices, axis=4) if depth else matrices[0]

    return initialize


def _unlike_each_other(initializer):
    """Makes an initializer draw new values at every call, the same ones for a seed."""
    config = getattr(initializer, "get_config", dict)()
    if not isinstance(config.get("seed", "none"), int | None):
        return initializer
    config["seed"] = keras.random.SeedGenerator(config["seed"])
    return type(initializer).from_config(config)
