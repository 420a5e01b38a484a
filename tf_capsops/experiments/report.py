# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Trains recipes with several seeds, and compares the results with papers."""

import argparse
import os
import pathlib
import re
import subprocess
import sys

from tf_capsops import options
from tf_capsops.errors import CommandError, make_directory, reported, require
from tf_capsops.experiments import recipes

CURVES = "learning_curves.png"


def add_arguments(parser):
    """Adds the arguments of `tf-capsops report`."""
    parser.add_argument(
        "recipes",
        metavar="RECIPE",
        nargs="*",
        help=f"what to train and report (default: all whose data can be had, of "
        f"{', '.join(recipes.RECIPES)})",
    )
    parser.add_argument(
        "--seeds",
        type=seeds,
        default=range(1, 6),
        metavar="1..5",
        help="the first and the last, or one (default: 1..5)",
    )
    parser.add_argument(
        "--runs",
        default="runs",
        metavar="DIRECTORY",
        help="where runs are, at any depth, and new ones are made. Finished runs are "
        "read, and stopped ones resumed; runs that changed options of their recipe, or "
        "held out images, are in a table of their own (default: %(default)s)",
    )
    parser.add_argument(
        "--results",
        default="runs/results.json",
        metavar="FILE.json",
        help="the file to write; learning curves go next to it. Its results of recipes "
        "that have not changed are kept (default: %(default)s)",
    )
    parser.add_argument(
        "--data",
        type=named_file,
        nargs="+",
        default=[],
        metavar="NAME:FILE.npz",
        help="files, or folders of idx files, with data sets, such as "
        "mnist:mnist.npz; multimnist and affine_mnist are made from mnist",
    )
    parser.add_argument("--read-only", action="store_true", help="train nothing")
    options.add_nondeterministic(parser)
    parser.add_argument(
        "--release",
        metavar="DIRECTORY",
        help="also write the network of each recipe's first seed there, with a model "
        "card, for `tf_capsops.models.load_pretrained`",
    )
    parser.add_argument(
        "--half",
        action="store_true",
        help="round the weights of --release to half precision, after the test: files "
        "of about 60%% of the size",
    )


def seeds(text):
    """The type of `--seeds`."""
    match = re.fullmatch(r"(\d+)(?:\.\.(\d+))?", text)
    if match:
        first, last = int(match[1]), int(match[2] or match[1])
        if first <= last < 2**31:
            return range(first, last + 1)
    raise argparse.ArgumentTypeError(f"must be such as 1..5, got {text!r}")


def named_file(text):
    """The type of `--data`: a name and a file or folder."""
    name, _, path = text.partition(":")
    # The digits come with scikit-learn.
    names = [each for each in recipes.DATA if each != "digits"]
    if name in names and path:
        return name, path
    raise argparse.ArgumentTypeError(
        f"must be NAME:FILE.npz with a name of {', '.join(names)}, got {text!r}"
    )


def check(args):
    """Checks what can be checked without TensorFlow; raises a CommandError."""
    require("matplotlib", "tensorboard")
    if args.half and not args.release:
        raise CommandError("--half rounds the weights of --release, which is missing")
    for name in args.recipes:
        recipes.find(name, "RECIPE")
    root = pathlib.Path(args.runs)
    if root.exists() and not root.is_dir():
        raise CommandError(f"--runs must be a directory, got {root}")
    if args.read_only and args.runs != "runs" and not root.exists():
        raise CommandError(f"--runs: there is no {root}, and --read-only trains none")


def run(args):
    """Trains, reads and reports. Returns the exit status."""
    from tf_capsops.cli import plots
    from tf_capsops.experiments import release, results, variants

    names = args.recipes or [
        name
        for name, recipe in recipes.RECIPES.items()
        if _has_data(recipe, dict(args.data)) or args.read_only
    ]
    root, path = pathlib.Path(args.runs), pathlib.Path(args.results)
    entries, others = results.read(path), variants.read(path)
    failed = []
    # The first seed of every recipe comes first, then the second: a table with one seed
    # of each recipe is worth more than one recipe with all seeds.
    for seed in args.seeds:
        for name in names:
            found = results.finished(root, name, seed)
            if found is None and not (
                args.read_only or results.has(entries, name, seed)
            ):
                status = _train(name, seed, root, args)
                found = results.finished(root, name, seed)
                if status or found is None:
                    failed.append(f"{name} with seed {seed}")
            if found is not None:
                results.add(entries, name, seed, found)
                _write(path, entries, others)
    for name in names:
        results.add_votes(entries, name, root, args.seeds)
    variants.add(others, names, root)
    _write(path, entries, others)
    learned = {
        name: entries[name]["runs"] for name in recipes.RECIPES if name in entries
    }
    if learned:
        plots.learning_curves(learned, path.with_name(CURVES))
    print(results.text(entries, names))
    print(variants.text(others, names), end="")
    if learned:
        print(f"wrote {path} and {path.with_name(CURVES)}")
    else:
        print(f"there are no runs of recipes in {root} to draw\nwrote {path}")
    if args.release:
        folder = pathlib.Path(args.release)
        release.write(folder, entries, names, root, args.half)
        print(f"wrote {args.release}")
    if failed:
        print(f"not trained: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _has_data(recipe, files):
    """Whether the data of a recipe can be had; a folder must exist or be given."""
    folder = recipes.DATA[recipe.data].folder
    return not folder or recipe.data in files or pathlib.Path(recipe.data).is_dir()


def _train(name, seed, root, args):
    """Trains a recipe, or goes on with it, in a process of its own.

    Memory and determinism belong to a process. Returns its exit status, or 2 if another
    process is training the recipe.
    """
    from tf_capsops.cli import callbacks
    from tf_capsops.experiments import results

    running = results.running(root, name, seed)
    if running is not None:
        print(f"another process is training {running}", file=sys.stderr)
        return 2
    files, recipe = dict(args.data), recipes.find(name)
    stopped = results.stopped(root, name, seed)
    if stopped is not None:
        given = ["--resume", stopped]
    else:
        given = ["--recipe", name, "--seed", seed]
        given += ["--output", root / f"{name}-seed-{seed}"]
        if args.nondeterministic:
            given += ["--nondeterministic"]
        made_of = "mnist" if recipes.DATA[recipe.data].generated else recipe.data
        file = files.get(recipe.data, files.get(made_of))
        if file is not None:
            given += ["--data", file]
    command = [sys.executable, "-m", "tf_capsops", "train", *map(str, given)]
    package = pathlib.Path(__file__).resolve().parents[2]
    paths = [str(package), os.environ.get("PYTHONPATH", "")]
    paths = os.pathsep.join(filter(None, paths))
    print(f"{name}, seed {seed}", flush=True)
    with callbacks.Hold():  # after Ctrl-C, the process has time to save
        return subprocess.call(command, env={**os.environ, "PYTHONPATH": paths})


def _write(path, entries, others):
    from tf_capsops.cli import runs
    from tf_capsops.experiments import results, variants
    from tf_capsops.machine import machine

    shown = {"op": None, "device": "CPU", "right": False, "source": False}
    content = {
        "command": "tf-capsops report",
        **{key: value for key, value in machine().items() if key != "library"},
        "recipes": entries,
        "variants": others,
        # The form of tables that tools/measured.py takes.
        "tables": {
            "results": {**results.table(entries), **shown},
            "results_variants": {**variants.table(others), **shown},
        },
    }
    make_directory(path.parent)
    with reported(OSError):
        runs.write_json(path, content)
