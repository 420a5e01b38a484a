# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The operators: each module has an operator's public function and its gradient."""
