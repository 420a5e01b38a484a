# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tables of measured numbers are made from JSON, and say when they are old."""

import json
import pathlib
import subprocess

import pytest

from tools import measured

ROOT = pathlib.Path(__file__).resolve().parents[2]
_GPU = "NVIDIA H200"


def _run(median, date, **more):
    method = {"median_us": median, "quartiles_us": [1, 2], "samples": 3}
    result = {"op": "CapsuleConv", "case": "a", "direction": "forward"}
    result |= {"device": "GPU:0", "dtype": "float32", "floor_us": 50}
    result["methods"] = {
        "tf_capsops": {**method, "kernel": "wgmma"},
        "TF fold": {"median_us": 250.4},
        "TF fold, XLA": {"error": "no"},
    }
    run = {"command": "tf-capsops bench", "commit": "unknown", "date": date}
    run |= {"tf32": True, "cpu": "Intel(R) Xeon(R) Processor (AMX)", "cores": 2}
    return {**run, "gpus": [{"device_name": _GPU}], "results": [result], **more}


@pytest.fixture
def root(tmp_path):
    """A repository with one page, one table and two runs of it."""
    (tmp_path / "docs/measured").mkdir(parents=True)
    (tmp_path / "cuda/capsule_conv").mkdir(parents=True)
    (tmp_path / "README.md").write_text(
        "Before\n<!-- measured: conv -->\nold\n<!-- /measured -->\nAfter\n"
    )
    spec = {"op": "CapsuleConv", "ratios": True, "floor": True}
    spec["columns"] = {"fold": "TF fold", "XLA": "TF fold, XLA"}
    spec["rows"] = [{"label": "small", "case": "a", "direction": "forward"}]
    _write(tmp_path, "tables", {"conv": spec})
    _write(tmp_path, "a_newer", _run(123.4, "2026-02-02"))
    _write(tmp_path, "older", _run(99.0, "2026-01-01"))
    return tmp_path


def _write(root, name, content):
    (root / f"docs/measured/{name}.json").write_text(json.dumps(content))


def _git(root, *arguments):
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
    command = ["git", "-C", str(root), *identity, *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_the_tables_are_those_of_the_measurements(capsys):
    assert measured.main(["--check"]) == 0, capsys.readouterr().out


def test_a_table_shows_the_newest_run_of_each_machine(root):
    assert measured.main([], root) == 0
    text = (root / "README.md").read_text()
    assert "| in us | tf_capsops | fold | XLA | floor | kernel |\n" in text
    assert "| small | **123** | 250 (2.03) |  | 50 | wgmma |\n" in text
    assert "- H200, TF32, unknown, 2026-02-02: `tf-capsops bench`\n" in text
    assert text.startswith("Before\n") and text.endswith("<!-- /measured -->\nAfter\n")


def test_a_table_of_threads_shows_how_our_times_scale(root):
    run = _run(12_000, "2026-03-03", gpus=[])
    (alone,) = run["results"]
    alone |= {"device": "CPU:0", "threads": 1}
    many = {**alone, "threads": 8, "methods": {"tf_capsops": {"median_us": 1500}}}
    _write(root, "threads", {**run, "results": [alone, many]})
    row = {"label": "small", "case": "a", "direction": "forward"}
    spec = {"op": "CapsuleConv", "columns": {}, "rows": [row]}
    _write(root, "tables", {"conv": {**spec, "show": "threads"}})
    assert measured.main([], root) == 0
    text = (root / "README.md").read_text()
    assert "| ms, by threads | 1 | 8 | 1 to 8 |\n" in text
    assert "| small | 12 | 1.5 | 8.0 |\n" in text
    # No other table shows them.
    _write(root, "tables", {"conv": spec})
    assert measured.main([], root) == 0
    assert "| small | **123** |" in (root / "README.md").read_text()


def test_a_table_of_training_steps_shows_what_was_measured(root):
    spec = {"op": "training", "rows": [{"label": "capsnet", "case": "capsnet"}]}
    _write(root, "tables", {"conv": spec})
    step = {"images_per_second": 2e4, "busy_us": 2512, "launches": 81.5}
    methods = {
        "tf_capsops": {"median_us": 6543.2, "images_per_second": 1e4},
        "tf_capsops, XLA, 20 steps": {"median_us": 2800, **step},
        "plain Keras": {"left_out": "a reason"},
    }
    result = {"op": "training", "case": "capsnet", "direction": "step"}
    result |= {"device": "GPU:0", "dtype": "float32", "methods": methods}
    _write(root, "a_newer", _run(0, "2026-02-02", results=[result]))
    measured.main([], root)
    text = (root / "README.md").read_text()
    headings = "|  | ms a step | images a second | GPU busy, ms | launches |\n"
    assert headings in text
    assert "| capsnet: tf_capsops | 6.54 | 10000 |  |  |\n" in text
    best = "| capsnet: tf_capsops, XLA, 20 steps | **2.8** | 20000 | 2.51 | 81.5 |\n"
    assert best in text and "plain Keras" not in text
    source = "- H200, TF32, unknown, 2026-02-02: `tf-capsops bench`\n"
    assert source in text
    names = {"eager": "tf_capsops", "XLA": "tf_capsops, XLA, 20 steps", "Keras": "none"}
    _write(root, "tables", {"conv": {**spec, "show": "methods", "columns": names}})
    measured.main([], root)
    text = (root / "README.md").read_text()
    assert "| ms a step | eager | XLA | Keras |\n" in text and source in text
    assert "| capsnet | 6.54 | **2.8** |  |\n" in text
    spec |= {"show": "methods", "columns": names, "unit": "images a second"}
    _write(root, "tables", {"conv": spec})
    measured.main([], root)
    assert "| capsnet | 10000 | **20000** |  |\n" in (root / "README.md").read_text()


def test_methods_are_compared_by_what_is_better(root, capsys):
    result = {"op": "training", "case": "capsnet", "direction": "step"}
    methods = {"tf_capsops": {"launches": 9}, "PyTorch": {"launches": 70}}
    result |= {"device": "GPU:0", "dtype": "float32", "methods": methods}
    _write(root, "a_newer", _run(0, "2026-02-02", results=[result]))
    spec = {"op": "training", "rows": [{"label": "capsnet", "case": "capsnet"}]}
    spec |= {"show": "methods", "columns": {"ours": "tf_capsops", "rival": "PyTorch"}}
    _write(root, "tables", {"conv": {**spec, "unit": "launches"}})
    assert measured.main([], root) == 0
    assert "| capsnet | **9** | 70 |\n" in (root / "README.md").read_text()
    _write(root, "tables", {"conv": spec})
    assert measured.main([], root) == 1
    assert "training capsnet: no method has ms a step" in capsys.readouterr().err


def test_a_part_of_a_table_that_was_measured_otherwise(root):
    given = {"columns": ["name", "us", "type", "us"], "op": None, "device": "GPU"}
    given["rows"] = [["a", 1, "float32", 2], ["b", 3, "float16", 4]]
    run = _run(0, "2026-01-01", results=[], tables={"all": given})
    _write(root, "given", run)
    part = {"of": "all", "where": {"type": "float16"}, "columns": {"": "name"}}
    _write(root, "tables", {"conv": {"of": "all"}})
    measured.main([], root)
    whole = (root / "README.md").read_text()
    assert "| name | us | type | us |\n" in whole and "| a | 1 | float32 | 2 |" in whole
    _write(root, "tables", {"conv": part})
    measured.main([], root)
    assert "|  |\n| -- |\n| b |\n\n- H200" in (root / "README.md").read_text()
    part["where"] = {"type": ["float16", "float32"], "name": ["c", "a"]}
    _write(root, "tables", {"conv": part})
    measured.main([], root)
    assert "|  |\n| -- |\n| a |\n\n- H200" in (root / "README.md").read_text()


def _of_type(dtype, median):
    methods = {"tf_capsops": {"median_us": 2 * median}, "rival": {"median_us": 1}}
    methods["tf_capsops, XLA"] = {"median_us": median}
    result = {"op": "layers", "case": "Length", "direction": "forward"}
    return {**result, "device": "GPU:0", "dtype": dtype, "methods": methods}


def test_a_table_compares_types(root):
    """Of every case that was measured, where the table names none."""
    spec = {"op": "layers", "show": "dtypes", "where": {"device": "GPU"}}
    _write(root, "tables", {"conv": spec})
    alone = {**_of_type("float32", 9), "case": "in one type"}
    found = [_of_type("float32", 40), _of_type("bfloat16", 30), alone]
    _write(root, "a_newer", _run(0, "2026-02-02", results=found))
    measured.main([], root)
    text = (root / "README.md").read_text()
    assert "| in us | float32 | bfloat16 | float16 |\n" in text
    assert "| Length, forward | 40 | 30 (0.75) |  |\n" in text
    assert "in one type" not in text
    assert text.count("- H200, TF32, unknown, 2026-02-02: `tf-capsops bench`\n") == 1
    row = {"label": "a", "case": "Length", "method": "tf_capsops"}
    _write(root, "tables", {"conv": {**spec, "rows": [row]}})
    measured.main([], root)
    assert "| a | 80 | 60 (0.75) |  |\n" in (root / "README.md").read_text()
    assert measured.main(["--stale"], root) == 0


def test_a_table_compares_layers_with_codes(root, capsys):
    row = {"label": "`DigitCaps`", "case": "DigitCaps, batch 1", "direction": "forward"}
    spec = {"op": "layers", "show": "codes", "batches": [1, 32], "rows": [row]}
    _write(root, "tables", {"conv": spec})
    results = [
        {
            **_of_type("float32", 1),
            "case": f"DigitCaps, batch {batch}",
            "methods": {
                "tf_capsops": {"median_us": 1000 * batch},
                "tf_capsops, codes": {"median_us": 1250 * batch},
            },
        }
        for batch in (1, 32)
    ]
    _write(root, "a_newer", _run(0, "2026-02-02", results=results))
    measured.main([], root)
    text = (root / "README.md").read_text()
    assert (
        "| in ms | batch 1 | with codes | ratio | batch 32 | with codes | ratio |"
        in text
    )
    assert "| `DigitCaps` | 1 | 1.25 | 1.25 | 32 | 40 | 1.25 |\n" in text
    _write(root, "a_newer", _run(0, "2026-02-02", results=results[:1]))
    assert measured.main([], root) == 1
    assert "no run of" in (error := capsys.readouterr().err)
    assert "DigitCaps, batch 32" in error
    # Methods may come from different runs.
    with_xla = {"tf_capsops, XLA": {"median_us": 500}}
    with_xla["tf_capsops, codes, XLA"] = {"median_us": 600}
    other = [{**results[0], "methods": with_xla}]
    _write(root, "a_newest", _run(0, "2026-02-03", results=other))
    methods = {"": "tf_capsops", ", XLA": "tf_capsops, XLA"}
    _write(root, "tables", {"conv": {**spec, "batches": [1], "methods": methods}})
    measured.main([], root)
    text = (root / "README.md").read_text()
    assert (
        "| batch 1 | with codes | ratio | batch 1, XLA | with codes | ratio |" in text
    )
    assert "| `DigitCaps` | 1 | 1.25 | 1.25 | 0.5 | 0.6 | 1.20 |\n" in text


def test_a_table_of_first_steps_has_their_parts(root, capsys):
    rows = [{"label": "capsnet", "case": "capsnet"}]
    spec = {"op": "training", "show": "start-up", "rows": rows}
    _write(root, "tables", {"conv": spec})
    parts = {"import_s": 4.5, "build_s": 0.5, "first_s": 3}
    methods = {"tf_capsops": {"median_us": 1, **parts}, "PyTorch": {"median_us": 1}}
    result = {"op": "training", "case": "capsnet", "direction": "step"}
    result |= {"device": "GPU:0", "dtype": "float32", "methods": methods}
    _write(root, "a_newer", _run(0, "2026-02-02", results=[result]))
    measured.main([], root)
    text = (root / "README.md").read_text()
    headings = "|  | seconds | Python and imports | building | first step |\n"
    assert headings in text
    assert "| capsnet: tf_capsops | **8** | 4.5 | 0.5 | 3 |\n" in text
    assert "PyTorch" not in text
    del methods["tf_capsops"]
    _write(root, "a_newer", _run(0, "2026-02-02", results=[result]))
    assert measured.main([], root) == 1
    assert "no run in docs/measured has" in capsys.readouterr().err


def test_another_machine_is_another_row(root):
    _write(root, "b200", _run(80, "2026-01-01", gpus=[{"device_name": "NVIDIA B200"}]))
    measured.main([], root)
    text = (root / "README.md").read_text()
    assert "| B200: small | **80** |" in text and "| H200: small | **123** |" in text


def test_a_changed_number_is_seen(root, capsys):
    measured.main([], root)
    assert measured.main(["--check"], root) == 0
    page = root / "README.md"
    page.write_text(page.read_text().replace("123", "12"))
    assert measured.main(["--check"], root) == 1
    assert "README.md: a table is not that of docs/measured" in capsys.readouterr().out


def test_an_unknown_table_is_one_line(root, capsys):
    (root / "README.md").write_text("<!-- measured: nothing -->\n<!-- /measured -->\n")
    assert measured.main([], root) == 1
    expected = "measured.py: docs/measured has no table 'nothing'\n"
    assert capsys.readouterr().err == expected


def test_rows_older_than_their_kernel_are_listed(root, capsys):
    kernel = root / "cuda/capsule_conv/launch.cu.cc"
    _git(root, "init", "-q")
    for text in ("first", "second"):
        kernel.write_text(text)
        _git(root, "add", ".")
        _git(root, "commit", "-qm", f"The {text} kernel")
    expected = {
        "HEAD": "no row is older than its kernel",
        "HEAD~": "conv: small (H200): measured at HEAD~, kernel changed: ",
        "unknown": "conv: small (H200): commit unknown is not in this repository",
    }
    for commit, line in expected.items():
        _write(root, "a_newer", _run(123, "2026-02-02", commit=commit))
        assert measured.main(["--stale"], root) == 0
        assert capsys.readouterr().out.startswith(line)


def test_a_report_is_brought_in_with_its_commit(root, capsys):
    report = root / "bench.json"
    report.write_text(json.dumps(_run(77.7, "2026-03-03", library={"a": 1})))
    assert measured.main(["--add", str(report), "new"], root) == 1
    assert "name its --commit" in capsys.readouterr().err
    add = ["--add", str(report), "new", "--commit", "abc", "--processor", "Zen"]
    assert measured.main(add, root) == 0
    assert "| small | **77.7** |" in (root / "README.md").read_text()
    added = json.loads((root / "docs/measured/new.json").read_text())
    assert (added["commit"], added["cpu"], "library" in added) == ("abc", "Zen", False)
    assert "samples" not in added["results"][0]["methods"]["tf_capsops"]


def test_sources_of_an_op_are_where_they_are_looked_for():
    ops = ("CapsuleConv", "CapsuleRouting", "CapsulePrediction", "HighOrderConv")
    for op in (*ops, "training", "layers"):
        for device in ("CPU:0", "GPU:0"):
            for pattern in measured.sources(op, device):
                assert list(ROOT.glob(pattern)), pattern
