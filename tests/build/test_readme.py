# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The README's Python, run as a reader would: block after block in one session."""

import re

import fresh

_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def test_python_blocks_run_as_they_stand(tmp_path):
    blocks = _BLOCK.findall((fresh.ROOT / "README.md").read_text())
    assert blocks
    fresh.run("\n".join(blocks), cwd=tmp_path)
