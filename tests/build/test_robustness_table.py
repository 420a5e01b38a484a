# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""What attacks come to becomes two tables."""

import json

from tools import robustness

_ATTACK = {"method": "pgd", "loss": "own", "from": None, "images": 8}
_ATTACK |= {"without_gradient": 2, "epsilon": [0.0, 0.1], "accuracy": [1.0, 0.125]}
_FOUND = {"area": 0.75, "undetected": 0.5, "found": [], "false_alarms": []}


def test_attacks_are_rows(tmp_path):
    several = {
        "one/own/attack-pgd.json": _ATTACK,
        "one/own/attack-pgd-from-other.json": {
            **_ATTACK,
            "loss": "difference",
            "from": "runs/other",
            "fooled": [0, 7],
            "detection": [None, _FOUND],
        },
        "two/attack-fgsm.json": {**_ATTACK, "method": "fgsm"},
    }
    for name, content in several.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(json.dumps(content))
    made = robustness.tables(robustness.read(tmp_path))
    accuracy, detection = made["robustness"], made["robustness_detection"]
    assert accuracy["columns"] == ["network", "attack", "no gradient", "0", "0.1"]
    assert accuracy["rows"] == [
        ["one", "pgd, difference, from other", "25%", "100.0%", "12.5%"],
        ["one", "pgd", "25%", "100.0%", "12.5%"],
        ["two", "fgsm", "25%", "100.0%", "12.5%"],
    ]
    assert detection["rows"] == [
        ["one", "pgd, difference, from other", "0.1", "7", "0.750", "50.0%"]
    ]
