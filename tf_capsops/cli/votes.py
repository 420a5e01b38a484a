# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Networks of several seeds that vote: the class with the largest mean score."""

import numpy as np

from tf_capsops.cli import evaluate, recipes, results, runs


def add(entries, name, root, seeds):
    """Adds the error of a recipe's networks together to the entries of results.

    Only recipes that ask for it vote, and only where the networks of two seeds or more
    are below `root`. The vote of more seeds that is there already stays.
    """
    if not recipes.find(name).votes:
        return
    found = {seed: results.finished(root, name, seed) for seed in seeds}
    found = {seed: run for seed, run in found.items() if run is not None}
    before = [vote["seeds"] for vote in entries.get(name, {}).get("votes", [])]
    fewest = max([2, *map(len, before)])
    if len(found) < fewest or list(found) in before:
        return
    scores = 0.0
    for run in found.values():
        model, dataset, _ = runs.open_model(run)
        scores = scores + evaluate.scores(model, dataset.test)
    wrong = int(np.count_nonzero(scores.argmax(axis=1) != dataset.test.labels))
    voting = [run for run in entries[name]["runs"] if run["seed"] in found]
    entries[name]["votes"] = [
        {
            "seeds": list(found),
            "wrong": wrong,
            "images": len(dataset.test),
            "machine": results.machines(voting),
        }
    ]
