# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The operators: one module each, holding its public function and its gradient."""
