# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""`tf-capsops report`: trains what is missing, reads the rest, releases networks."""

import dataclasses
import json
import pathlib
import shutil
import subprocess
import sys

import fresh
import keras
import matplotlib.image
import numpy as np
import pytest
import tensorflow as tf

from tf_capsops import data, models
from tf_capsops.__main__ import main
from tf_capsops.cli import evaluate, recipes, results, settings, variants

_EFFICIENT, _CAPSNET, _QUANTIZED = (
    "efficient_capsnet-digits",
    "capsnet-digits",
    "inq5-digits",
)


_SMALL = {
    _EFFICIENT: {"filters": (8, 8, 16)},
    _CAPSNET: {"filters": 8, "primary_channels": 2, "decoder_units": (16,)},
    _QUANTIZED: {},
}


def _quickly(monkeypatch, epochs=1):
    """Leaves three recipes, of small networks and so many epochs."""
    quick = {}
    for name, network in _SMALL.items():
        changes = {"epochs": epochs, "network": network}
        quick[name] = dataclasses.replace(recipes.RECIPES[name], changes=changes)
    monkeypatch.setattr(recipes, "RECIPES", quick)
    # It would last until the process ends, and keep other tests from XLA.
    monkeypatch.setattr(tf.config.experimental, "enable_op_determinism", lambda: None)


def _here(started):
    """Returns what runs commands in this process instead of one of their own."""

    def call(command, env):
        assert command[:4] == [sys.executable, "-m", "tf_capsops", "train"]
        assert pathlib.Path(env["PYTHONPATH"].split(":")[0], "tf_capsops").is_dir()
        started.append(command[4:])
        return main(command[3:])

    return call


@pytest.fixture(scope="module")
def reported(tmp_path_factory):
    """A folder with runs, results and a release; and the commands that were started."""
    folder, started = tmp_path_factory.mktemp("reported"), []
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        _quickly(patched)
        patched.setattr(subprocess, "call", _here(started))
        assert main(["report", _EFFICIENT, "--seeds", "1..2"]) == 0
        rest = ["report", _CAPSNET, _QUANTIZED, "--seeds", "1"]
        assert main([*rest, "--release", "released"]) == 0
        assert (
            main(["report", _EFFICIENT, "--seeds", "1", "--release", "released"]) == 0
        )
    return folder, started


@pytest.fixture
def work(reported, tmp_path, monkeypatch):
    """A copy of that folder, as the working directory, where nothing is trained."""
    shutil.copytree(reported[0], tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")
    _quickly(monkeypatch)
    monkeypatch.setattr(subprocess, "call", None)
    return tmp_path / "work"


def _results(path="runs/results.json"):
    return json.loads(pathlib.Path(path).read_text())


@pytest.mark.slow
def test_every_seed_is_trained_once(reported):
    options = [
        ["--recipe", _EFFICIENT, "--seed", "1", "--output"],
        ["--recipe", _EFFICIENT, "--seed", "2", "--output"],
        ["--recipe", _CAPSNET, "--seed", "1", "--output"],
        ["--recipe", _QUANTIZED, "--seed", "1", "--output"],
    ]
    assert [command[:5] for command in reported[1]] == options


def test_results_are_those_of_the_runs(work):
    content = _results()
    entry = content["recipes"][_EFFICIENT]
    assert [run["seed"] for run in entry["runs"]] == [1, 2]
    for run in entry["runs"]:
        directory = work / "runs" / f"{_EFFICIENT}-seed-{run['seed']}"
        model = keras.saving.load_model(directory / "model.keras")
        digits = data.load("digits")
        labels = model.predict(digits.x_test, verbose=0).argmax(axis=1)
        assert run["wrong"] == (labels != digits.y_test).sum()
        assert run["wrong_by_epoch"] == [run["wrong"]]
        assert run["parameters"] == model.count_params()
    (vote,) = entry["votes"]
    assert vote["seeds"] == [1, 2] and 0 <= vote["wrong"] < 360
    assert content["cores"] >= 1 and content["date"]
    quantized = content["recipes"][_QUANTIZED]["runs"][0]
    report = json.loads(
        (work / "runs" / f"{_QUANTIZED}-seed-1" / "report.json").read_text()
    )
    assert quantized["wrong"] == report["wrong_after"]
    config = json.loads(
        (work / "runs" / f"{_QUANTIZED}-seed-1" / "config.json").read_text()
    )
    assert (config["seed"], config["deterministic"]) == (1, True)
    picture = matplotlib.image.imread(work / "runs" / "learning_curves.png")
    assert picture.std() > 0.05


def test_the_table_has_mean_deviation_and_what_is_missing(work, monkeypatch):
    content = _results()
    columns = content["tables"]["results"]["columns"]
    rows = {
        row[0]: dict(zip(columns, row)) for row in content["tables"]["results"]["rows"]
    }
    assert all(len(row) == len(columns) for row in content["tables"]["results"]["rows"])
    errors = [run["wrong"] / 360 for run in content["recipes"][_EFFICIENT]["runs"]]
    ours = rows[_EFFICIENT]["ours, mean ± deviation (seeds)"]
    assert ours == f"{np.mean(errors):.2%} ± {np.std(errors, ddof=1):.2%} (2)"
    parameters = content["recipes"][_EFFICIENT]["runs"][0]["parameters"]
    assert rows[_EFFICIENT]["parameters"] == f"{parameters:,}"
    assert f"{_EFFICIENT}, 2 networks voting" in rows
    assert rows[_CAPSNET]["ours, mean ± deviation (seeds)"].endswith("% (1)")
    monkeypatch.undo()
    monkeypatch.chdir(work)
    # All the others, and these as they really are.
    assert main(["report", "--read-only"]) == 0
    rows = _results()["tables"]["results"]["rows"]
    assert [row[0] for row in rows] == list(recipes.RECIPES)
    assert {row[2] for row in rows} == {"missing"}
    assert all(row[-1] == f"`tf-capsops report {row[0]}`" for row in rows)


def test_a_row_of_several_machines_has_the_time_of_the_one_with_most_runs():
    def ran(seed, machine, wrong, seconds):
        return {
            **{"seed": seed, "machine": machine, "wrong": wrong, "images": 1000},
            **{"seconds_per_epoch": seconds, "parameters": 7},
            "peak_bytes": {"host": seconds * 1e6, "gpu": seconds * 2e6},
        }

    found = [ran(1, "A", 1, 100), ran(2, "B", 2, 10), ran(3, "B", 3, 20)]
    table = results.table({_CAPSNET: {"runs": found, "votes": []}})
    row = dict(zip(table["columns"], table["rows"][0]))
    assert row["ours, mean ± deviation (seeds)"] == "0.20% ± 0.10% (3)"
    assert row["s an epoch"] == "15.00"
    assert (row["peak MB, host"], row["peak MB, GPU"]) == ("20", "40")
    assert row["machine"] == "B (2), A (1)"


def test_the_table_of_the_page_is_made_of_its_runs():
    path = fresh.ROOT / "docs" / "measured" / "results.json"
    content = json.loads(path.read_text())
    # None is of a recipe that has changed since.
    entries, others = results.read(path), variants.read(path)
    assert (entries, others) == (content["recipes"], content["variants"])
    for name, made in (
        ("results", results.table(entries)),
        ("results_variants", variants.table(others)),
    ):
        made = json.loads(json.dumps(made))
        assert content["tables"][name].items() >= made.items()


def test_variants_have_a_table_of_their_own(work, capsys):
    one = ["train", "--recipe", _EFFICIENT, "--seed"]
    other = ["--batch-size", "64", "--distortion", "0.5", "20", "0.1"]
    for name, options in (
        ("other-1", ["1", "--validation", "0.2", *other]),
        ("other-2", ["2", "--validation", "0.2", *other]),
        ("plain-1", ["1", "--validation", "0.2"]),
        ("tenth-1", ["1", "--validation", "0.1"]),
    ):
        assert main([*one, *options, "--output", f"runs/{name}"]) == 0
    assert main(["report", _CAPSNET, "--read-only"]) == 0
    assert _results()["variants"] == []
    before = _results()["recipes"]
    for _ in range(2):  # the second time none is added again
        assert main(["report", _EFFICIENT, "--read-only"]) == 0
    content = _results()
    assert content["recipes"] == before
    made = content["tables"]["results_variants"]
    rows = {tuple(row[1:3]): dict(zip(made["columns"], row)) for row in made["rows"]}
    # Those that are as the recipe otherwise stand first.
    changed = "batch size 64; distortion degrees 20"
    shares = [("", "287 held out"), ("", "144 held out"), (changed, "287 held out")]
    assert list(rows) == shares
    wrong = []
    for seed in "12":
        result = json.loads((work / f"runs/other-{seed}/result.json").read_text())
        wrong.append(result["wrong"] / 287)
    ours = f"{np.mean(wrong):.2%} ± {np.std(wrong, ddof=1):.2%} (2)"
    row = rows[changed, "287 held out"]
    assert row["error, mean ± deviation (seeds)"] == ours
    assert row["each seed's"] == f"1: {wrong[0]:.2%}, 2: {wrong[1]:.2%}"
    assert f"{ours}  287 held out  {changed}" in capsys.readouterr().out


def test_quantizing_a_recipes_run_is_its_recipe_or_a_variant(work):
    train = ["train", "--recipe", _CAPSNET, "--seed", "1", "--validation", "0.2"]
    assert main([*train, "--output", "runs/held"]) == 0
    trained = f"runs/{_CAPSNET}-seed-1"
    shutil.rmtree(f"runs/{_QUANTIZED}-seed-1")
    found = []
    for name, run, options in (
        ("same", trained, ["--seed", "1"]),
        ("steps", trained, ["--seed", "1", "--steps", "0.5", "1"]),
        ("held", "runs/held", ["--seed", "1"]),
        # The recipe has one seed for both, its own data, and five bits.
        ("seed", trained, ["--seed", "2"]),
        ("data", trained, ["--seed", "1", "--data", "digits"]),
        ("bits", trained, ["--seed", "1", "--bits", "6"]),
        ("file", "runs/stopped/checkpoint.keras", ["--seed", "1"]),
        ("stopped", "runs/stopped", ["--seed", "1"]),
    ):
        if name == "file":
            shutil.copytree(trained, "runs/stopped")
            shutil.copy("runs/stopped/model.keras", run)
        if name == "stopped":
            (work / "runs" / "stopped" / "result.json").unlink()
        quantized = f"runs/{name}-quantized"
        assert main(["quantize", run, *options, "--output", quantized]) == 0
        config = json.loads((work / quantized / "config.json").read_text())
        found.append((config["recipe"], config["changed"]))
    assert found == [
        (_QUANTIZED, []),
        (_QUANTIZED, ["steps", "epochs"]),
        (_QUANTIZED, ["trained"]),
        *[(None, None)] * 5,
    ]
    assert main(["report", _QUANTIZED, "--read-only"]) == 0
    assert results.finished(work, _QUANTIZED, 1).name == "same-quantized"
    rows = _results()["tables"]["results_variants"]["rows"]
    assert [row[:3] for row in rows] == [
        [_QUANTIZED, "", "287 held out"],
        [_QUANTIZED, "steps 0.5 1; epochs 2", "test"],
    ]


@pytest.mark.parametrize("file", ["result.json", "history.json"])
@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"machine": {}}'])
def test_a_run_that_cannot_be_read_is_told(work, file, text, capsys):
    run = work / "runs" / "broken"
    shutil.copytree(work / "runs" / f"{_EFFICIENT}-seed-1", run)
    config = json.loads((run / "config.json").read_text())
    (run / file).write_text(text)
    told = f"runs/broken/{file} is not JSON" if text == "{" else "runs/broken does not"
    # A variant is left out.
    (run / "config.json").write_text(json.dumps({**config, "epochs": 9}))
    assert main(["report", _EFFICIENT, "--read-only"]) == 0
    assert f"left out: {told}" in capsys.readouterr().err
    assert _results()["variants"] == []
    # A run of the recipe itself ends the report.
    (run / "config.json").write_text(json.dumps(config))
    assert main(["report", _EFFICIENT, "--read-only", "--seeds", "1"]) == 2
    assert told in capsys.readouterr().err


def test_runs_outlast_a_recipe_that_changes_and_changes_back(work, monkeypatch):
    before = _results()["recipes"]
    shutil.rmtree("runs/" + _EFFICIENT + "-seed-1")
    _quickly(monkeypatch, epochs=2)
    assert main(["report", _CAPSNET, "--read-only"]) == 0
    content = _results()
    assert content["recipes"] == {}
    table = content["tables"]["results_variants"]["rows"]
    assert table[0][:3] == [_EFFICIENT, "epochs 1", "test"]
    _quickly(monkeypatch)
    assert main(["report", _CAPSNET, "--read-only"]) == 0
    content = _results()
    assert content["variants"] == []
    for name, entry in before.items():
        assert content["recipes"][name]["runs"] == entry["runs"]


@pytest.mark.parametrize(
    ("name", "options", "changed"),
    [
        ("em-mnist", {"routing": "vb", "margin": None}, "routing vb"),
        ("capsnet-mnist", {"network": {"capsule_dim": 8}}, "network capsule dim 8"),
        ("inq5-mnist", {"steps": [0.5, 1.0]}, "steps 0.5 1"),
        ("em-mnist", {"epochs": None}, "epochs None"),
    ],
)
def test_what_a_variant_changed_is_named(name, options, changed):
    own = json.loads(json.dumps(settings.of_recipe(name)))
    for key, value in options.items():
        own[key] = {**own[key], **value} if isinstance(value, dict) else value
    run = {"recipe": name, "settings": own, "seed": 1, "part": "test", "wrong": 1}
    made = variants.table([{**run, "images": 10, "machine": "A"}])
    assert made["rows"] == [[name, changed, "test", "10.00% (1)", "1: 10.00%", "A"]]


@pytest.mark.parametrize(
    "content",
    [
        [],
        {"recipes": {_EFFICIENT: {"runs": []}}},
        {"recipes": {}, "variants": [{"recipe": _EFFICIENT, "settings": {}}]},
        {"recipes": {}, "variants": 1},
        None,
    ],
)
def test_a_file_of_something_else_is_refused(work, content, capsys):
    text = json.dumps(content) if content is not None else "{"
    pathlib.Path("runs/results.json").write_text(text)
    assert main(["report", _EFFICIENT, "--read-only"]) == 2
    told = "runs/results.json does not hold results of recipes\n"
    assert capsys.readouterr().err.endswith(told)


def test_what_is_finished_is_read_and_never_trained_again(work):
    before = _results()["recipes"]
    assert main(["report", _EFFICIENT, _CAPSNET, "--seeds", "1"]) == 0
    assert _results()["recipes"] == before
    # Results alone, as of another machine, are enough.
    for run in work.glob("runs/*seed*"):
        shutil.rmtree(run)
    assert main(["report", _EFFICIENT, "--seeds", "1..2"]) == 0
    assert _results()["recipes"] == before


def test_a_run_of_an_older_recipe_is_none_of_it(work, monkeypatch):
    monkeypatch.undo()
    monkeypatch.chdir(work)
    _quickly(monkeypatch, epochs=2)
    assert main(["report", _EFFICIENT, "--read-only"]) == 0
    content = _results()
    assert content["recipes"] == {}
    rows = content["tables"]["results_variants"]["rows"]
    assert [row[:3] for row in rows if row[0] == _EFFICIENT] == [
        [_EFFICIENT, "epochs 1", "test"]
    ]
    assert [row[0] for row in rows] == [_EFFICIENT, _CAPSNET, _QUANTIZED]
    # A recipe that is gone leaves nothing.
    monkeypatch.delitem(recipes.RECIPES, _EFFICIENT)
    assert main(["report", _CAPSNET, "--read-only"]) == 0
    rows = _results()["tables"]["results_variants"]["rows"]
    assert [row[0] for row in rows] == [_CAPSNET, _QUANTIZED]


def test_a_stopped_run_is_resumed_and_a_failure_told(work, monkeypatch, capsys):
    run = work / "runs" / f"{_CAPSNET}-seed-1"
    (run / "result.json").unlink()
    (run / "model.keras").rename(run / "checkpoint-1.keras")
    (work / "runs" / "results.json").unlink()
    started = []
    monkeypatch.setattr(subprocess, "call", lambda c, env: started.append(c[4:]) or 2)
    assert main(["report", _CAPSNET, "--seeds", "1"]) == 1
    assert started == [["--resume", f"runs/{_CAPSNET}-seed-1"]]
    assert f"not trained: {_CAPSNET} with seed 1" in capsys.readouterr().err


def test_a_run_in_training_is_left_alone(work, monkeypatch, capsys):
    run = work / "runs" / f"{_CAPSNET}-seed-1"
    (run / "result.json").unlink()
    (run / "model.keras").rename(run / "checkpoint-1.keras")
    (work / "runs" / "results.json").unlink()
    monkeypatch.setattr(subprocess, "call", _here([]))
    # Another process has the lock, and Ctrl-C does not reach it.
    hold = "from tf_capsops.cli import runs\nimport sys, time\n"
    hold += "with runs.in_use(sys.argv[1]): print('held', flush=True); time.sleep(600)"
    process = fresh.start(hold, run)
    assert process.stdout.readline() == "held\n"
    told = f"another process is training runs/{_CAPSNET}-seed-1"
    assert main(["report", _CAPSNET, "--seeds", "1"]) == 1
    assert told in capsys.readouterr().err
    assert main(["train", "--resume", f"runs/{_CAPSNET}-seed-1"]) == 2
    assert told in capsys.readouterr().err
    shutil.rmtree(f"runs/{_QUANTIZED}-seed-1")
    assert main(["report", _QUANTIZED, "--seeds", "1"]) == 1
    assert told in capsys.readouterr().err
    assert [each.name for each in work.glob("runs/capsnet*")] == [run.name]
    process.kill()
    process.communicate()
    assert main(["report", _CAPSNET, "--seeds", "1"]) == 0


@pytest.mark.slow
def test_ctrl_c_lets_the_training_save_first(tmp_path):
    # A terminal's Ctrl-C goes to all processes of a group.
    command = f"import os; os.setpgrp(); {fresh.COMMAND}"
    process = fresh.start(*(command, "report", _CAPSNET, "--seeds", "1"), cwd=tmp_path)
    printed = fresh.interrupt(process, "epoch 5/100", group=True)
    assert "stopped in epoch" in printed
    run = tmp_path / "runs" / f"{_CAPSNET}-seed-1"
    assert (run / "reconstructions.png").stat().st_size > 0
    assert results.stopped(tmp_path, _CAPSNET, 1) == run


def test_a_stopped_training_is_resumed_for_its_quantization(work, monkeypatch, capsys):
    before = results.finished(work, _CAPSNET, 1)
    result = json.loads((before / "result.json").read_text())
    (before / "result.json").unlink()
    (before / "model.keras").rename(before / "checkpoint-1.keras")
    quantized = work / "runs" / f"{_QUANTIZED}-seed-1"
    shutil.rmtree(quantized)
    (work / "runs" / "results.json").unlink()
    monkeypatch.setattr(subprocess, "call", _here([]))
    assert main(["report", _QUANTIZED, "--seeds", "1"]) == 0
    assert f"{before}: on from epoch 1 of 1" in capsys.readouterr().out.replace(
        "runs/", f"{work}/runs/"
    )
    again = json.loads((before / "result.json").read_text())
    assert again["wrong"] == result["wrong"]
    config = json.loads((quantized / "config.json").read_text())
    assert config["source"] == str(before.resolve())
    # Its seconds are not known, and the table leaves them out.
    assert main(["report", _CAPSNET, "--seeds", "1"]) == 0
    columns, rows = (_results()["tables"]["results"][k] for k in ("columns", "rows"))
    (row,) = (row for row in rows if row[0] == _CAPSNET)
    assert row[columns.index("s an epoch")] == ""


def test_a_vote_of_fewer_does_not_replace_one_of_more(work):
    content = _results()
    (vote,) = content["recipes"][_EFFICIENT]["votes"]
    more = [{**vote, "seeds": [1, 2, 3], "wrong": 0}]
    content["recipes"][_EFFICIENT]["votes"] = more
    pathlib.Path("runs/results.json").write_text(json.dumps(content))
    assert main(["report", _EFFICIENT, "--seeds", "1..2"]) == 0
    assert _results()["recipes"][_EFFICIENT]["votes"] == more


def test_the_files_of_data_sets_are_passed_on(work, monkeypatch):
    monkeypatch.undo()
    monkeypatch.chdir(work)
    started = []
    monkeypatch.setattr(subprocess, "call", lambda c, env: started.append(c[4:]) or 2)
    given = ["--seeds", "3", "--nondeterministic", "--data", "mnist:some.npz"]
    given += ["affine_mnist:other.npz"]
    names = ["p_capsnet-mnist", _EFFICIENT]
    names += ["capsnet-multimnist", "capsnet-affine_mnist"]
    assert main(["report", *names, *given]) == 1
    assert [command[6:] for command in started] == [
        ["--nondeterministic", "--data", "some.npz"],
        ["--nondeterministic"],
        ["--nondeterministic", "--data", "some.npz"],
        ["--nondeterministic", "--data", "other.npz"],
    ]


@pytest.mark.parametrize(
    "arguments, text",
    [
        (["cats"], "--recipe must be one of "),
        (["--seeds", "5..1"], "must be such as 1..5, got '5..1'"),
        (["--data", "cats:a.npz"], "must be NAME:FILE.npz with a name of mnist, "),
        (["--data", "digits:a.npz"], "must be NAME:FILE.npz with a name of mnist, "),
        (["--results", "broken.json"], "broken.json does not hold results of recipes"),
    ],
)
def test_mistakes(work, capsys, arguments, text):
    pathlib.Path("broken.json").write_text('{"recipes": 5}')
    assert main(["report", "--read-only", *arguments]) == 2
    assert text in capsys.readouterr().err


def test_released_networks_are_those_of_the_runs(work):
    manifest = json.loads(pathlib.Path("released/manifest.json").read_text())
    assert set(manifest) == {_EFFICIENT, _CAPSNET, _QUANTIZED}
    tests = data.load("digits").test
    for name in manifest:
        card = json.loads(pathlib.Path("released", f"{name}.json").read_text())
        text = pathlib.Path("released", f"{name}.md").read_text()
        assert card["command"] == f"tf-capsops train --recipe {name} --seed 1"
        assert card["command"] in text and "CC BY 4.0" in text
        assert "The network is that of seed 1, " in text
        model = models.load_pretrained(name, "released")
        file = "codes.keras" if name == _QUANTIZED else "model.keras"
        other = keras.saving.load_model(f"runs/{name}-seed-1/{file}")
        ours, theirs = (evaluate.scores(each, tests) for each in (model, other))
        np.testing.assert_array_equal(ours, theirs)
        labels = ours.argmax(axis=1)
        assert (labels != tests.labels).sum() == card["wrong"]
