# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Files, tables and charts that the benchmark of other papers writes."""

import json
import pathlib

import pytest

from benchmarks.papers import __main__ as papers
from benchmarks.papers import chen, compile_times, counts, report, studies, vaidya


@pytest.mark.parametrize(
    "arguments, text",
    [
        (["--paper", "chen", "--device", "CPU"], "--paper chen is measured on a GPU, "),
        (["--paper", "hinton"], "invalid choice: 'hinton'"),
        (
            ["--paper", "vaidya", "--part", "module", "--device", "CPU"],
            "--part module is no part of --paper vaidya",
        ),
        (["--from", "missing.json"], "--from missing.json: "),
        (["--from", "pyproject.toml"], "--from pyproject.toml: is no papers.json"),
        (["--repeat", "1"], "--repeat: must be an integer >= 2, got '1'"),
    ],
)
def test_papers_refuse(arguments, text, capsys):
    with pytest.raises(SystemExit) as caught:
        papers.main(arguments)
    assert caught.value.code == 2
    assert text in capsys.readouterr().err


def test_seconds_of_a_compiler():
    assert compile_times._seconds(["true"]) >= 0
    assert compile_times._seconds(["false"]) is None
    assert compile_times._together([["true"], ["true"]]) >= 0
    assert compile_times._together([["true"], ["false"]]) is None


def _vaidya_results():
    run = {"command": "any", "date": "2026-11-27"}
    for channels in counts.CHANNELS:
        row = {"ms": 0.5, "stores": 100, "loads": 160}
        rows = {name: row for name in studies.VAIDYA}
        rows |= {"B": {"ms": 2.0, "stores": 400, "loads": 800}}
        rows |= {"tf_capsops": {"ms": 0.25}, "TF fold": {"error": "no memory"}}
        rows |= {"TF fold, XLA": {"ms": 0.4, "compile_s": 1.5}}
        result = {"part": "table_2", "in_channels": channels, "methods": rows}
        yield {**result, "device": "GPU:0", "run": run}
    cells = {"kernel": {"ms": 0.5}, "tf_capsops": {"ms": 0.25}, "conv2d": {"ms": 1.0}}
    rows = {order: cells for order in vaidya.LAYOUTS}
    result = {"part": "layouts", "in_channels": 3, "rows": rows}
    yield {**result, "device": "GPU:0", "run": run}
    seconds = {"B": 2.25, "tf_capsops": 100.0}
    yield {"part": "compile", "seconds": seconds, "device": "CPU:0", "run": run}


def test_tables_of_vaidya_show_both_sides(tmp_path):
    results = list(_vaidya_results())
    tables = dict(vaidya.tables(results))
    rows = {row[0]: row[1:] for row in tables["papers_vaidya"]["rows"]}
    assert rows["`I3`"] == ["0.500 (0.25)", "0.500 (0.25)", "4.9513 (0.20)"]
    assert rows["fold"] == ["cannot run", "cannot run", ""]
    rows = {row[0]: row[1:] for row in tables["papers_vaidya_counts"]["rows"]}
    assert rows["`I1`"] == ["100", "98,406,400", "160", "488,470,968"]
    rows = {row[0]: row[1:] for row in tables["papers_vaidya_compile"]["rows"]}
    assert rows["CUDA, GTX 1080"] == ["48 h", "1.9"]
    assert rows["`B`, nvcc"] == ["2.2 s", "2.000"]
    assert rows["fold, XLA, GPU"] == ["1.5 s", "0.400"]
    assert {run["device"] for run in tables["papers_vaidya_compile"]["runs"]} == {
        *("CPU", "GPU")
    }
    (first, *_) = tables["papers_vaidya_layouts"]["rows"]
    assert first[0].startswith("y, x, channel, row, column (the")
    assert first[1:] == ["**0.500**", "**0.250**", "**1.000**", "", "", ""]
    *_, last = tables["papers_vaidya_layouts"]["rows"]
    assert last[1:4] == first[1:4]  # equal numbers are bold alike
    vaidya.draw(results, tmp_path / "chart.png")
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")


def test_tables_of_chen_show_both_sides():
    row = {"total_ms": 3.5, "forward_ms": 1.25, "backward_ms": 2.25}
    rows = {"official": row, "tf_capsops": row | {"total_ms": 1.0}}
    result = {"network": "as published", "methods": rows, "device": "GPU:0", "run": {}}
    tables = dict(chen.tables([result]))
    official, ours = tables["papers_chen"]["rows"]
    assert official[1:] == ["3.500", "**1.250**", "**2.250**", "510", "170", "340"]
    assert ours[:4] == ["CapsuleConv", "**1.000**", "**1.250**", "**2.250**"]
    other = tables["papers_chen_4x4"]
    assert not other["runs"] and "TITAN X" not in other["columns"]


def test_reports_are_merged(tmp_path):
    """Results of a later file replace those of the same part and device."""
    paths = []
    for number, (part, device) in enumerate(
        [
            ("image", "GPU:0"),
            ("image", "CPU:0"),
            ("kernel", "GPU:0"),
            ("image", "GPU:0"),
        ]
    ):
        result = {"part": part, "device": device, "run": {"date": f"2026-01-0{number}"}}
        paths.append(tmp_path / f"{number}.json")
        report.write({"papers": {"khandwawala": [result]}}, paths[-1])
    merged = report.merge(paths)
    assert merged["date"] == "2026-01-03"
    found = [
        (r["part"], r["device"], r["run"]["date"][-1])
        for r in merged["papers"]["khandwawala"]
    ]
    assert found == [
        *(("image", "GPU:0", "3"), ("image", "CPU:0", "1"), ("kernel", "GPU:0", "2"))
    ]


def test_results_from_outside_a_checkout_are_named(tmp_path, capsys):
    run = {"date": "2026-01-01", "cpu": "unknown", "cores": 16, "gpus": []}
    results = [
        {"part": part, "device": "CPU:0", "run": {**run, "commit": commit}}
        for part, commit in (("compile", "unknown"), ("table_2", "abc"))
    ]
    results[0]["seconds"] = {"B": 1.5}
    methods = {"tf_capsops": {"ms": 1.0}, "TF fold, XLA": {"ms": 1.0}}
    results[1] |= {"in_channels": 3, "methods": methods}
    path = tmp_path / "one.json"
    report.write({"papers": {"vaidya": results}}, path)
    arguments = ["--from", str(path), "--output", str(tmp_path)]
    with pytest.raises(SystemExit):
        papers.main(arguments)
    assert "vaidya was not measured in a checkout" in capsys.readouterr().err
    assert papers.main([*arguments, "--commit", "def", "--processor", "Any 9"]) == 0
    made = json.loads((tmp_path / "papers.json").read_text())
    runs = made["tables"]["papers_vaidya_compile"]["runs"]
    named = [(run["commit"], run["cpu"]) for run in runs]
    assert named == [("def", "Any 9"), ("abc", "unknown")]


@pytest.mark.parametrize("paper", papers.PAPERS, ids=report.name_of)
def test_published_numbers_are_there_without_a_run(paper):
    for name, table in paper.tables([]):
        assert name.startswith(f"papers_{report.name_of(paper)}")
        assert not table["runs"]
        assert all(len(row) == len(table["columns"]) for row in table["rows"])


def test_pages_show_what_the_benchmark_makes_of_its_results():
    path = pathlib.Path(report.__file__).parents[2] / "docs/measured/papers.json"
    made = report.merge([path])
    assert report.assemble(made, papers.PAPERS) == json.loads(path.read_text())
