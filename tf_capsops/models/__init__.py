# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Complete capsule networks, and the baselines to compare them with."""

from tf_capsops.models.capsnet import CapsNet, capsnet
from tf_capsops.models.classifier import CapsuleClassifier
from tf_capsops.models.convnet import convnet
from tf_capsops.models.deepcaps import DeepCaps, deepcaps
from tf_capsops.models.efficient_capsnet import efficient_capsnet
from tf_capsops.models.matrix_capsnet import matrix_capsnet
from tf_capsops.models.p_capsnet import p_capsnet
from tf_capsops.models.pretrained import load_pretrained
from tf_capsops.models.segcaps import SegCaps, segcaps
from tf_capsops.models.ucaps3d import UCaps3D, ucaps3d
from tf_capsops.models.unet import unet
from tf_capsops.models.unrolled import Unrolled

__all__ = [
    "CapsNet",
    "CapsuleClassifier",
    "DeepCaps",
    "SegCaps",
    "UCaps3D",
    "Unrolled",
    "capsnet",
    "convnet",
    "deepcaps",
    "efficient_capsnet",
    "load_pretrained",
    "matrix_capsnet",
    "p_capsnet",
    "segcaps",
    "ucaps3d",
    "unet",
]
