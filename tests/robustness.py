# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tests of repeatable results that several ops share."""

import concurrent.futures

import numpy as np


def same_at_the_same_time(run, drawn, times=20):
    """Asserts that calls made in several threads give what each gives alone."""
    alone = [run(one) for one in drawn]
    with concurrent.futures.ThreadPoolExecutor(len(drawn)) as pool:
        together = list(pool.map(run, drawn * times))
    for number, results in enumerate(together):
        for one, other in zip(results, alone[number % len(drawn)], strict=True):
            np.testing.assert_array_equal(one, other)
