# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Whole capsule networks."""

from tf_capsops.models.capsnet import CapsNet, capsnet
from tf_capsops.models.p_capsnet import p_capsnet

__all__ = ["CapsNet", "capsnet", "p_capsnet"]
