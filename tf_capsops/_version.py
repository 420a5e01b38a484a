# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The version. The builds and the package read it from here."""

__version__ = "0.1.0"
