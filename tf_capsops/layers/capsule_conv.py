# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Convolutions whose features are capsules: matrices instead of numbers."""

import keras
import tensorflow as tf

from tf_capsops.arguments import boolean, float_tensors, positive_int
from tf_capsops.layers.coded import Coded
from tf_capsops.layers.initializers import drawn_as_convolutions
from tf_capsops.layers.window import (
    IMAGE,
    LINE,
    VOLUME,
    map_size,
    require_known,
    require_no_dilation,
    set_window,
    transposed_map_size,
)
from tf_capsops.ops.capsule_conv import capsule_conv2d
from tf_capsops.ops.capsule_conv_nd import (
    capsule_conv1d,
    capsule_conv2d_transpose,
    capsule_conv3d,
    capsule_conv3d_transpose,
)
from tf_capsops.ops.squash import squash
from tf_capsops.registered import registered

# Registered so that models that use it as an activation can be saved and loaded.
keras.saving.register_keras_serializable("tf_capsops")(squash)


class CapsuleConv(Coded):
    """Base class of the capsule convolutions along one, two or three axes.

    A subclass sets `axes`, the names of the axes that its window slides along, and
    `convolve`, the `tf_capsops` function that is called with capsules, weights and the
    window's arguments.
    """

    axes = convolve = None
    is_transposed = False

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
        *,
        bits=None,
        per_channel=False,
        **kwargs,
    ):
        super().__init__(bits=bits, per_channel=per_channel, **kwargs)
        owner = type(self).__name__
        self.filters = positive_int(owner, "filters", filters)
        if not isinstance(pose_shape, (list, tuple)) or len(pose_shape) not in (2, 3):
            raise ValueError(
                f"{owner}: pose_shape must be (rows, columns) or (depth, rows, "
                f"columns), got {pose_shape!r}"
            )
        self.pose_shape = tuple(
            positive_int(owner, "pose_shape", size) for size in pose_shape
        )
        set_window(self, kernel_size, strides, padding, dilation_rate, self.axes)
        if self.is_transposed:
            require_no_dilation(self)
        self.activation = keras.activations.get(activation)
        self.use_bias = boolean(owner, "use_bias", use_bias)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.bias_regularizer = keras.regularizers.get(bias_regularizer)
        self.kernel_constraint = keras.constraints.get(kernel_constraint)
        self.bias_constraint = keras.constraints.get(bias_constraint)

    @property
    def channel_axes(self):
        return (len(self.axes) + 1,)

    def build(self, input_shape):
        self.compute_output_shape(input_shape)
        *depth, _, columns = self.pose_shape
        first = 1 + len(self.axes)
        channels, inner = input_shape[first], input_shape[-1]
        self.kernel = self.add_weight(
            name="kernel",
            shape=(*self.kernel_size, channels, self.filters, *depth, inner, columns),
            initializer=_of_a_convolution(self.kernel_initializer, len(self.axes)),
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
        axes = {axis: input_shape[axis] for axis in range(first, rank)}
        self.input_spec = keras.layers.InputSpec(ndim=rank, axes=axes)

    def call(self, capsules):
        (capsules,) = float_tensors(type(self).__name__, capsules=capsules)
        kernel = tf.convert_to_tensor(self.kernel)
        outputs = self.convolve(capsules, kernel, **self.window())
        if self.bias is not None:
            outputs += tf.convert_to_tensor(self.bias)
        return self.activation(outputs)

    def window(self):
        """Returns the keyword arguments of `convolve` that describe the window."""
        return {
            "strides": self.strides,
            "padding": self.padding,
            "dilations": self.dilation_rate,
        }

    def compute_output_shape(self, input_shape):
        owner, shape = type(self).__name__, tuple(input_shape)
        depth = ["pose depth"] * (len(self.pose_shape) - 2)
        names = ["batch", *self.axes, "channels", *depth, "pose rows", "pose columns"]
        axes = f"[{', '.join(names)}]"
        if len(shape) != len(names):
            raise ValueError(
                f"{owner}: with pose_shape {self.pose_shape} the input must be "
                f"{axes}, got shape {shape}"
            )
        first = 1 + len(self.axes)
        require_known(self, shape, names)
        if shape[first + 1 : -1] != self.pose_shape[:-1]:
            pose_shape = (*shape[first + 1 : -1], self.pose_shape[-1])
            raise ValueError(
                f"{owner}: a convolution changes only the last dimension of a "
                f"pose: pose_shape must be {pose_shape} for an input of shape {shape}, "
                f"got {self.pose_shape}"
            )
        return (shape[0], *self.map_size(shape), self.filters, *self.pose_shape)

    def map_size(self, shape):
        """Returns the sizes of the output along `axes`."""
        return map_size(self, shape, self.axes)

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


@registered
class CapsuleConv2D(CapsuleConv):
    """Convolution that multiplies pose matrices, with `tf_capsops.capsule_conv2d`.

    A `keras.layers.Conv2D` multiplies a feature by a weight. This layer multiplies the
    P x Q pose of a capsule by a Q x R matrix, sums over the window, adds the pose
    `bias[o]` and applies `activation`. Every row of a pose is multiplied by the same
    weights, and rows do not mix. A layer of 4 x 4 poses therefore has a sixteenth of
    the weights of a `Conv2D` between equally many features. If poses have one row, the
    layer is a `Conv2D` from C * Q features to filters * R.

    Capsules of rank 3, as in P-CapsNets (Chen et al., 2019), hold G matrices, each of
    which has its own weights.

    Input shape: `[B, H, W, C, P, Q]`, or `[B, H, W, C, G, P, Q]` for rank 3.
    Output shape: `[B, H', W', filters, P, R]`, or `[B, H', W', filters, G, P, R]`.
    Batch, height and width may be unknown.

    Weights: `kernel` `[KH, KW, C, filters, Q, R]`, or `[KH, KW, C, filters, G, Q, R]`;
    `bias` `[filters, P, R]`, or `[filters, G, P, R]`: one pose for each filter.

    Args:
      filters: the number of capsules at each output pixel.
      pose_shape: the shape of the output poses, (P, R), or (G, P, R) for capsules of
        rank 3. P and G must equal the input's: only the number of columns can change.
      kernel_size: one or two ints.
      strides: one or two ints.
      padding: `"valid"` or `"same"`, as for `keras.layers.Conv2D`.
      dilation_rate: one or two ints.
      activation: a function of the output `[..., P, R]`, or a name that Keras knows.
        `tf_capsops.squash` squashes each row of a pose by itself.
      use_bias: whether the layer has a bias.
      kernel_initializer: called with the shape `[KH, KW, C * Q, filters * R]`, that of
        an ordinary convolution with the same fan-in and fan-out. For capsules of rank 3
        it is called once for each of the G matrices; a custom initializer must then
        draw new values at each call, or have `seed` in its config.
      bias_initializer: as for `keras.layers.Conv2D`.
      kernel_regularizer, bias_regularizer: as for `keras.layers.Conv2D`.
      kernel_constraint, bias_constraint: as for `keras.layers.Conv2D`.
      bits, per_channel: as for `InqConv2D`; None keeps a floating-point kernel.

    Raises:
      ValueError: if an argument or the input's shape is not as above.

    >>> import numpy as np
    >>> import tf_capsops
    >>> layer = tf_capsops.layers.CapsuleConv2D(
    ...     filters=8, pose_shape=(4, 4), kernel_size=3, activation=tf_capsops.squash)
    >>> layer(np.ones([2, 7, 7, 3, 4, 4])).shape.as_list()
    [2, 5, 5, 8, 4, 4]
    """

    axes, convolve = IMAGE, staticmethod(capsule_conv2d)


@registered
class CapsuleConv1D(CapsuleConv):
    """Convolution of sequences of capsules, with `tf_capsops.capsule_conv1d`.

    This is `CapsuleConv2D` with one spatial axis, for data such as the words of a text
    or the samples of a signal.

    Input shape: `[B, W, C, P, Q]`, or `[B, W, C, G, P, Q]` for capsules of rank 3.
    Output shape: `[B, W', filters, P, R]`, or `[B, W', filters, G, P, R]`. Batch and
    width may be unknown.

    Weights: `kernel` `[KW, C, filters, Q, R]`, or `[KW, C, filters, G, Q, R]`; `bias`
    as in `CapsuleConv2D`.

    Args and errors are those of `CapsuleConv2D`, with one int for each of
    `kernel_size`, `strides` and `dilation_rate`.

    >>> import numpy as np
    >>> import tf_capsops
    >>> layer = tf_capsops.layers.CapsuleConv1D(8, (4, 4), 3, padding="same")
    >>> layer(np.ones([2, 20, 3, 4, 4])).shape.as_list()
    [2, 20, 8, 4, 4]
    """

    axes, convolve = LINE, staticmethod(capsule_conv1d)


@registered
class CapsuleConv3D(CapsuleConv):
    """Convolution of volumes of capsules, with `tf_capsops.capsule_conv3d`.

    This is `CapsuleConv2D` with three spatial axes, for data such as the slices of a
    scan or the frames of a video.

    Input shape: `[B, D, H, W, C, P, Q]`, or `[B, D, H, W, C, G, P, Q]` for capsules of
    rank 3. Output shape: `[B, D', H', W', filters, P, R]`, or with G before P. Batch,
    depth, height and width may be unknown.

    Weights: `kernel` `[KD, KH, KW, C, filters, Q, R]`, or with G before Q; `bias` as in
    `CapsuleConv2D`.

    Args and errors are those of `CapsuleConv2D`, with one or three ints for each of
    `kernel_size`, `strides` and `dilation_rate`.

    >>> import numpy as np
    >>> import tf_capsops
    >>> layer = tf_capsops.layers.CapsuleConv3D(8, (4, 4), 3, strides=2)
    >>> layer(np.ones([1, 9, 9, 9, 2, 4, 4])).shape.as_list()
    [1, 4, 4, 4, 8, 4, 4]
    """

    axes, convolve = VOLUME, staticmethod(capsule_conv3d)


class CapsuleConvTranspose(CapsuleConv):
    """Base class of the transposed capsule convolutions, which allow no dilation."""

    is_transposed = True

    def window(self):
        return {"strides": self.strides, "padding": self.padding}

    def map_size(self, shape):
        return transposed_map_size(self, shape)


@registered
class CapsuleConv2DTranspose(CapsuleConvTranspose):
    """Transposed convolution of capsules, with `tf_capsops.capsule_conv2d_transpose`.

    It relates to `CapsuleConv2D` as `keras.layers.Conv2DTranspose` does to `Conv2D`: it
    upsamples small images to large ones, as in a decoder.

    Input shape: as for `CapsuleConv2D`. Output shape: as for `CapsuleConv2D`, with
    `H' = H * stride` for `"same"`, and `H' = H * stride + max(kernel - stride, 0)` for
    `"valid"`; W' likewise.

    Weights, args and errors are those of `CapsuleConv2D`, but `dilation_rate` must
    be 1.

    >>> import numpy as np
    >>> import tf_capsops
    >>> layer = tf_capsops.layers.CapsuleConv2DTranspose(
    ...     8, (4, 4), 4, strides=2, padding="same")
    >>> layer(np.ones([2, 7, 7, 3, 4, 4])).shape.as_list()
    [2, 14, 14, 8, 4, 4]
    """

    axes, convolve = IMAGE, staticmethod(capsule_conv2d_transpose)


@registered
class CapsuleConv3DTranspose(CapsuleConvTranspose):
    """Transposed convolution of volumes, with `tf_capsops.capsule_conv3d_transpose`.

    This is `CapsuleConv2DTranspose` with three spatial axes.

    Input shape: as for `CapsuleConv3D`. Output shape: as for `CapsuleConv3D`; the
    formulas of `CapsuleConv2DTranspose` give the size of each spatial axis.

    Weights, args and errors are those of `CapsuleConv3D`, but `dilation_rate` must
    be 1.

    >>> import numpy as np
    >>> import tf_capsops
    >>> layer = tf_capsops.layers.CapsuleConv3DTranspose(
    ...     8, (4, 4), 2, strides=2)
    >>> layer(np.ones([1, 4, 4, 4, 3, 4, 4])).shape.as_list()
    [1, 8, 8, 8, 8, 4, 4]
    """

    axes, convolve = VOLUME, staticmethod(capsule_conv3d_transpose)


def _of_a_convolution(initializer, axes):
    """Adapts an initializer of ordinary kernels to kernels `[..., C, O, ..., Q, R]`.

    The first `axes` dimensions of the kernel are the window.
    """

    def initialize(shape, dtype=None):
        window = shape[:axes]
        channels, filters, *depth, inner, columns = shape[axes:]
        plain = (*window, channels * inner, filters * columns)

        def reshape(kernel):
            split = (*window, channels, inner, filters, columns)
            return keras.ops.swapaxes(keras.ops.reshape(kernel, split), -3, -2)

        return drawn_as_convolutions(
            shape, dtype, initializer, plain, reshape, axis=-3 if depth else None
        )

    return initialize
