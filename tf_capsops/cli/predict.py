# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Says what is on pictures: a class and its score for each."""

import json
import pathlib
import sys

from tf_capsops import options
from tf_capsops.cli import runs
from tf_capsops.errors import CommandError

_BATCH = 64  # pictures that are classified at a time


def add_arguments(parser):
    """Adds the arguments of `tf-capsops predict`."""
    parser.add_argument(
        "model", metavar="RUN_OR_MODEL", help="a run's directory or a .keras file"
    )
    parser.add_argument(
        "pictures",
        metavar="FILE|FOLDER",
        nargs="+",
        help="PNG and JPEG pictures, or folders with such, however deep; they are "
        "resized to what the network takes, and converted to grey or colour",
    )
    parser.add_argument(
        "--top",
        type=options.positive_int,
        metavar="K",
        help="the K classes of the highest scores, the best first (default: as many "
        "as an image shows, which is one for most networks)",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print a JSON list, with one object for each picture",
    )


def check(args):
    """Checks what can be checked without TensorFlow; raises a CommandError."""
    runs.find(args.model)


def run(args):
    """Classifies and prints. Returns the exit status, 2 if a picture is at fault."""
    from tf_capsops.cli import networks

    path = runs.find(args.model)
    model, shape, classes = networks.load(path)
    if shape[2] not in (1, 3):
        raise CommandError(
            f"{path} takes images of {shape[2]} channels, and pictures have 1 or 3"
        )
    names = runs.class_names(path.parent, classes)
    count = min(args.top or getattr(model, "objects", 1), classes)
    answers, failed = [], False
    for files, images, faults in _batches(args.pictures, shape):
        for fault in faults:
            failed = True
            print(f"tf-capsops predict: error: {fault}", file=sys.stderr, flush=True)
        for file, best in zip(files, _best(model, images, names, count)):
            if args.json:
                answers.append({"file": file, **best[0], "top": best})
            else:
                shown = (f"{each['class']} {each['score']:.4f}" for each in best)
                print(f"{file}: {', '.join(shown)}", flush=True)
    if args.json:
        print(json.dumps(answers, indent=2))
    return 2 if failed else 0


def _batches(given, shape):
    """Reads pictures, a batch at a time.

    Args:
      given: the paths of files and folders.
      shape: (height, width, channels) of the images; a height and width of None are
        those of each picture.

    Yields:
      The paths of some files, the images `[B, H, W, C]` that are in them, and what is
      wrong with others.
    """
    from tf_capsops import data

    size = 1 if None in shape else _BATCH
    files, images, faults = [], [], []
    for path in map(pathlib.Path, given):
        found = _within(path) if path.is_dir() else [path]
        if not found:
            faults.append(f"{path} has no PNG or JPEG pictures")
        for file in found:
            try:
                images.append(data.read_pictures([file], shape)[0])
                files.append(str(file))
            except ValueError as error:
                faults.append(str(error))
            if len(files) == size or faults:
                yield files, images, faults
                files, images, faults = [], [], []
    yield files, images, faults


def _within(folder):
    """Returns the pictures in a folder and those below it, without hidden ones."""
    from tf_capsops.data import folders

    found = []
    for path in folders.visible(folder):
        if path.is_dir():
            found += _within(path)
        elif folders.is_picture(path):
            found.append(path)
    return found


def _best(model, images, names, count):
    """Returns the `count` classes of the highest scores for each image, as dicts."""
    import numpy as np

    if not images:
        return []
    scores = model.predict_on_batch(np.stack(images))
    scores = scores["lengths"] if isinstance(scores, dict) else scores
    ranked = np.argsort(-np.asarray(scores), axis=1, kind="stable")[:, :count]
    return [
        [{"class": names[each], "score": float(row[each])} for each in best]
        for row, best in zip(scores, ranked)
    ]
