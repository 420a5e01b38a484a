# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""`tf-capsops bench --against` marks what has become slower, and nothing else."""

import copy
import json

import pytest
from rich.console import Console

from tf_capsops import bench
from tf_capsops.bench import against
from tf_capsops.cli.errors import CommandError


def _method(median):
    return {"median_us": median, "quartiles_us": [0.98 * median, 1.02 * median]}


def _report(ours, *rivals):
    result = dict.fromkeys(("op", "case", "direction", "device", "dtype"), "x")
    methods = {"tf_capsops": _method(ours)}
    methods |= {f"TF {i}": _method(rival) for i, rival in enumerate(rivals)}
    return {"cores": 2, "results": [{**result, "methods": methods}]}


def _printed(earlier, made):
    console = Console(width=200, record=True)
    console.print(against.table(earlier, made))
    return console.export_text()


@pytest.mark.parametrize(
    "now, mark",
    [
        (_report(100, 300, 200), ""),
        (_report(103, 300, 200), ""),  # within the spread
        (_report(110, 300, 200), "slower"),
        (_report(90, 300, 200), "faster"),
        (_report(200, 600, 400), ""),  # the machine took twice as long
        (_report(100, 150, 100), "slower"),  # it took half as long, and we did not
    ],
)
def test_marks(now, mark):
    printed = _printed(_report(100, 300, 200), now)
    for each in ("slower", "faster"):
        assert (each in printed) == (each == mark)


def test_says_what_is_not_the_same():
    now = _report(100, 300)
    now["cores"] = 4
    other = copy.deepcopy(now["results"][0])
    other["case"] = "y"
    now["results"].append(other)
    now["results"][0]["methods"]["TF 0"] = {"error": "no memory"}
    assert "failed" not in _printed(_report(100, 300), now)
    now["results"][0]["methods"]["tf_capsops"] = {"error": "no memory"}
    printed = _printed(_report(100, 300), now)
    assert "failed" in printed
    assert "1 results have nothing to compare with" in printed
    assert "cores: 2 before, 4 now" in printed


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"results": [{"op": "x"}]}'])
def test_refuses_other_files(text, tmp_path):
    path = tmp_path / "bench.json"
    path.write_text(text)
    with pytest.raises(CommandError, match="no report of tf-capsops bench"):
        bench.main(["--suite", "smoke", "--against", str(path)])


def test_command(tmp_path, capsys):
    arguments = ["--suite", "smoke", "--device", "CPU", "--repeat", "2"]
    arguments += ["--op", "CapsulePrediction", "--output", str(tmp_path)]
    assert bench.main(arguments) == 0
    again = [*arguments, "--against", str(tmp_path / "bench.json")]
    assert bench.main(again) == 0
    assert "Against commit" in capsys.readouterr().out
    assert json.loads((tmp_path / "bench.json").read_text())["results"]
