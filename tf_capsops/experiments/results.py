# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Reads runs of recipes, and tabulates their errors, times and memory."""

import collections
import contextlib
import json
import statistics

import numpy as np

from tf_capsops.cli import callbacks, evaluation, networks, runs, train
from tf_capsops.errors import CommandError, reported
from tf_capsops.experiments import recipes
from tf_capsops.machine import label

_COLUMNS = (
    "recipe",
    "paper's error",
    "ours, mean ± deviation (seeds)",
    "s an epoch",
    "peak MB, host",
    "peak MB, GPU",
    "parameters",
    "machine",
    "command",
)

# Fields of result.json that the entry of a run keeps.
_KEPT = (
    "part",
    "images",
    "parameters",
    "seconds_per_epoch",
    "peak_bytes",
)


def finished(root, name, seed):
    """Returns the directory of a finished run below `root`, or None."""
    return _first(root, name, seed, lambda run: (run / runs.RESULT).is_file())


def stopped(root, name, seed):
    """Returns the directory of a run below `root` that can be resumed, or None."""
    return _first(root, name, seed, lambda run: runs.newest_checkpoint(run)[1])


def running(root, name, seed):
    """Returns the directory of a run below `root` that is being trained, or None."""
    return _first(root, name, seed, runs.is_in_use)


def _first(root, name, seed, is_good):
    for path in sorted(root.glob(f"**/{runs.CONFIG}")):
        run = path.parent
        if not is_good(run):
            continue
        config = runs.read_config(run)
        same = (config.get("recipe"), config.get("seed")) == (name, seed)
        if same and not train.changes(name, config):
            return run
    return None


def content(path):
    """Returns the content of a `results.json`, or no recipes if there is no file.

    Raises:
      CommandError: if it cannot be read.
      ValueError: if it is not JSON.
    """
    if not path.is_file():
        return {"recipes": {}}
    with reported(OSError):
        return json.loads(path.read_text())


def read(path):
    """Returns the recipes' entries in a `results.json`.

    Runs of a recipe that has changed since are left out: they are variants now.
    Variants with the present settings of the recipe count as runs of it.

    Raises:
      CommandError: if it cannot be read.
    """
    with held_in(path):
        held = content(path)
        entries = {
            name: entry
            for name, entry in held["recipes"].items()
            if _is_current(name, entry["settings"])
        }
        for run in held.get("variants", []):
            run = dict(run)
            name, own = run.pop("recipe"), run.pop("settings")
            if _is_current(name, own) and not has(entries, name, run["seed"]):
                _put(entries, name, run)
        table(entries)
    return entries


@contextlib.contextmanager
def held_in(path):
    """Turns errors that unexpected content causes into a `CommandError`."""
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CommandError(f"{path} does not hold results of recipes") from error


def _is_current(name, config):
    return name in recipes.RECIPES and not train.changes(name, config)


def add(entries, name, seed, run):
    """Adds a finished run to the entries that `read` returned."""
    _put(entries, name, {"seed": seed, **outcome(run)})


def outcome(directory):
    """Returns a finished run's result.json, with the images it got wrong by epoch.

    With masks, one minus the Dice coefficient is taken for the share of wrong images. A
    network with rounded activations is judged by its file with codes. The machine's
    description is replaced by its name.

    Raises:
      CommandError: if the file, or the history next to it, is missing or has other
        content.
    """
    result = runs.read_json(directory / runs.RESULT)
    history = runs.read_json(directory / runs.HISTORY)
    try:
        on, images = result["machine"], result["images"]
        judged = "dice" if "dice" in result else "wrong"
        by_epoch = callbacks.accuracies(history)[1]
        if judged == "dice":
            by_epoch = history["val_dice"]
        kept = {key: result[key] for key in (*_KEPT, judged)}
        if runs.read_config(directory).get("activation_bits"):
            kept["wrong"] = result["wrong_with_codes"]  # this file rounds them
        return {
            **kept,
            "machine": label(on),
            "commit": on["commit"],
            "date": on["date"],
            "tensorflow": on["versions"]["tensorflow"],
            "wrong_by_epoch": [round((1 - each) * images) for each in by_epoch],
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CommandError(f"{directory} does not hold the outcome of a run") from error


def _put(entries, name, added):
    settings = train.settings_of_recipe(name)
    entry = entries.setdefault(name, {"settings": settings, "runs": [], "votes": []})
    others = [run for run in entry["runs"] if run["seed"] != added["seed"]]
    entry["runs"] = sorted([*others, added], key=lambda run: run["seed"])


def has(entries, name, seed):
    """Whether the entries have a recipe's run of this seed."""
    return any(run["seed"] == seed for run in entries.get(name, {"runs": []})["runs"])


def add_votes(entries, name, root, seeds):
    """Lets the networks of a recipe vote, and adds their error to the entries.

    Only recipes with `votes` do so, and only if the networks of two seeds or more are
    below `root`. An earlier vote of more seeds is kept.
    """
    if not recipes.find(name).votes:
        return
    found = {seed: finished(root, name, seed) for seed in seeds}
    found = {seed: run for seed, run in found.items() if run is not None}
    before = [vote["seeds"] for vote in entries.get(name, {}).get("votes", [])]
    fewest = max([2, *map(len, before)])
    if len(found) < fewest or list(found) in before:
        return
    scores = 0.0
    for run in found.values():
        model, dataset, _ = networks.open_model(run)
        scores = scores + evaluation.scores(model, dataset.test)
    wrong = int(np.count_nonzero(scores.argmax(axis=1) != dataset.test.labels))
    voting = [run for run in entries[name]["runs"] if run["seed"] in found]
    entries[name]["votes"] = [
        {
            "seeds": list(found),
            "wrong": wrong,
            "images": len(dataset.test),
            "machine": machines(voting),
        }
    ]


def table(entries):
    """Returns columns and rows of all recipes, for a page or a terminal.

    Each recipe has a row, and another one for its vote if there is any. The error is
    that of all runs; time and memory are those of the machine with most of the runs.
    """
    rows = []
    for name, recipe in recipes.RECIPES.items():
        entry = entries.get(name, {"runs": [], "votes": []})
        command = f"`tf-capsops report {name}`"
        rows.append([name, _paper(recipe.paper), *_measured(entry["runs"]), command])
        for vote in entry["votes"]:
            together = f"{vote['wrong'] / vote['images']:.2%}"
            row = [f"{name}, {len(vote['seeds'])} networks voting"]
            row += [_paper(recipe.ensemble), together, *[""] * 4, vote["machine"]]
            rows.append([*row, command])
    return {"columns": list(_COLUMNS), "rows": rows}


def text(entries, names):
    """Returns the table of these recipes for a terminal: ours and the paper's."""
    rows = [
        [row[0], row[2], row[1]]
        for row in table(entries)["rows"]
        if row[0].partition(",")[0] in names
    ]
    return columns([["recipe", "error (seeds)", "the paper's"], *rows])


def columns(rows):
    """Returns rows as text with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    padded = ("  ".join(map(str.ljust, row, widths)) for row in rows)
    return "\n".join(line.rstrip() for line in padded)


def _paper(paper):
    return f"{paper.error} ({paper.source})" if paper else ""


def _measured(found):
    """Returns the cells of a recipe's runs: error, time, memory, size and machines."""
    if not found:
        return ["missing", "", "", "", "", ""]
    most, _ = _machines(found)[0]
    here = [run for run in found if run["machine"] == most]
    seconds = [run["seconds_per_epoch"] for run in here]
    seconds = [each for each in seconds if each is not None]
    peaks = [
        max(run["peak_bytes"].get(kind, 0) for run in here) for kind in ("host", "gpu")
    ]
    return [
        error(found),
        f"{statistics.median(seconds):.2f}" if seconds else "",
        *(f"{peak / 1e6:.0f}" if peak else "" for peak in peaks),
        f"{found[0]['parameters']:,}",
        machines(found),
    ]


def error(found):
    """Returns mean and deviation of the errors of runs, and how many there are.

    For networks that segment, they are Dice coefficients.
    """
    values = [run.get("dice", run.get("wrong", 0) / run["images"]) for run in found]
    before, form = ("Dice ", ".4f") if "dice" in found[0] else ("", ".2%")
    mean = f"{before}{statistics.fmean(values):{form}}"
    deviation = f" ± {statistics.stdev(values):{form}}" if len(values) > 1 else ""
    return f"{mean}{deviation} ({len(values)})"


def one_error(run):
    """Returns the error of one run, or its Dice coefficient."""
    return error([run]).removesuffix(" (1)")


def machines(found):
    """Names the machines of runs, the most frequent one first."""
    counts = _machines(found)
    if len(counts) == 1:
        return counts[0][0]
    return ", ".join(f"{machine} ({count})" for machine, count in counts)


def _machines(found):
    return collections.Counter(run["machine"] for run in found).most_common()
