# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Keras layers of capsule networks."""

from tf_capsops.layers.capsule_conv2d import CapsuleConv2D
from tf_capsops.layers.conv2d import Conv2D
from tf_capsops.layers.digit_caps import DigitCaps, digit_caps
from tf_capsops.layers.high_order_conv2d import HighOrderConv2D
from tf_capsops.layers.initializers import CenterTap, RoutedNormal
from tf_capsops.layers.inq_conv2d import InqConv2D
from tf_capsops.layers.inq_dense import InqDense
from tf_capsops.layers.inq_depthwise_conv2d import InqDepthwiseConv2D
from tf_capsops.layers.length import Length
from tf_capsops.layers.mask import Mask
from tf_capsops.layers.primary_caps import PrimaryCaps

__all__ = [
    "CapsuleConv2D",
    "CenterTap",
    "Conv2D",
    "DigitCaps",
    "HighOrderConv2D",
    "InqConv2D",
    "InqDense",
    "InqDepthwiseConv2D",
    "Length",
    "Mask",
    "PrimaryCaps",
    "RoutedNormal",
    "digit_caps",
]
