# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""`tf-capsops report`: trains what is missing, reads the rest, releases networks."""

import dataclasses
import json
import pathlib
import shutil
import subprocess

import fresh
import keras
import matplotlib.image
import numpy as np
import pytest
from reports import CAPSNET, EFFICIENT, QUANTIZED, TESTS, here, results_of

from tf_capsops import data, models
from tf_capsops.__main__ import main
from tf_capsops.cli import evaluation
from tf_capsops.experiments import recipes, results, variants


@pytest.mark.slow
def test_every_seed_is_trained_once(reported):
    options = [
        ["--recipe", EFFICIENT, "--seed", "1", "--output"],
        ["--recipe", EFFICIENT, "--seed", "2", "--output"],
        ["--recipe", CAPSNET, "--seed", "1", "--output"],
        ["--recipe", QUANTIZED, "--seed", "1", "--output"],
    ]
    assert [command[:5] for command in reported[1]] == options


@pytest.mark.ci
def test_results_are_those_of_the_runs(work):
    content = results_of()
    entry = content["recipes"][EFFICIENT]
    assert [run["seed"] for run in entry["runs"]] == [1, 2]
    for run in entry["runs"]:
        directory = work / "runs" / f"{EFFICIENT}-seed-{run['seed']}"
        model = keras.saving.load_model(directory / "model.keras")
        digits = data.load("digits")
        labels = model.predict(digits.x_test, verbose=0).argmax(axis=1)
        assert run["wrong"] == (labels != digits.y_test).sum()
        assert run["wrong_by_epoch"] == [run["wrong"]]
        assert run["parameters"] == model.count_params()
    (vote,) = entry["votes"]
    assert vote["seeds"] == [1, 2] and 0 <= vote["wrong"] < TESTS
    assert content["cores"] >= 1 and content["date"]
    quantized = content["recipes"][QUANTIZED]["runs"][0]
    report = json.loads(
        (work / "runs" / f"{QUANTIZED}-seed-1" / "report.json").read_text()
    )
    assert quantized["wrong"] == report["wrong_after"]
    config = json.loads(
        (work / "runs" / f"{QUANTIZED}-seed-1" / "config.json").read_text()
    )
    assert (config["seed"], config["deterministic"]) == (1, True)
    picture = matplotlib.image.imread(work / "runs" / "learning_curves.png")
    assert picture.std() > 0.05


def test_the_table_has_mean_deviation_and_what_is_missing(work, monkeypatch):
    content = results_of()
    columns = content["tables"]["results"]["columns"]
    rows = {
        row[0]: dict(zip(columns, row)) for row in content["tables"]["results"]["rows"]
    }
    assert all(len(row) == len(columns) for row in content["tables"]["results"]["rows"])
    errors = [run["wrong"] / TESTS for run in content["recipes"][EFFICIENT]["runs"]]
    ours = rows[EFFICIENT]["ours, mean ± deviation (seeds)"]
    assert ours == f"{np.mean(errors):.2%} ± {np.std(errors, ddof=1):.2%} (2)"
    parameters = content["recipes"][EFFICIENT]["runs"][0]["parameters"]
    assert rows[EFFICIENT]["parameters"] == f"{parameters:,}"
    assert f"{EFFICIENT}, 2 networks voting" in rows
    assert rows[CAPSNET]["ours, mean ± deviation (seeds)"].endswith("% (1)")
    monkeypatch.undo()
    monkeypatch.chdir(work)
    # All the others, and these as they really are.
    assert main(["report", "--read-only"]) == 0
    rows = results_of()["tables"]["results"]["rows"]
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
    table = results.table({CAPSNET: {"runs": found, "votes": []}})
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


def test_what_is_finished_is_read_and_never_trained_again(work):
    before = results_of()["recipes"]
    assert main(["report", EFFICIENT, CAPSNET, "--seeds", "1"]) == 0
    assert results_of()["recipes"] == before
    # Results alone, as of another machine, are enough.
    for run in work.glob("runs/*seed*"):
        shutil.rmtree(run)
    assert main(["report", EFFICIENT, "--seeds", "1..2"]) == 0
    assert results_of()["recipes"] == before


def test_a_stopped_run_is_resumed_and_a_failure_told(work, monkeypatch, capsys):
    run = work / "runs" / f"{CAPSNET}-seed-1"
    (run / "result.json").unlink()
    (run / "model.keras").rename(run / "checkpoint-1.keras")
    (work / "runs" / "results.json").unlink()
    started = []
    monkeypatch.setattr(subprocess, "call", lambda c, env: started.append(c[4:]) or 2)
    assert main(["report", CAPSNET, "--seeds", "1"]) == 1
    assert started == [["--resume", f"runs/{CAPSNET}-seed-1"]]
    assert f"not trained: {CAPSNET} with seed 1" in capsys.readouterr().err


def test_a_run_in_training_is_left_alone(work, monkeypatch, capsys):
    run = work / "runs" / f"{CAPSNET}-seed-1"
    (run / "result.json").unlink()
    (run / "model.keras").rename(run / "checkpoint-1.keras")
    (work / "runs" / "results.json").unlink()
    monkeypatch.setattr(subprocess, "call", here([]))
    # Another process has the lock, and Ctrl-C does not reach it.
    hold = "from tf_capsops.cli import runs\nimport sys, time\n"
    hold += "with runs.in_use(sys.argv[1]): print('held', flush=True); time.sleep(600)"
    process = fresh.start(hold, run)
    assert process.stdout.readline() == "held\n"
    told = f"another process is training runs/{CAPSNET}-seed-1"
    assert main(["report", CAPSNET, "--seeds", "1"]) == 1
    assert told in capsys.readouterr().err
    assert main(["train", "--resume", f"runs/{CAPSNET}-seed-1"]) == 2
    assert told in capsys.readouterr().err
    shutil.rmtree(f"runs/{QUANTIZED}-seed-1")
    assert main(["report", QUANTIZED, "--seeds", "1"]) == 1
    assert told in capsys.readouterr().err
    assert [each.name for each in work.glob("runs/capsnet*")] == [run.name]
    process.kill()
    process.communicate()
    assert main(["report", CAPSNET, "--seeds", "1"]) == 0


@pytest.mark.slow
def test_ctrl_c_lets_the_training_save_first(tmp_path):
    # A terminal's Ctrl-C goes to all processes of a group.
    command = f"import os; os.setpgrp(); {fresh.COMMAND}"
    process = fresh.start(*(command, "report", CAPSNET, "--seeds", "1"), cwd=tmp_path)
    printed = fresh.interrupt(process, "epoch 5/100", group=True)
    assert "stopped in epoch" in printed
    run = tmp_path / "runs" / f"{CAPSNET}-seed-1"
    assert (run / "reconstructions.png").stat().st_size > 0
    assert results.stopped(tmp_path, CAPSNET, 1) == run


def test_a_stopped_training_is_resumed_for_its_quantization(work, monkeypatch, capsys):
    before = results.finished(work, CAPSNET, 1)
    result = json.loads((before / "result.json").read_text())
    (before / "result.json").unlink()
    (before / "model.keras").rename(before / "checkpoint-1.keras")
    quantized = work / "runs" / f"{QUANTIZED}-seed-1"
    shutil.rmtree(quantized)
    (work / "runs" / "results.json").unlink()
    monkeypatch.setattr(subprocess, "call", here([]))
    assert main(["report", QUANTIZED, "--seeds", "1"]) == 0
    assert f"{before}: on from epoch 1 of 1" in capsys.readouterr().out.replace(
        "runs/", f"{work}/runs/"
    )
    again = json.loads((before / "result.json").read_text())
    assert again["wrong"] == result["wrong"]
    config = json.loads((quantized / "config.json").read_text())
    assert config["source"] == str(before.resolve())
    # Its seconds are not known, and the table leaves them out.
    assert main(["report", CAPSNET, "--seeds", "1"]) == 0
    columns, rows = (results_of()["tables"]["results"][k] for k in ("columns", "rows"))
    (row,) = (row for row in rows if row[0] == CAPSNET)
    assert row[columns.index("s an epoch")] == ""


def test_a_vote_of_fewer_does_not_replace_one_of_more(work):
    content = results_of()
    (vote,) = content["recipes"][EFFICIENT]["votes"]
    more = [{**vote, "seeds": [1, 2, 3], "wrong": 0}]
    content["recipes"][EFFICIENT]["votes"] = more
    pathlib.Path("runs/results.json").write_text(json.dumps(content))
    assert main(["report", EFFICIENT, "--seeds", "1..2"]) == 0
    assert results_of()["recipes"][EFFICIENT]["votes"] == more


def test_the_files_of_data_sets_are_passed_on(work, monkeypatch):
    monkeypatch.undo()
    monkeypatch.chdir(work)
    started = []
    monkeypatch.setattr(subprocess, "call", lambda c, env: started.append(c[4:]) or 2)
    given = ["--seeds", "3", "--nondeterministic", "--data", "mnist:some.npz"]
    given += ["affine_mnist:other.npz"]
    names = ["p_capsnet-mnist", EFFICIENT]
    names += ["capsnet-multimnist", "capsnet-affine_mnist"]
    assert main(["report", *names, *given]) == 1
    assert [command[6:] for command in started] == [
        ["--nondeterministic", "--data", "some.npz"],
        ["--nondeterministic"],
        ["--nondeterministic", "--data", "some.npz"],
        ["--nondeterministic", "--data", "other.npz"],
    ]


def test_without_runs_there_is_no_picture(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["report", "--read-only"]) == 0
    assert "there are no runs of recipes in runs" in capsys.readouterr().out
    assert results_of()["recipes"] == {}
    assert [path.name for path in tmp_path.rglob("*.*")] == ["results.json"]


@pytest.mark.parametrize(
    "arguments, text",
    [
        (["cats"], "report: error: RECIPE must be one of "),
        (["--seeds", "5..1"], "must be such as 1..5, got '5..1'"),
        (["--runs", "nowhere", "--read-only"], "--runs: there is no nowhere, and --re"),
        (
            ["capsnet-digit"],
            "RECIPE: there is no recipe 'capsnet-digit'; did you mean capsnet-digits?",
        ),
        (
            ["inq5-"],
            "RECIPE: there is no recipe 'inq5-'; similar are inq5-digits",
        ),
        (["--runs", "broken.json"], "--runs must be a directory, got broken.json"),
        (["--results", "runs"], "runs: Is a directory"),
        (["--results", "broken.json/new.json"], "cannot make the directory broken"),
        (["--release", "broken.json"], "cannot make the directory broken.json: File"),
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
    assert set(manifest) == {EFFICIENT, CAPSNET, QUANTIZED}
    tests = data.load("digits").test
    for name in manifest:
        card = json.loads(pathlib.Path("released", f"{name}.json").read_text())
        text = pathlib.Path("released", f"{name}.md").read_text()
        assert card["command"] == f"tf-capsops train --recipe {name} --seed 1"
        assert card["command"] in text and "CC BY 4.0" in text
        assert "The network is that of seed 1, " in text
        model = models.load_pretrained(name, "released")
        file = "codes.keras" if name == QUANTIZED else "model.keras"
        other = keras.saving.load_model(f"runs/{name}-seed-1/{file}")
        ours, theirs = (evaluation.scores(each, tests) for each in (model, other))
        np.testing.assert_array_equal(ours, theirs)
        labels = ours.argmax(axis=1)
        assert (labels != tests.labels).sum() == card["wrong"]


def test_half_precision_is_of_a_release(capsys):
    assert main(["report", EFFICIENT, "--half"]) == 2
    assert "--half rounds the weights of --release" in capsys.readouterr().err


def test_half_precision_halves_a_release(work):
    few = ["report", EFFICIENT, "--seeds", "1", "--read-only"]
    assert main([*few, "--release", "halved", "--half"]) == 0
    whole, half = (
        keras.saving.load_model(f"{folder}/{EFFICIENT}.keras").get_weights()
        for folder in ("released", "halved")
    )
    for one, other in zip(whole, half, strict=True):
        assert other.dtype == one.dtype
        np.testing.assert_array_equal(other, one.astype(np.float16))
    sizes = [
        pathlib.Path(folder, f"{EFFICIENT}.keras").stat().st_size
        for folder in ("released", "halved")
    ]
    assert sizes[1] < 0.75 * sizes[0]
    card = pathlib.Path("halved", f"{EFFICIENT}.md").read_text()
    assert f"{sizes[1]:,} bytes, weights rounded to half precision" in card


@pytest.mark.ci
def test_a_recipe_with_rounded_activations(work, monkeypatch):
    shutil.rmtree(f"runs/{QUANTIZED}-seed-1")
    rounding = {"bits": 3, "activation_bits": 8, "per_channel": True}
    rounding["straight_through"] = True
    recipe = dataclasses.replace(recipes.RECIPES[QUANTIZED], **rounding)
    monkeypatch.setitem(recipes.RECIPES, QUANTIZED, recipe)
    assert main(["train", "--recipe", QUANTIZED, "--seed", "1"]) == 0
    run = work / "runs" / QUANTIZED
    config = json.loads((run / "config.json").read_text())
    assert {key: config[key] for key in rounding} == rounding
    assert config["recipe"] == QUANTIZED and config["changed"] == []
    # The error is that of the file that rounds activations.
    result = json.loads((run / "result.json").read_text())
    result |= {"wrong": 7, "wrong_with_codes": 9}
    (run / "result.json").write_text(json.dumps(result))
    assert main(["report", QUANTIZED, "--read-only"]) == 0
    assert [each["wrong"] for each in results_of()["recipes"][QUANTIZED]["runs"]] == [9]
