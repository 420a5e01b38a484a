# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Memory does not grow with the number of calls on a CPU: measured."""

import os
import sys

import fresh
import pytest

_STEPS = 5_000  # each a call of an op and one of its gradient at least
_ALLOWED = 4e6  # bytes that all may leave, which is 400 for each call

# Prints how many bytes the process has grown by in so many steps, of all ops in turn.
# From one turn to the next, plans become stale.
_MEASURE = """
import pathlib, re, sys
import descriptions
import tensorflow as tf
from tf_capsops import kernels
from tf_capsops.bench import cases

def memory():
    status = pathlib.Path("/proc/self/status").read_text()
    return 1024 * int(re.search(r"VmRSS:\\s*(\\d+) kB", status)[1])

calls = []
for op in descriptions.every():
    case = op.suite.select(cases.GRADIENT)[0]
    calls.append((op.results, case.bind(op.suite.ours), op.draw(case, tf.float32)))

def run(count):
    for _ in range(count // len(calls)):
        with kernels.force():
            for results, compute, tensors in calls:
                results(compute, *tensors)

run(1_000)
before = memory()
run(int(sys.argv[1]))
print(memory() - before)
"""


@pytest.mark.ci
def test_ten_thousand_calls_leave_nothing():
    path = os.pathsep.join(sys.path)
    printed = fresh.run(_MEASURE, _STEPS, PYTHONPATH=path, CUDA_VISIBLE_DEVICES="-1")
    growth = int(printed.split()[-1])
    print(f"{2 * _STEPS} calls: {growth} bytes")
    assert growth < _ALLOWED
