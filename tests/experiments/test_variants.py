# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""`tf-capsops report`: runs that changed options of their recipe, and files."""

import json
import pathlib
import shutil

import numpy as np
import pytest
from reports import CAPSNET, EFFICIENT, QUANTIZED, quickly, results_of

from tf_capsops import data
from tf_capsops.__main__ import main
from tf_capsops.cli import coded_networks, quantization, train
from tf_capsops.experiments import recipes, results, variants


def _copy_run(name, copy, settings, result):
    """Copies a run as if it had been trained with other settings."""
    shutil.copytree(f"runs/{name}", f"runs/{copy}")
    for file, changes in (("config.json", settings), ("result.json", result)):
        path = pathlib.Path("runs", copy, file)
        content = json.loads(path.read_text())
        assert changes.keys() <= content.keys()
        path.write_text(json.dumps({**content, **changes}))


def test_variants_have_a_table_of_their_own(work, capsys):
    one = ["train", "--recipe", EFFICIENT, "--seed", "1", "--validation", "0.2"]
    other = ["--batch-size", "64", "--distortion", "0.5", "20", "0.1"]
    assert main([*one, *other, "--output", "runs/other-1"]) == 0
    assert main([*one, "--output", "runs/plain-1"]) == 0
    _copy_run("other-1", "other-2", {"seed": 2}, {"wrong": 3})
    _copy_run("plain-1", "tenth-1", {"validation": 0.1}, {"images": 15, "wrong": 2})
    assert main(["report", CAPSNET, "--read-only"]) == 0
    assert results_of()["variants"] == []
    before = results_of()["recipes"]
    for _ in range(2):  # the second time none is added again
        assert main(["report", EFFICIENT, "--read-only"]) == 0
    content = results_of()
    assert content["recipes"] == before
    made = content["tables"]["results_variants"]
    rows = {tuple(row[1:3]): dict(zip(made["columns"], row)) for row in made["rows"]}
    # Those that are as the recipe otherwise stand first.
    changed = "batch size 64; distortion degrees 20"
    shares = [("", "30 held out"), ("", "15 held out"), (changed, "30 held out")]
    assert list(rows) == shares
    wrong = []
    for seed in "12":
        result = json.loads((work / f"runs/other-{seed}/result.json").read_text())
        wrong.append(result["wrong"] / 30)
    ours = f"{np.mean(wrong):.2%} ± {np.std(wrong, ddof=1):.2%} (2)"
    row = rows[changed, "30 held out"]
    assert row["error, mean ± deviation (seeds)"] == ours
    assert row["each seed's"] == f"1: {wrong[0]:.2%}, 2: {wrong[1]:.2%}"
    assert f"{ours}  30 held out  {changed}" in capsys.readouterr().out


def _interrupt(*_):
    raise KeyboardInterrupt


@pytest.mark.ci
def test_quantizing_a_recipes_run_is_its_recipe_or_a_variant(work, monkeypatch):
    trained = f"runs/{CAPSNET}-seed-1"
    _copy_run(f"{CAPSNET}-seed-1", "held", {"validation": 0.2}, {"images": 30})
    shutil.rmtree(f"runs/{QUANTIZED}-seed-1")
    digits = data.load("digits")
    names = ("x_train", "y_train", "x_test", "y_test")
    np.savez("digits.npz", **{name: getattr(digits, name) for name in names})
    found, one_step, ended = [], ["--steps", "1"], 0
    for name, run, options in (
        ("same", trained, ["--seed", "1"]),
        ("steps", trained, ["--seed", "1", *one_step]),
        ("held", "runs/held", ["--seed", "1"]),
        # From here on, Ctrl-C comes as soon as `quantize` has written what it does.
        ("named", trained, ["--seed", "1", "--data", "digits"]),
        # The recipe has one seed for both, its own data, and five bits. Other steps
        # would be a variant of it.
        ("seed", trained, ["--seed", "2", *one_step]),
        ("data", trained, ["--seed", "1", "--data", "digits.npz", *one_step]),
        ("bits", trained, ["--seed", "1", "--bits", "6", *one_step]),
        ("rounded", trained, ["--seed", "1", "--activation-bits", "8"]),
        ("channels", trained, ["--seed", "1", "--per-channel"]),
        ("file", "runs/stopped/checkpoint.keras", ["--seed", "1", *one_step]),
        ("stopped", "runs/stopped", ["--seed", "1", *one_step]),
    ):
        if name == "file":
            shutil.copytree(trained, "runs/stopped")
            shutil.copy("runs/stopped/model.keras", run)
        if name == "stopped":
            (work / "runs" / "stopped" / "result.json").unlink()
        if name == "named":
            monkeypatch.setattr(coded_networks, "rehearsed", lambda *_: (None, 0))
            monkeypatch.setattr(quantization.Accuracy, "of", _interrupt)
            ended = 130
        quantized = f"runs/{name}-quantized"
        assert main(["quantize", run, *options, "--output", quantized]) == ended
        config = json.loads((work / quantized / "config.json").read_text())
        found.append((config["recipe"], config["changed"]))
    assert found == [
        (QUANTIZED, []),
        (QUANTIZED, ["steps", "epochs"]),
        (QUANTIZED, ["trained"]),
        (QUANTIZED, []),
        *[(None, None)] * 7,
    ]
    assert main(["report", QUANTIZED, "--read-only"]) == 0
    assert results.finished(work, QUANTIZED, 1).name == "same-quantized"
    content = results_of()
    rows = content["tables"]["results_variants"]["rows"]
    assert [row[:3] for row in rows] == [
        [QUANTIZED, "", "30 held out"],
        [QUANTIZED, "steps 1; epochs 1", "test"],
    ]
    # They are the same runs with a setting that is None as without it.
    first, second = (run["settings"]["trained"] for run in content["variants"])
    first["mixed_precision"] = None
    second.pop("mixed_precision", None)
    pathlib.Path("runs/results.json").write_text(json.dumps(content))
    assert main(["report", QUANTIZED, "--read-only"]) == 0
    assert results_of()["tables"]["results_variants"]["rows"] == rows


@pytest.mark.parametrize("file", ["result.json", "history.json"])
@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"machine": {}}'])
def test_a_run_that_cannot_be_read_is_told(work, file, text, capsys):
    run = work / "runs" / "broken"
    shutil.copytree(work / "runs" / f"{EFFICIENT}-seed-1", run)
    config = json.loads((run / "config.json").read_text())
    (run / file).write_text(text)
    told = f"runs/broken/{file} is not JSON" if text == "{" else "runs/broken does not"
    # A variant is left out.
    (run / "config.json").write_text(json.dumps({**config, "epochs": 9}))
    assert main(["report", EFFICIENT, "--read-only"]) == 0
    assert f"left out: {told}" in capsys.readouterr().err
    assert results_of()["variants"] == []
    # A run of the recipe itself ends the report.
    (run / "config.json").write_text(json.dumps(config))
    assert main(["report", EFFICIENT, "--read-only", "--seeds", "1"]) == 2
    assert told in capsys.readouterr().err


def test_runs_outlast_a_recipe_that_changes_and_changes_back(work, monkeypatch):
    before = results_of()["recipes"]
    shutil.rmtree("runs/" + EFFICIENT + "-seed-1")
    quickly(monkeypatch, epochs=2)
    assert main(["report", CAPSNET, "--read-only"]) == 0
    content = results_of()
    assert content["recipes"] == {}
    table = content["tables"]["results_variants"]["rows"]
    assert table[0][:3] == [EFFICIENT, "epochs 1", "test"]
    quickly(monkeypatch)
    assert main(["report", CAPSNET, "--read-only"]) == 0
    content = results_of()
    assert content["variants"] == []
    for name, entry in before.items():
        assert content["recipes"][name]["runs"] == entry["runs"]


@pytest.mark.parametrize(
    ("name", "options", "changed"),
    [
        ("em-mnist", {"routing": "vb", "margin": None}, "routing vb"),
        ("em-digits", {"routing_gradient": "last"}, "routing gradient last"),
        ("capsnet-mnist", {"network": {"capsule_dim": 8}}, "network capsule dim 8"),
        ("inq5-mnist", {"steps": [0.5, 1.0]}, "steps 0.5 1"),
        ("em-mnist", {"epochs": None}, "epochs default"),
    ],
)
def test_what_a_variant_changed_is_named(name, options, changed):
    own = json.loads(json.dumps(train.settings_of_recipe(name)))
    for key, value in options.items():
        own[key] = {**own[key], **value} if isinstance(value, dict) else value
    run = {"recipe": name, "settings": own, "seed": 1, "part": "test", "wrong": 1}
    made = variants.table([{**run, "images": 10, "machine": "A"}])
    assert made["rows"] == [[name, changed, "test", "10.00% (1)", "1: 10.00%", "A"]]


@pytest.mark.parametrize(
    "content",
    [
        [],
        {"recipes": {EFFICIENT: {"runs": []}}},
        {"recipes": {}, "variants": [{"recipe": EFFICIENT, "settings": {}}]},
        {"recipes": {}, "variants": 1},
        None,
    ],
)
def test_a_file_of_something_else_is_refused(work, content, capsys):
    text = json.dumps(content) if content is not None else "{"
    pathlib.Path("runs/results.json").write_text(text)
    assert main(["report", EFFICIENT, "--read-only"]) == 2
    told = "runs/results.json does not hold results of recipes\n"
    assert capsys.readouterr().err.endswith(told)


def test_a_run_of_an_older_recipe_is_none_of_it(work, monkeypatch):
    quickly(monkeypatch, epochs=2)
    assert main(["report", EFFICIENT, "--read-only"]) == 0
    content = results_of()
    assert content["recipes"] == {}
    rows = content["tables"]["results_variants"]["rows"]
    assert [row[:3] for row in rows if row[0] == EFFICIENT] == [
        [EFFICIENT, "epochs 1", "test"]
    ]
    assert [row[0] for row in rows] == [EFFICIENT, CAPSNET, QUANTIZED]
    # A recipe that is gone leaves nothing.
    monkeypatch.delitem(recipes.RECIPES, EFFICIENT)
    assert main(["report", CAPSNET, "--read-only"]) == 0
    rows = results_of()["tables"]["results_variants"]["rows"]
    assert [row[0] for row in rows] == [CAPSNET, QUANTIZED]
