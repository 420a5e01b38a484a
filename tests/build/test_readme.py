# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The Python of README and guides, run as a reader would: blocks in one session."""

import re

import fresh
import pytest

_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", ["README.md", "docs/export.md"])
def test_python_blocks_run_as_they_stand(page, tmp_path):
    blocks = _BLOCK.findall((fresh.ROOT / page).read_text())
    assert blocks
    fresh.run("\n".join(blocks), cwd=tmp_path)
