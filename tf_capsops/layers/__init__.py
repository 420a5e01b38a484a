# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Keras layers of capsule networks."""

from tf_capsops.layers.capsule_conv import (
    CapsuleConv1D,
    CapsuleConv2D,
    CapsuleConv2DTranspose,
    CapsuleConv3D,
    CapsuleConv3DTranspose,
)
from tf_capsops.layers.class_caps import ClassCaps
from tf_capsops.layers.conv2d import Conv2D
from tf_capsops.layers.conv3d import Conv3D
from tf_capsops.layers.conv_caps import ConvCaps1D, ConvCaps2D, ConvCaps3D
from tf_capsops.layers.dense_caps import DenseCaps
from tf_capsops.layers.digit_caps import DigitCaps, digit_caps
from tf_capsops.layers.fake_quant import FakeQuant
from tf_capsops.layers.high_order_conv1d import HighOrderConv1D
from tf_capsops.layers.high_order_conv2d import HighOrderConv2D
from tf_capsops.layers.initializers import CenterTap, RoutedNormal
from tf_capsops.layers.inq_conv2d import InqConv2D
from tf_capsops.layers.inq_conv_nd import (
    InqConv1D,
    InqConv2DTranspose,
    InqConv3D,
    InqConv3DTranspose,
)
from tf_capsops.layers.inq_dense import InqDense
from tf_capsops.layers.inq_depthwise_conv2d import InqDepthwiseConv2D
from tf_capsops.layers.length import Length
from tf_capsops.layers.mask import Mask
from tf_capsops.layers.pose_caps import PoseCaps
from tf_capsops.layers.primary_caps import PrimaryCaps
from tf_capsops.layers.slim_caps import (
    SlimCaps1D,
    SlimCaps2D,
    SlimCaps2DTranspose,
    SlimCaps3D,
    SlimCaps3DTranspose,
)

__all__ = [
    "CapsuleConv1D",
    "CapsuleConv2D",
    "CapsuleConv2DTranspose",
    "CapsuleConv3D",
    "CapsuleConv3DTranspose",
    "CenterTap",
    "ClassCaps",
    "Conv2D",
    "Conv3D",
    "ConvCaps1D",
    "ConvCaps2D",
    "ConvCaps3D",
    "DenseCaps",
    "DigitCaps",
    "FakeQuant",
    "HighOrderConv1D",
    "HighOrderConv2D",
    "InqConv1D",
    "InqConv2D",
    "InqConv2DTranspose",
    "InqConv3D",
    "InqConv3DTranspose",
    "InqDense",
    "InqDepthwiseConv2D",
    "Length",
    "Mask",
    "PoseCaps",
    "PrimaryCaps",
    "RoutedNormal",
    "SlimCaps1D",
    "SlimCaps2D",
    "SlimCaps2DTranspose",
    "SlimCaps3D",
    "SlimCaps3DTranspose",
    "digit_caps",
]
