# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Routing rules, each a few lines of code on top of `tf_capsops.capsule_moments`."""

from tf_capsops.routing.dynamic import Dynamic
from tf_capsops.routing.em import EM
from tf_capsops.routing.inverted_attention import InvertedAttention
from tf_capsops.routing.poses import exponential_squash
from tf_capsops.routing.rule import Rule
from tf_capsops.routing.self_attention import SelfAttention
from tf_capsops.routing.vb import VB

__all__ = [
    "EM",
    "VB",
    "Dynamic",
    "InvertedAttention",
    "Rule",
    "SelfAttention",
    "exponential_squash",
]
