# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Reads runs of recipes, and makes the table of what they came to."""

import collections
import json
import statistics

from tf_capsops.cli import checkpoints, outcome, progress, recipes, runs, settings
from tf_capsops.cli.errors import CommandError, reported
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


def finished(root, name, seed):
    """Returns the directory of a finished run below `root`, or None."""
    return _first(root, name, seed, lambda run: (run / outcome.RESULT).is_file())


def stopped(root, name, seed):
    """Returns the directory of a run below `root` that can be resumed, or None."""
    return _first(root, name, seed, lambda run: checkpoints.newest(run)[1])


def running(root, name, seed):
    """Returns the directory of a run below `root` that is being trained, or None."""
    return _first(root, name, seed, runs.is_in_use)


def _first(root, name, seed, is_good):
    fixed = settings.of_recipe(name)
    for path in sorted(root.glob(f"**/{runs.CONFIG}")):
        run = path.parent
        if not is_good(run):
            continue
        config = runs.read_config(run)
        same = (config.get("recipe"), config.get("seed")) == (name, seed)
        if same and not recipes.changes(config, fixed):
            return run
    return None


def read(path):
    """Returns the content of a `results.json`; that of none is empty.

    Results of a recipe that has changed since are left out.

    Raises:
      CommandError: if it cannot be read.
    """
    if not path.is_file():
        return {}
    with reported(OSError, ValueError):
        content = json.loads(path.read_text())
    try:
        return {
            name: entry
            for name, entry in content["recipes"].items()
            if name in recipes.RECIPES
            and not recipes.changes(entry["settings"], settings.of_recipe(name))
        }
    except (AttributeError, KeyError, TypeError) as error:
        raise CommandError(f"{path} does not hold results of recipes") from error


def add(entries, name, seed, run):
    """Adds a finished run to the entries that `read` returned."""
    with reported(OSError, ValueError):
        result = json.loads((run / outcome.RESULT).read_text())
        history = json.loads((run / runs.HISTORY).read_text())
    on = result.pop("machine")
    accuracies = progress.accuracies(history)[1]
    entry = entries.setdefault(
        name, {"settings": settings.of_recipe(name), "runs": [], "votes": []}
    )
    others = [each for each in entry["runs"] if each["seed"] != seed]
    added = {
        "seed": seed,
        **result,
        "machine": label(on),
        "commit": on["commit"],
        "date": on["date"],
        "tensorflow": on["versions"]["tensorflow"],
        "wrong_by_epoch": [round((1 - a) * result["images"]) for a in accuracies],
    }
    entry["runs"] = sorted([*others, added], key=lambda each: each["seed"])


def has(entries, name, seed):
    """Whether the entries have a recipe's run of this seed."""
    return any(run["seed"] == seed for run in entries.get(name, {"runs": []})["runs"])


def table(entries):
    """Returns columns and rows, of every recipe, for a page or a terminal.

    A recipe has a row. Its error is that of all its runs; its time and memory are those
    of the machine with the most.
    """
    rows = []
    for name, recipe in recipes.RECIPES.items():
        entry = entries.get(name, {"runs": [], "votes": []})
        command = f"`tf-capsops report {name}`"
        rows.append([name, _paper(recipe.paper), *_measured(entry["runs"]), command])
        for vote in entry["votes"]:
            error = f"{vote['wrong'] / vote['images']:.2%}"
            row = [f"{name}, {len(vote['seeds'])} networks voting"]
            row += [_paper(recipe.ensemble), error, "", "", "", "", vote["machine"]]
            rows.append([*row, command])
    return {"columns": list(_COLUMNS), "rows": rows}


def text(entries):
    """Returns the table for a terminal: recipe, ours and the paper's."""
    rows = [[row[0], row[2], row[1]] for row in table(entries)["rows"]]
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    lines = (f"{a:{widths[0]}}  {b:{widths[1]}}  {c}".rstrip() for a, b, c in rows)
    return "\n".join(lines)


def _paper(paper):
    return f"{paper.error} ({paper.source})" if paper else ""


def _measured(found):
    """Returns the cells of a recipe's runs: error, time, memory, size and machines."""
    if not found:
        return ["missing", "", "", "", "", ""]
    errors = [run["wrong"] / run["images"] for run in found]
    error = f"{statistics.fmean(errors):.2%}"
    if len(errors) > 1:
        error += f" ± {statistics.stdev(errors):.2%}"
    machines = collections.Counter(run["machine"] for run in found).most_common()
    here = [run for run in found if run["machine"] == machines[0][0]]
    seconds = [run["seconds_per_epoch"] for run in here]
    seconds = [each for each in seconds if each is not None]
    peaks = [
        max(run["peak_bytes"].get(kind, 0) for run in here) for kind in ("host", "gpu")
    ]
    named = [machine for machine, _ in machines]
    if len(named) > 1:
        named = [f"{machine} ({count})" for machine, count in machines]
    return [
        f"{error} ({len(errors)})",
        f"{statistics.median(seconds):.2f}" if seconds else "",
        *(f"{peak / 1e6:.0f}" if peak else "" for peak in peaks),
        f"{found[0]['parameters']:,}",
        ", ".join(named),
    ]
