# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Prints the test accuracy of a trained model, and what it takes for what."""

import json
import math
import os
import pathlib

import numpy as np

from tf_capsops.cli import arguments
from tf_capsops.cli.errors import make_directory, reported, require


def add_arguments(parser):
    """Adds the arguments of `tf-capsops evaluate`."""
    arguments.add_run(parser, "what to evaluate on")
    parser.add_argument(
        "--batch-size",
        type=arguments.positive_int,
        default=256,
        help="images that are classified at a time (default: %(default)s)",
    )
    parser.add_argument(
        "--output",
        metavar="DIRECTORY",
        help="where confusion.png and confusion.json go (default: next to the model)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args):
    """Evaluates and reports. Returns the exit status."""
    require("matplotlib")
    from tf_capsops.cli import confusion, runs

    model, dataset, directory = runs.open_model(
        args.model, args.data, skip_broken=args.skip_broken
    )
    scores, shown, rmse = measure(model, dataset.test, args.batch_size)
    if dataset.objects > 1:
        found = shown * multi_hot(scores, dataset.objects)
        wrong = int(np.count_nonzero(found.sum(axis=1) < dataset.objects))
        counted = {"classes": np.stack([shown.sum(0), found.sum(0)], 1)}
    else:
        predicted = scores.argmax(axis=1)
        wrong = int(np.count_nonzero(predicted != shown))
        matrix = confusion_matrix(shown, predicted, scores.shape[1])
        counted = {"confusion": matrix}
    images = len(dataset.test)
    result = {
        "data": dataset.name,
        "images": images,
        "wrong": wrong,
        "accuracy": 1 - wrong / images,
        "error": wrong / images,
        **{name: counts.astype(int).tolist() for name, counts in counted.items()},
    }
    if rmse is not None:
        result["reconstruction_rmse"] = rmse
    names = confusion.names(dataset, directory, scores.shape[1])
    if dataset.objects == 1:
        result["class_names"] = names
        result.update(confusion.precision_and_recall(matrix))
    print(json.dumps(result) if args.json else _text(result, names), flush=True)
    if dataset.objects == 1:
        output = pathlib.Path(args.output) if args.output else directory
        make_directory(output)
        if args.output or os.access(output, os.W_OK):
            with reported(OSError):
                runs.write_json(output / "confusion.json", result)
                confusion.draw(matrix, names, output / "confusion.png")
            said = f"wrote {output}: confusion.json, confusion.png"
        else:
            said = f"{output} may not be written to: no confusion.json, confusion.png"
        if not args.json:
            print(said)
    return 0


def scores(model, samples, batch_size=256):
    """Returns the scores that a classifier gives images, `[images, classes]`."""
    return measure(model, samples, batch_size)[0]


def measure(model, samples, batch_size=256):
    """Has a classifier classify, and reconstruct if it can, a batch at a time.

    Args:
      model: a Keras model from images to scores, or to a dict of `"lengths"` and
        `"reconstruction"`.
      samples: a `data.Samples`.
      batch_size: images a batch.

    Returns:
      The scores, `[images, classes]`; the labels, `[images]`, or `[images, classes]`
      with a 1 for each class that is there; and the root of the reconstructions' mean
      square error, which is None for a model without any.
    """
    scores, labels, squares, pixels = [], [], 0.0, 0
    for images, targets in samples.batches(batch_size):
        outputs = model.predict_on_batch(images)
        wanted = images
        if isinstance(targets, dict):
            targets, wanted = targets["lengths"], targets["reconstruction"]
        if isinstance(outputs, dict):
            errors = outputs["reconstruction"] - wanted.numpy()
            squares += float(np.square(errors, dtype=np.float64).sum())
            pixels += errors.size
            outputs = outputs["lengths"]
        scores.append(outputs)
        labels.append(targets)
    rmse = math.sqrt(squares / pixels) if pixels else None
    return np.concatenate(scores), np.concatenate(labels), rmse


def multi_hot(scores, objects):
    """Returns a 1 for each of so many highest scores of a row, and 0 for the others."""
    highest = np.argsort(-scores, axis=1, kind="stable")[:, :objects]
    return np.eye(scores.shape[1])[highest].sum(axis=1)


def confusion_matrix(labels, predictions, classes):
    """Counts `[classes, classes]`: rows are labels, columns predictions."""
    pairs = labels.astype(np.int64) * classes + predictions
    return np.bincount(pairs, minlength=classes**2).reshape(classes, classes)


def _text(result, names):
    """Returns what is printed of a result."""
    lines = [
        f"{result['data']}: {result['images']} test images",
        f"accuracy {result['accuracy']:.2%}",
        f"error    {result['error']:.2%} ({result['wrong']} wrong)",
    ]
    if "reconstruction_rmse" in result:
        rmse = result["reconstruction_rmse"]
        lines.append(f"reconstruction, root mean square error: {rmse:.4f}")
    # Numbers stand to the right of their columns, names to the left.
    heads = [str(number) for number in range(len(names))]
    wide, side = max(5, *map(len, names)), ">" if names == heads else "<"
    if "classes" in result:
        lines.append(f"{'class':{wide}}  images  found")
        for name, (images, found) in zip(names, result["classes"]):
            lines.append(f"{name:{side}{wide}}{images:8}{found:7}")
        return "\n".join(lines)
    lines.append(f"{'class':{wide}}  images  precision   recall")
    rows = zip(names, result["confusion"], result["precision"], result["recall"])
    for name, row, *shares in rows:
        shown = ("-" if share is None else f"{share:.2%}" for share in shares)
        precision, recall = (f"{each:>9}" for each in shown)
        lines.append(f"{name:{side}{wide}}{sum(row):8}{precision:>11}{recall}")
    lines.append("confusion matrix (rows: label, columns: prediction)")
    confusion = result["confusion"]
    width = max(len(str(count)) for row in confusion for count in row) + 1
    # Where names are longer than their numbers, the columns have the numbers.
    first = names
    if names != heads:
        first = [f"{head:>{len(heads[-1])}} {name}" for head, name in zip(heads, names)]
    width, wide = max(width, len(heads[-1]) + 1), max(5, *map(len, first))
    lines.append(" " * wide + "".join(f"{head:>{width}}" for head in heads))
    for name, row in zip(first, confusion):
        counts = "".join(f"{count or '.':>{width}}" for count in row)
        lines.append(f"{name:{side}{wide}}{counts}")
    return "\n".join(lines)
