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
_COLUMNS_OF_VARIANTS = (
    "recipe",
    "but for",
    "images",
    "error, mean ± deviation (seeds)",
    "s an epoch",
    "machine",
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

    Returns:
      The entries of recipes, without those that have changed since; and the variants,
      a list of runs that differ from their recipe.

    Raises:
      CommandError: if it cannot be read.
    """
    if not path.is_file():
        return {}, []
    with reported(OSError, ValueError):
        content = json.loads(path.read_text())
    try:
        entries = {
            name: entry
            for name, entry in content["recipes"].items()
            if not _differs(name, entry["settings"])
        }
        variants = [
            run
            for run in content.get("variants", [])
            if _differs(run["recipe"], run["settings"])
        ]
    except (AttributeError, KeyError, TypeError) as error:
        raise CommandError(f"{path} does not hold results of recipes") from error
    return entries, variants


def _differs(name, config):
    """Whether a run is another than its recipe has it, or the recipe is gone."""
    if name not in recipes.RECIPES:
        return True
    return bool(recipes.changes(config, settings.of_recipe(name)))


def add(entries, name, seed, run):
    """Adds a finished run to the entries that `read` returned."""
    with reported(OSError, ValueError):
        history = json.loads((run / runs.HISTORY).read_text())
    added = {"seed": seed, **_summary(run)}
    accuracies = progress.accuracies(history)[1]
    added["wrong_by_epoch"] = [round((1 - a) * added["images"]) for a in accuracies]
    entry = entries.setdefault(
        name, {"settings": settings.of_recipe(name), "runs": [], "votes": []}
    )
    others = [each for each in entry["runs"] if each["seed"] != seed]
    entry["runs"] = sorted([*others, added], key=lambda each: each["seed"])


def add_variants(variants, names, root):
    """Adds the finished runs below `root` that differ from one of these recipes."""
    for path in sorted(root.glob(f"**/{outcome.RESULT}")):
        config = runs.read_config(path.parent)
        name = config.get("recipe")
        if name not in names or not _differs(name, config):
            continue
        own = {key: config.get(key) for key in settings.of_recipe(name)}
        same = {"recipe": name, "settings": own, "seed": config.get("seed")}
        variants[:] = [run for run in variants if not same.items() <= run.items()]
        variants.append({**same, **_summary(path.parent)})


def _summary(run):
    with reported(OSError, ValueError):
        result = json.loads((run / outcome.RESULT).read_text())
    on = result.pop("machine")
    return {
        **result,
        "machine": label(on),
        "commit": on["commit"],
        "date": on["date"],
        "tensorflow": on["versions"]["tensorflow"],
    }


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


def variants_table(variants):
    """Returns columns and rows of runs that differ from their recipes."""
    groups = {}
    for name in recipes.RECIPES:
        for run in variants:
            if run["recipe"] == name:
                images = {"validation": "held out"}.get(run["part"], run["part"])
                key = name, _difference(run), images
                groups.setdefault(key, []).append(run)
    rows = []
    for key, found in groups.items():
        error, seconds, *_, machine = _measured(found)
        rows.append([*key, error, seconds, machine])
    return {"columns": list(_COLUMNS_OF_VARIANTS), "rows": rows}


def _difference(run):
    """Says in what a run differs from its recipe, apart from held-out images."""
    fixed = json.loads(json.dumps(settings.of_recipe(run["recipe"])))
    said = []
    for name in recipes.changes(run["settings"], fixed):
        value, usual = run["settings"][name], fixed[name]
        if isinstance(value, dict) and isinstance(usual, dict):
            pairs = ((k, v) for k, v in value.items() if v != usual.get(k))
            value = ", ".join(f"{k} {_text(v)}" for k, v in pairs)
        if name != "validation":
            said.append(f"{name.replace('_', ' ')} {_text(value)}")
    return "; ".join(said) or "nothing"


def _text(value):
    if isinstance(value, (list, tuple)):
        return " ".join(map(_text, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def text(entries, variants):
    """Returns the tables for a terminal: recipe, ours and the paper's; and variants."""
    lines = [[row[0], row[2], row[1]] for row in table(entries)["rows"]]
    if variants:
        rows = variants_table(variants)["rows"]
        lines.append(["", "", ""])
        for name, difference, images, error, *_ in rows:
            lines.append([name, error, f"{images}, but for {difference}"])
    widths = [max(len(line[column]) for line in lines) for column in range(2)]
    lines = (f"{a:{widths[0]}}  {b:{widths[1]}}  {c}".rstrip() for a, b, c in lines)
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
