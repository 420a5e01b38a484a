# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""One module for each op, which defines `SUITE`: its cases, rivals and costs."""
