# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Slim capsules: convolutions that route the types of children at each pixel."""

import functools
import math

import keras
import tensorflow as tf

from tf_capsops.arguments import boolean, float_tensors, int_between, positive_int
from tf_capsops.layers.initializers import drawn_as_convolutions
from tf_capsops.layers.masks import seen_capsules, without_masked
from tf_capsops.layers.routing_bits import RoundedRouting
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
from tf_capsops.ops.capsule_conv_routing import (
    capsule_conv_routing,
    rounded_conv_routing,
)
from tf_capsops.ops.capsule_routing import MOST_ITERATIONS
from tf_capsops.registered import registered

_GAIN = 1.5  # The length of the first sums of votes, relative to the children.


class SlimCaps(RoundedRouting):
    """Base class of slim capsules along one, two or three axes.

    A subclass sets `axes`, the names of its spatial axes.
    """

    channel_axes = (-2, -1)

    axes = None
    is_transposed = False

    def __init__(
        self,
        filters,
        capsule_dim,
        kernel_size,
        strides=1,
        padding="valid",
        dilation_rate=1,
        routing_iterations=3,
        leaky=False,
        share_weights=True,
        use_bias=True,
        kernel_initializer=None,
        bias_initializer="zeros",
        kernel_regularizer=None,
        bias_regularizer=None,
        kernel_constraint=None,
        bias_constraint=None,
        *,
        bits=None,
        per_channel=False,
        routing_bits=None,
        **kwargs,
    ):
        super().__init__(
            bits=bits, per_channel=per_channel, routing_bits=routing_bits, **kwargs
        )
        owner = type(self).__name__
        self.filters = positive_int(owner, "filters", filters)
        self.capsule_dim = positive_int(owner, "capsule_dim", capsule_dim)
        set_window(self, kernel_size, strides, padding, dilation_rate, self.axes)
        if self.is_transposed:
            require_no_dilation(self)
        self.routing_iterations = int_between(
            owner, "routing_iterations", routing_iterations, 1, MOST_ITERATIONS
        )
        self.leaky = boolean(owner, "leaky", leaky)
        self.share_weights = boolean(owner, "share_weights", share_weights)
        self.use_bias = boolean(owner, "use_bias", use_bias)
        if kernel_initializer is not None:
            kernel_initializer = keras.initializers.get(kernel_initializer)
        self.kernel_initializer = kernel_initializer
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.bias_regularizer = keras.regularizers.get(bias_regularizer)
        self.kernel_constraint = keras.constraints.get(kernel_constraint)
        self.bias_constraint = keras.constraints.get(bias_constraint)

    def build(self, input_shape):
        self.compute_output_shape(input_shape)
        *_, types, in_dim = input_shape
        own = () if self.share_weights else (types,)
        self.kernel = self.add_weight(
            name="kernel",
            shape=(*self.kernel_size, *own, in_dim, self.filters, self.capsule_dim),
            initializer=self._initializer(types, in_dim),
            regularizer=self.kernel_regularizer,
            constraint=self.kernel_constraint,
        )
        self.bias = None
        if self.use_bias:
            self.bias = self.add_weight(
                name="bias",
                shape=(self.filters, self.capsule_dim),
                initializer=self.bias_initializer,
                regularizer=self.bias_regularizer,
                constraint=self.bias_constraint,
            )
        self.add_routing_ranges(self.routing_iterations)
        rank = len(input_shape)
        self.input_spec = keras.layers.InputSpec(
            ndim=rank, axes={rank - 2: types, rank - 1: in_dim}
        )

    def _initializer(self, types, in_dim):
        """Returns an initializer that reshapes ordinary convolution kernels."""
        initializer = self.kernel_initializer or self._scaled(types, in_dim)
        plain = (*self.kernel_size, in_dim, self.filters * self.capsule_dim)
        split = (*self.kernel_size, in_dim, self.filters, self.capsule_dim)

        def initialize(shape, dtype=None):
            return drawn_as_convolutions(
                shape,
                dtype,
                initializer,
                plain,
                lambda kernel: keras.ops.reshape(kernel, split),
                axis=None if self.share_weights else -4,
            )

        return initialize

    def _scaled(self, types, in_dim):
        """Returns an initializer with which parents start about as long as children.

        In the first iteration, a parent is the sum of one vote of each type, divided by
        the number of entries of the softmax; see `RoutedNormal`.
        """
        shares = self.filters + self.leaky
        scale = max(1, in_dim) * (_GAIN * shares) ** 2
        scale /= max(1, types) * self.capsule_dim
        if self.is_transposed:  # An output pixel reads only some of the taps.
            scale *= math.prod(map(min, self.kernel_size, self.strides))
        return keras.initializers.VarianceScaling(scale, "fan_in", "truncated_normal")

    def call(self, capsules, mask=None):
        owner = type(self).__name__
        (capsules,) = float_tensors(owner, capsules=capsules)
        dtype = capsules.dtype
        capsules = without_masked(capsules, seen_capsules(owner, capsules, mask))
        if self._adds_types():
            if dtype.size < 4:  # The sums would be rounded.
                capsules = tf.cast(capsules, tf.float32)
            capsules = tf.reduce_sum(capsules, -2, keepdims=True)
        route = capsule_conv_routing
        if self.routing_bits is not None:
            route = functools.partial(rounded_conv_routing, rounded=self.rounded)
        parents = route(
            capsules,
            tf.cast(self.kernel, capsules.dtype),
            bias=None if self.bias is None else tf.cast(self.bias, capsules.dtype),
            iterations=self.routing_iterations,
            strides=self.strides,
            padding=self.padding,
            dilations=self.dilation_rate,
            transposed=self.is_transposed,
            leaky=self.leaky,
        )
        return tf.cast(parents, dtype)

    def _adds_types(self):
        """Whether to add up types instead of their votes, which gives the same sums.

        That is possible if all types have the same weights and coefficients.
        """
        single = self.filters == 1 and not self.leaky
        same = single or self.routing_iterations == 1
        return same and self.share_weights and self.routing_bits is None

    def compute_mask(self, inputs, previous_mask):
        return None

    def compute_output_shape(self, input_shape):
        shape = tuple(input_shape)
        names = ("batch", *self.axes, "types", "capsule dim")
        if len(shape) != len(names):
            raise ValueError(
                f"{type(self).__name__}: the input must be [{', '.join(names)}], got "
                f"shape {shape}"
            )
        require_known(self, shape, names)
        if self.is_transposed:
            map_shape = transposed_map_size(self, shape)
        else:
            map_shape = map_size(self, shape, self.axes)
        return (shape[0], *map_shape, self.filters, self.capsule_dim)

    def get_config(self):
        initializer = self.kernel_initializer
        return {
            **super().get_config(),
            "filters": self.filters,
            "capsule_dim": self.capsule_dim,
            "kernel_size": self.kernel_size,
            "strides": self.strides,
            "padding": self.padding,
            "dilation_rate": self.dilation_rate,
            "routing_iterations": self.routing_iterations,
            "leaky": self.leaky,
            "share_weights": self.share_weights,
            "use_bias": self.use_bias,
            "kernel_initializer": initializer
            and keras.initializers.serialize(initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
            "kernel_regularizer": keras.regularizers.serialize(self.kernel_regularizer),
            "bias_regularizer": keras.regularizers.serialize(self.bias_regularizer),
            "kernel_constraint": keras.constraints.serialize(self.kernel_constraint),
            "bias_constraint": keras.constraints.serialize(self.bias_constraint),
        }


@registered
class SlimCaps2D(SlimCaps):
    """Slim capsules: a convolution that routes the types of children at each pixel.

    These are the layers of SegCaps (LaLonde and Bagci, "Capsules for Object
    Segmentation", 2018), with `tf_capsops.capsule_conv_routing`. At each pixel, every
    type of child has one vote for every parent: a convolution sums over the children of
    that type in the window. Routing by agreement then divides the types among the
    parents. However large the window, a pixel has only `types * filters` votes, and the
    layer only the weights of a `keras.layers.Conv2D` from K features to
    `filters * capsule_dim`.

    Input shape: `[B, H, W, I, K]`: I types of capsules of K numbers. Output shape: `[B,
    H', W', filters, capsule_dim]`, capsules of length below one. Batch, height and
    width may be unknown, and may differ from call to call.

    Weights: `kernel` `[KH, KW, K, filters, capsule_dim]`, or `[KH, KW, I, K, filters,
    capsule_dim]` without `share_weights`; `bias` `[filters, capsule_dim]`; with
    `routing_bits` also `routing_ranges` `[routing_iterations, 4, 2]`.

    A Keras mask, `[B, H, W]` or `[B, H, W, I]`, leaves children out. In half precision,
    sums and routing are computed in float32, and the votes in between are rounded.

    Args:
      filters: the number of parent types.
      capsule_dim: the length of a parent's vector.
      kernel_size: one or two ints.
      strides: one or two ints.
      padding: `"valid"` or `"same"`, as for `keras.layers.Conv2D`.
      dilation_rate: one or two ints.
      routing_iterations: how often the parents are computed, 1 to 2^31 - 1.
      leaky: whether the softmax has one extra entry with logit 0, whose share is
        discarded. With a single parent, routing has no effect unless it is leaky.
      share_weights: whether all types of children have the same kernel. The first call
        fixes the number of types even then.
      use_bias: whether the layer has a bias, which is added before squashing.
      kernel_initializer: called with the kernel shape of the ordinary convolution,
        `[KH, KW, K, filters * capsule_dim]`; without `share_weights`, once for each
        type. A custom initializer must then draw new values at each call, or have
        `seed` in its config. None for truncated normal values, scaled so that parents
        start about as long as children.
      bias_initializer: as for `keras.layers.Conv2D`; SegCaps uses the constant 0.1.
      kernel_regularizer, bias_regularizer: as for `keras.layers.Conv2D`.
      kernel_constraint, bias_constraint: as for `keras.layers.Conv2D`.
      bits, per_channel: as for `InqConv2D`; None keeps a floating-point kernel.
      routing_bits: as for `DigitCaps`.

    Raises:
      ValueError: if an argument or the input's shape is not as above.

    >>> import tf_capsops
    >>> layer = tf_capsops.layers.SlimCaps2D(
    ...     8, capsule_dim=32, kernel_size=5, strides=2, padding="same")
    >>> layer.compute_output_shape((None, 128, None, 4, 16))
    (None, 64, None, 8, 32)
    """

    axes = IMAGE


@registered
class SlimCaps1D(SlimCaps):
    """Slim capsules along a sequence: `SlimCaps2D` with one spatial axis.

    Input shape: `[B, W, I, K]`. Output shape: `[B, W', filters, capsule_dim]`. Batch
    and width may be unknown. A mask is `[B, W]` or `[B, W, I]`.

    Weights: `kernel` `[KW, K, filters, capsule_dim]`, or `[KW, I, K, filters,
    capsule_dim]`; `bias` as in `SlimCaps2D`.

    Args and errors are those of `SlimCaps2D`, with one int for each of `kernel_size`,
    `strides` and `dilation_rate`.

    >>> import tf_capsops
    >>> layer = tf_capsops.layers.SlimCaps1D(8, capsule_dim=16, kernel_size=3)
    >>> layer.compute_output_shape((None, 20, 4, 8))
    (None, 18, 8, 16)
    """

    axes = LINE


@registered
class SlimCaps3D(SlimCaps):
    """Slim capsules in a volume: `SlimCaps2D` with three spatial axes.

    These are the layers of 3D-UCaps (Nguyen, Hua and Le, 2021), for data such as the
    slices of a scan.

    Input shape: `[B, D, H, W, I, K]`. Output shape: `[B, D', H', W', filters,
    capsule_dim]`. Batch, depth, height and width may be unknown. A mask is `[B, D, H,
    W]`, or has I after these.

    Weights: `kernel` `[KD, KH, KW, K, filters, capsule_dim]`, or with I before K;
    `bias` as in `SlimCaps2D`.

    Args and errors are those of `SlimCaps2D`, with one or three ints for each of
    `kernel_size`, `strides` and `dilation_rate`.

    >>> import tf_capsops
    >>> layer = tf_capsops.layers.SlimCaps3D(8, capsule_dim=16, kernel_size=5)
    >>> layer.compute_output_shape((None, 9, 32, 32, 4, 8))
    (None, 5, 28, 28, 8, 16)
    """

    axes = VOLUME


@registered
class SlimCaps2DTranspose(SlimCaps):
    """Slim capsules whose votes come from a transposed convolution.

    These are the deconvolutional capsules of SegCaps, which upsample small maps.

    Input shape: as for `SlimCaps2D`. Output shape: as for `SlimCaps2D`, with
    `H' = H * stride` for `"same"`, and `H' = H * stride + max(kernel - stride, 0)` for
    `"valid"`; W' likewise.

    Weights, args and errors are those of `SlimCaps2D`, but `dilation_rate` must be 1.

    >>> import tf_capsops
    >>> layer = tf_capsops.layers.SlimCaps2DTranspose(
    ...     8, capsule_dim=32, kernel_size=4, strides=2, padding="same")
    >>> layer.compute_output_shape((None, 64, None, 8, 32))
    (None, 128, None, 8, 32)
    """

    axes, is_transposed = IMAGE, True


@registered
class SlimCaps3DTranspose(SlimCaps):
    """Slim capsules in a volume whose votes come from a transposed convolution.

    This is `SlimCaps2DTranspose` with three spatial axes.

    Input shape: as for `SlimCaps3D`. Output shape: as for `SlimCaps3D`; the formulas of
    `SlimCaps2DTranspose` give the size along each axis.

    Weights, args and errors are those of `SlimCaps3D`, but `dilation_rate` must be 1.

    >>> import tf_capsops
    >>> layer = tf_capsops.layers.SlimCaps3DTranspose(
    ...     8, capsule_dim=16, kernel_size=2, strides=2)
    >>> layer.compute_output_shape((None, 4, 16, 16, 8, 16))
    (None, 8, 32, 32, 8, 16)
    """

    axes, is_transposed = VOLUME, True
