# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Convolutional capsule layers, whose routing is a rule of `tf_capsops.routing`."""

import tensorflow as tf

from tf_capsops.arguments import positive_int
from tf_capsops.layers.routed import Routed, pair_of_shapes, pair_of_tensors
from tf_capsops.layers.window import IMAGE, LINE, VOLUME, map_size, set_window
from tf_capsops.registered import registered


class ConvCaps(Routed):
    """Base class of convolutional capsules along one, two or three axes.

    A subclass sets `axes`, the names of the axes that its window slides along.
    """

    axes = None

    def __init__(
        self,
        filters,
        kernel_size,
        strides=1,
        padding="valid",
        pose_shape=(4, 4),
        routing=None,
        dilation_rate=1,
        kernel_initializer="lecun_normal",
        kernel_regularizer=None,
        kernel_constraint=None,
        *,
        bits=None,
        per_channel=False,
        **kwargs,
    ):
        super().__init__(
            pose_shape,
            routing,
            kernel_initializer,
            kernel_regularizer,
            kernel_constraint,
            bits=bits,
            per_channel=per_channel,
            **kwargs,
        )
        self.filters = positive_int(type(self).__name__, "filters", filters)
        set_window(self, kernel_size, strides, padding, dilation_rate, self.axes)

    def build(self, input_shape):
        parents, _ = self.compute_output_shape(input_shape)
        (*_, channels, _, inner), _ = input_shape
        shape = (*self.kernel_size, channels, self.filters, inner, self.pose_shape[1])
        self.add_kernel(shape, input_shape)
        self.build_routing(shape, parents)

    def children(self, inputs, mask=None):
        poses, activations = pair_of_tensors(self, inputs, mask)
        weights = tf.cast(self.kernel, poses.dtype)
        return (poses, activations, weights), {
            "strides": self.strides,
            "padding": self.padding,
            "dilations": self.dilation_rate,
        }

    def compute_output_shape(self, input_shape):
        axes = ("batch", *self.axes, "channels")
        unknown = len(axes) - 1
        poses, _ = pair_of_shapes(self, input_shape, axes, may_be_unknown=unknown)
        capsules = (poses[0], *map_size(self, poses, self.axes), self.filters)
        return (*capsules, *self.pose_shape), capsules

    def get_config(self):
        return {
            **super().get_config(),
            "filters": self.filters,
            "kernel_size": self.kernel_size,
            "strides": self.strides,
            "padding": self.padding,
            "dilation_rate": self.dilation_rate,
        }


@registered
class ConvCaps2D(ConvCaps):
    """Convolutional capsules: the children in a window vote, and a rule routes them.

    A child's vote for a parent is the child's pose times a weight matrix; there is one
    matrix for each parent type and each place in the window. The rule `routing`
    computes the parents from moments of the votes. `tf_capsops.capsule_moments` sums
    these without storing a single vote. With EM routing, this is the layer of Hinton,
    Sabour and Frosst (2018).

    Input shape: a list of poses `[B, H, W, C, P, Q]` and activations `[B, H, W, C]`.
    Output shape: poses `[B, H', W', filters, P, R]` and activations `[B, H', W',
    filters]`. Batch, height and width may be unknown. Every rule ignores children whose
    activation is 0, and children that a Keras mask, `[B, H, W]` or `[B, H, W, C]`,
    leaves out.

    Weights: `kernel` `[KH, KW, C, filters, Q, R]`, and those of the rule.

    Half precision: moments and rules are computed in float32 and results rounded once.

    Args:
      filters: the number of parent types.
      kernel_size: one or two ints.
      strides: one or two ints.
      padding: `"valid"` or `"same"`. Padding adds no children.
      pose_shape: (P, R), the shape of the parents' poses, with the children's P.
      routing: a rule of `tf_capsops.routing`; None for `EM()`.
      dilation_rate: one or two ints.
      kernel_initializer: called with the shape `[Q, KH * KW * C * filters * R]`, so
        that an initializer that scales with the fan-in gives votes about as large as
        poses.
      kernel_regularizer, kernel_constraint: as for `keras.layers.Conv2D`.
      bits, per_channel: as for `InqConv2D`; None keeps a floating-point kernel.

    Raises:
      ValueError: if an argument or the input's shape is not as above.

    >>> import tf_capsops
    >>> layer = tf_capsops.layers.ConvCaps2D(8, kernel_size=3, strides=2)
    >>> layer.compute_output_shape([(None, 9, 9, 4, 4, 4), (None, 9, 9, 4)])
    ((None, 4, 4, 8, 4, 4), (None, 4, 4, 8))
    """

    axes = IMAGE


@registered
class ConvCaps1D(ConvCaps):
    """Convolutional capsules along a sequence: `ConvCaps2D` with one spatial axis.

    Input shape: a list of poses `[B, W, C, P, Q]` and activations `[B, W, C]`. Output
    shape: poses `[B, W', filters, P, R]` and activations `[B, W', filters]`. Batch and
    width may be unknown.

    Weights: `kernel` `[KW, C, filters, Q, R]`, and those of the rule.

    Args and errors are those of `ConvCaps2D`, with one int for each of `kernel_size`,
    `strides` and `dilation_rate`.

    >>> import tf_capsops
    >>> layer = tf_capsops.layers.ConvCaps1D(8, kernel_size=3)
    >>> layer.compute_output_shape([(None, 20, 4, 4, 4), (None, 20, 4)])
    ((None, 18, 8, 4, 4), (None, 18, 8))
    """

    axes = LINE


@registered
class ConvCaps3D(ConvCaps):
    """Convolutional capsules in a volume: `ConvCaps2D` with three spatial axes.

    Input shape: a list of poses `[B, D, H, W, C, P, Q]` and activations `[B, D, H, W,
    C]`. Output shape: poses `[B, D', H', W', filters, P, R]` and activations `[B, D',
    H', W', filters]`. Batch, depth, height and width may be unknown.

    Weights: `kernel` `[KD, KH, KW, C, filters, Q, R]`, and those of the rule.

    Args and errors are those of `ConvCaps2D`, with one or three ints for each of
    `kernel_size`, `strides` and `dilation_rate`.

    >>> import tf_capsops
    >>> layer = tf_capsops.layers.ConvCaps3D(8, kernel_size=3, strides=2)
    >>> layer.compute_output_shape([(None, 9, 9, 9, 4, 4, 4), (None, 9, 9, 9, 4)])
    ((None, 4, 4, 4, 8, 4, 4), (None, 4, 4, 4, 8))
    """

    axes = VOLUME
