# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Whole capsule networks."""

from tf_capsops.models.capsnet import CapsNet, capsnet
from tf_capsops.models.p_capsnet import p_capsnet
from tf_capsops.models.unrolled import Unrolled

__all__ = ["CapsNet", "Unrolled", "capsnet", "p_capsnet"]
