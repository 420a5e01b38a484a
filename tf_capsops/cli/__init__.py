# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The commands of `tf-capsops`: one module has the options, others do the work."""
