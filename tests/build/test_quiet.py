# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""What pytest prints is its own."""

import os
import re
import subprocess
import sys

import fresh
import pytest


@pytest.mark.ci
def test_no_log_lines_of_tensorflow():
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1"}
    environment.pop("TF_CPP_MIN_LOG_LEVEL", None)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "tests/build/test_tolerances.py"],
        cwd=fresh.ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    printed = done.stdout + done.stderr
    assert " passed" in printed
    assert not re.search(r"^[IWE]\d{4} |absl::InitializeLog", printed, re.MULTILINE)
