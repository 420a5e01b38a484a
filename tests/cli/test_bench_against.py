# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""`tf-capsops bench --against` marks what has become slower, and nothing else."""

import copy
import json

import pytest
from ceilings import CEILINGS
from rich.console import Console

from tf_capsops.__main__ import main
from tf_capsops.bench import against, command, measure


def _method(median, spread=0.02, samples=5):
    quartiles = [(1 - spread) * median, (1 + spread) * median]
    return {"median_us": median, "quartiles_us": quartiles, "samples": samples}


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


@pytest.mark.parametrize(
    "before, now, rivals, mark",
    [
        (_method(100), _method(106), [1.0], "slower"),
        (_method(100), _method(94), [1.0], "faster"),
        (_method(100), _method(106), [], "slower"),
        # Quartiles are apart, and the difference is small.
        (_method(100, 0.01), _method(104, 0.01), [1.0], ""),
        # The difference is large, and so is the spread of either run.
        (_method(100, 0.2), _method(130), [1.0], "slower"),
        (_method(100, 0.3), _method(130), [1.0], ""),
        (_method(100), _method(130, 0.22), [1.0], ""),
        # A rival changed by as much, to either side.
        (_method(100), _method(120), [1.0, 1.0, 1.25], ""),
        (_method(100), _method(120), [1.0, 1.0, 0.8], ""),
        (_method(100), _method(120), [1.0, 1.0, 1.15], "slower"),
        (_method(100), _method(80), [1.0, 1.0, 1.15], "faster"),
        # Of few samples the quartiles are apart by chance.
        (_method(100, samples=4), _method(200), [1.0], "?"),
        (_method(100), _method(50, samples=3), [1.0], "?"),
        (_method(100, samples=3), _method(100, samples=3), [], "?"),
    ],
)
def test_the_spread_of_both_runs_decides(before, now, rivals, mark):
    assert against.mark(before, now, rivals) == mark


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


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"results": [{"op": "x"}]}', "[" * 100_000]
)
def test_refuses_other_files(text, tmp_path, capsys):
    path = tmp_path / "bench.json"
    path.write_text(text)
    assert main(["bench", "--suite", "smoke", "--against", str(path)]) == 2
    said = f"tf-capsops bench: error: {path} is no report of tf-capsops bench\n"
    assert capsys.readouterr().err == said


@pytest.mark.parametrize(
    "name, error", [("no.json", "No such file or directory"), ("", "Is a directory")]
)
def test_refuses_what_is_no_file(name, error, tmp_path, capsys):
    path = tmp_path / name
    assert main(["bench", "--suite", "smoke", "--against", str(path)]) == 2
    assert f"error: cannot read {path}: {error}" in capsys.readouterr().err


def test_command(tmp_path, undrawn, capsys, monkeypatch):
    monkeypatch.setitem(measure._SAMPLE_SECONDS, "CPU", 0.01)
    monkeypatch.setattr(command, "measure_ceilings", lambda *_: CEILINGS)
    monkeypatch.setattr(measure, "compiled", lambda step: step)  # not with XLA
    arguments = ["--suite", "smoke", "--device", "CPU", "--repeat", "2"]
    arguments += ["--op", "CapsulePrediction", "--output", str(tmp_path)]
    assert main(["bench", *arguments]) == 0
    again = [*arguments, "--against", str(tmp_path / "bench.json")]
    assert main(["bench", *again]) == 0
    table = capsys.readouterr().out.partition("Against commit")[2]
    assert table.count("nothing can be said with fewer than 5 samples") == 1
    assert "slower" not in table and "faster" not in table
    assert json.loads((tmp_path / "bench.json").read_text())["results"]
