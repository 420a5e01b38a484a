# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The published results: recipes, and `tf-capsops report`, which trains and reports."""
