# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""What networks cost at several sizes is measured, and becomes a table."""

import json

from tools import measured, network_sizes


def test_a_network_is_measured_and_shown(tmp_path):
    cost = network_sizes.measure("convnet", None, 8, 2)
    assert cost["preset"] == "small" and cost["parameters"] == 27_946
    assert 0 < cost["seconds"] < 60 and cost["peak_bytes"] > 1e8
    found = [("convnet", 8, {**cost, "seconds": 0.0123, "peak_bytes": 1.2e9})]
    content = network_sizes.report(found, "tools/network_sizes.py mine")
    (name,) = content["tables"]
    assert name in ("which-network-cpu", "which-network-gpu")
    (tmp_path / "docs/measured").mkdir(parents=True)
    for file, text in (("mine", content), ("tables", {})):
        (tmp_path / f"docs/measured/{file}.json").write_text(json.dumps(text))
    table = measured.make(name, tmp_path)
    assert table.startswith(
        "|  | pixels | preset | parameters | ms a step | peak MB |\n"
    )
    assert "| convnet | 8 | small | 27,946 | 12 | 1,200 |\n" in table
    assert table.endswith("`tools/network_sizes.py mine`\n")
