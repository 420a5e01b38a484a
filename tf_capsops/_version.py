# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The version: the one place it is written; the builds and the package read it."""

__version__ = "0.1.0"
