# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The ordinary convolution, as a capsule convolution of poses of one number."""

import keras
import tensorflow as tf

from tf_capsops.ops.capsule_conv import capsule_conv2d


@keras.saving.register_keras_serializable("tf_capsops")
class Conv2D(keras.layers.Conv2D):
    """`keras.layers.Conv2D`, computed by `tf_capsops.capsule_conv2d`.

    Arguments, weights, saved weights and results are those of `keras.layers.Conv2D`,
    but for rounding. Groups and `"channels_first"` run on TensorFlow's convolution.

    >>> import numpy as np
    >>> from tf_capsops.layers import Conv2D
    >>> Conv2D(8, 3, activation="relu")(np.ones([2, 7, 7, 3])).shape.as_list()
    [2, 5, 5, 8]
    """

    def convolution_op(self, inputs, kernel):
        if self.data_format != "channels_last" or self.groups != 1:
            return super().convolution_op(inputs, kernel)
        outputs = capsule_conv2d(
            _poses(inputs),
            _poses(kernel),
            strides=self.strides,
            padding=self.padding.upper(),
            dilations=self.dilation_rate,
        )
        return tf.squeeze(outputs, [-2, -1])


def _poses(numbers):
    return tf.expand_dims(tf.expand_dims(numbers, -1), -1)
