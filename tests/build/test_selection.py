# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Without `--all`, each type but float32 runs about a quarter of the cases."""

import descriptions
import pytest
import running

from tf_capsops.bench import cases as bench_cases


@pytest.mark.parametrize("op", descriptions.every(), ids=lambda op: op.name)
def test_every_type_has_about_a_quarter_of_the_cases(op):
    cases = op.suite.select(bench_cases.CORRECTNESS)
    assert all(running.in_quarter(case, descriptions.DTYPES[0]) for case in cases)
    chosen = [
        {case.name for case in cases if running.in_quarter(case, dtype)}
        for dtype in descriptions.DTYPES[1:]
    ]
    assert all(len(cases) / 8 < len(names) < len(cases) / 2 for names in chosen)
    assert not set.intersection(*chosen)
