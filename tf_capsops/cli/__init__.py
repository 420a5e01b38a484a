# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The commands of `tf-capsops`: the options in one module each, the work in others."""
