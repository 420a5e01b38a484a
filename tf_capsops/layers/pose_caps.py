# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The first layer of matrix capsules: a convolution to poses and activations."""

import math

import tensorflow as tf

from tf_capsops.arguments import float_tensors, positive_int
from tf_capsops.layers.convolving import Convolving
from tf_capsops.layers.data_format import checked_images
from tf_capsops.layers.routed import checked_pose_shape
from tf_capsops.layers.window import map_size
from tf_capsops.registered import registered
from tf_capsops.shapes import dimensions


@registered
class PoseCaps(Convolving):
    """Convolves features to pose matrices and their activations.

    These are the primary capsules of Hinton, Sabour and Frosst (2018), who use a 1 x 1
    kernel. A pose is a linear function of the features, and an activation is the
    sigmoid of one. Both come from one convolution, `conv`, a `Conv2D` of this package:
    its first features are the numbers of all poses, and its last the logits of the
    activations.

    Input shape: `[B, H, W, C]`. Output shape: poses `[B, H', W', capsules, P, Q]` and
    activations `[B, H', W', capsules]`. Batch, height and width may be unknown.

    Args:
      capsules: the number of capsules at each position.
      pose_shape: (P, Q).
      kernel_size: one or two ints.
      strides: one or two ints.
      padding: `"valid"` or `"same"`.
      use_bias: whether the convolution has a bias.
      kernel_initializer, bias_initializer: as for `keras.layers.Conv2D`.
      kernel_regularizer, bias_regularizer: as for `keras.layers.Conv2D`.
      kernel_constraint, bias_constraint: as for `keras.layers.Conv2D`.
      bits, per_channel: as for `InqConv2D`; None keeps a floating-point kernel.

    Raises:
      ValueError: if an argument or the input's shape is not as above.

    >>> import numpy as np
    >>> import tf_capsops
    >>> poses, activations = tf_capsops.layers.PoseCaps(8)(np.ones([2, 7, 7, 32]))
    >>> poses.shape, activations.shape
    (TensorShape([2, 7, 7, 8, 4, 4]), TensorShape([2, 7, 7, 8]))
    """

    def __init__(
        self,
        capsules,
        pose_shape=(4, 4),
        kernel_size=1,
        strides=1,
        padding="valid",
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
        capsules = positive_int("PoseCaps", "capsules", capsules)
        pose_shape = checked_pose_shape(self, pose_shape)
        super().__init__(
            capsules * (math.prod(pose_shape) + 1),
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
        self.capsules = capsules
        self.pose_shape = pose_shape

    def build(self, input_shape):
        self.compute_output_shape(input_shape)
        self.conv.build(input_shape)

    def call(self, images):
        (images,) = float_tensors("PoseCaps", images=images)
        map_size(self, images.shape)  # Rejects too small images.
        features = self.conv(images)
        numbers = self.capsules * math.prod(self.pose_shape)
        poses, logits = tf.split(features, [numbers, self.capsules], axis=-1)
        shape = [*dimensions(poses)[:3], self.capsules, *self.pose_shape]
        return tf.reshape(poses, shape), tf.sigmoid(logits)

    def compute_output_shape(self, input_shape):
        shape = checked_images(self, input_shape)
        capsules = (shape[0], *map_size(self, shape), self.capsules)
        return (*capsules, *self.pose_shape), capsules

    def get_config(self):
        return {
            **super().get_config(),
            "capsules": self.capsules,
            "pose_shape": self.pose_shape,
        }
