# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Makes docs/measured/robustness.json of what `tf-capsops attack` has written.

usage: tools/robustness.py FOLDER

The folder has one for each network, with the `--output` of attacks on it.
"""

import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # as a script, it has this folder there alone

from tf_capsops.machine import machine  # noqa: E402

_SHOWN = {"op": None, "device": "CPU", "right": True}


def tables(results):
    """Returns tables of accuracies and of detection.

    Args:
      results: what `tf-capsops attack` writes, in a list by the network's name; all of
        the same epsilons.
    """
    found = [(name, each) for name, several in results.items() for each in several]
    epsilons = [f"{each:g}" for each in found[0][1]["epsilon"]]
    accuracy = [
        [name, _attack(each), f"{each['without_gradient'] / each['images']:.0%}"]
        + [f"{value:.1%}" for value in each["accuracy"]]
        for name, each in found
    ]
    detection = [
        [name, _attack(each), f"{epsilon:g}", f"{fooled:,}", *_detected(roc)]
        for name, each in found
        for epsilon, fooled, roc in zip(
            each["epsilon"], each.get("fooled", []), each.get("detection", [])
        )
        if roc
    ]
    first = ["network", "attack"]
    return {
        "robustness": {
            **_SHOWN,
            "columns": [*first, "no gradient", *epsilons],
            "rows": accuracy,
        },
        "robustness_detection": {
            **_SHOWN,
            "source": False,
            "columns": [*first, "epsilon", "fooled", "ROC area", "undetected"],
            "rows": detection,
        },
    }


def _detected(roc):
    return f"{roc['area']:.3f}", f"{roc['undetected']:.1%}"


def _attack(result):
    """Names an attack: its method, its loss, and what it is made against."""
    parts = [result["method"]]
    if result["loss"] != "own":
        parts.append(result["loss"])
    if result["from"]:
        parts.append(f"from {pathlib.Path(result['from']).name}")
    return ", ".join(parts)


def read(folder):
    """Returns the results in a folder, as `tables` takes them."""
    results = {}
    for path in sorted(folder.glob("*/**/attack-*.json")):
        name = path.relative_to(folder).parts[0]
        results.setdefault(name, []).append(json.loads(path.read_text()))
    return results


def main(folder):
    content = {"command": "tf-capsops attack", **machine()}
    content = {key: value for key, value in content.items() if key != "library"}
    path = ROOT / "docs/measured/robustness.json"
    content["tables"] = tables(read(pathlib.Path(folder)))
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
