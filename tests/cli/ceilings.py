# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rates of a device, for tests of the benchmark: measuring them takes a second."""

from tf_capsops.bench.floor import Ceilings

CEILINGS = Ceilings(bytes_per_second=1e9, flops_per_second=1e9, seconds_per_call=1e-6)
