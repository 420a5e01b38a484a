# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Benchmarks of the ops against plain TensorFlow, and the cases shared with the tests.

`command` is `tf-capsops bench`, and `options` declares its options.
"""
