# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Variants: runs that changed options of their recipe, or held out images."""

import json
import sys

from tf_capsops.cli import runs, train
from tf_capsops.errors import CommandError
from tf_capsops.experiments import recipes, results

_COLUMNS = (
    "recipe",
    "changed",
    "images",
    "error, mean ± deviation (seeds)",
    "each seed's",
    "machine",
)


def read(path):
    """Returns the variants in a `results.json`.

    Runs of a recipe that has changed since are variants of its present form.

    Raises:
      CommandError: if it cannot be read.
    """
    with results.held_in(path):
        content = results.content(path)
        found = list(content.get("variants", []))
        for name, entry in content["recipes"].items():
            if name in recipes.RECIPES and train.changes(name, entry["settings"]):
                of = {"recipe": name, "settings": entry["settings"]}
                found += [{**of, **run} for run in entry["runs"]]
        known = [
            {**run, "settings": _settings(run["recipe"], run["settings"])}
            for run in found
            if run["recipe"] in recipes.RECIPES
            and train.changes(run["recipe"], run["settings"])
        ]
        table(known)
        return list({_key(run): run for run in known}.values())


def add(variants, names, root):
    """Adds the finished variants of these recipes below `root`, or updates them.

    A run with an outcome that cannot be read is left out, and stderr says so.
    """
    found = {}
    for path in sorted(root.glob(f"**/{runs.RESULT}")):
        run = path.parent
        config = runs.read_config(run)
        name = config.get("recipe")
        if name not in names or not train.changes(name, config):
            continue
        try:
            added = {
                "recipe": name,
                "settings": _settings(name, config),
                "seed": config.get("seed"),
                **results.outcome(run),
            }
            found.setdefault(_key(added), added)
        except CommandError as error:
            print(f"left out: {error}", file=sys.stderr)
    variants[:] = {**{_key(run): run for run in variants}, **found}.values()


def _settings(name, config):
    """Returns those settings of a run that its recipe fixes."""
    fixed = train.settings_of_recipe(name)
    return recipes.stated({key: config.get(key) for key in fixed})


def _key(run):
    """Returns text that is different for any two variants."""
    same = [run["recipe"], run["settings"], run["seed"]]
    return json.dumps(same, sort_keys=True)


def table(variants):
    """Returns columns and rows, a row for all seeds of the same settings."""
    groups = {}
    for run in variants:
        images = run["part"]
        if images == "validation":
            images = f"{run['images']:,} held out"
        key = run["recipe"], _changed(run), images
        groups.setdefault(key, []).append(run)
    order = list(recipes.RECIPES)
    rows = []
    # The row of a recipe comes before those of its variants.
    for key in sorted(groups, key=lambda key: (order.index(key[0]), key[1] != "")):
        found = sorted(groups[key], key=lambda run: run["seed"] or 0)
        each = (f"{run['seed']}: {results.one_error(run)}" for run in found)
        seeds = ", ".join(each)
        rows.append([*key, results.error(found), seeds, results.machines(found)])
    return {"columns": list(_COLUMNS), "rows": rows}


def text(variants, names):
    """Returns lines of these recipes' variants for a terminal; none without any."""
    rows = [
        [row[0], row[3], row[2], row[1]]
        for row in table(variants)["rows"]
        if row[0] in names
    ]
    heads = ["recipe", "error (seeds)", "images", "changed"]
    return f"\n{results.columns([heads, *rows])}\n" if rows else ""


def _changed(run):
    """Says in which settings a run differs from its recipe."""
    own, fixed = run["settings"], train.settings_of_recipe(run["recipe"])
    skipped = ["validation"]  # it has a column
    if own.get("routing") != fixed.get("routing"):
        skipped.append("margin")  # it follows from the routing
    return "; ".join(_pairs(own, fixed, skipped))


def _pairs(own, fixed, skipped):
    for key in recipes.changes(own, {**dict.fromkeys(own), **fixed}):
        if key in skipped:
            continue
        value, usual = own.get(key), fixed.get(key)
        if isinstance(value, dict) and isinstance(usual, dict):
            value = ", ".join(_pairs(value, usual, skipped))
        if value != "":
            yield f"{key.replace('_', ' ')} {_text(value)}"


def _text(value):
    if value is None:
        return "default"
    if isinstance(value, (list, tuple)):
        return " ".join(map(_text, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
