# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Prints the test accuracy of a trained model and its confusion matrix."""

import json
import math

import numpy as np

from tf_capsops.cli import arguments


def add_arguments(parser):
    """Adds the arguments of `tf-capsops evaluate`."""
    arguments.add_run(parser, "what to evaluate on")
    parser.add_argument("--batch-size", type=arguments.positive_int, default=256)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args):
    """Evaluates and reports. Returns the exit status."""
    from tf_capsops.cli import runs

    model, dataset, _ = runs.open_model(args.model, args.data)
    scores, shown, rmse = measure(model, dataset.test, args.batch_size)
    if dataset.objects > 1:
        found = shown * multi_hot(scores, dataset.objects)
        wrong = int(np.count_nonzero(found.sum(axis=1) < dataset.objects))
        counted = {"classes": np.stack([shown.sum(0), found.sum(0)], 1)}
    else:
        predicted = scores.argmax(axis=1)
        wrong = int(np.count_nonzero(predicted != shown))
        counted = {"confusion": confusion_matrix(shown, predicted, scores.shape[1])}
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
    if args.json:
        print(json.dumps(result))
    else:
        _print(result)
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


def _print(result):
    print(f"{result['data']}: {result['images']} test images")
    print(f"accuracy {result['accuracy']:.2%}")
    print(f"error    {result['error']:.2%} ({result['wrong']} wrong)")
    if "reconstruction_rmse" in result:
        rmse = result["reconstruction_rmse"]
        print(f"reconstruction, root mean square error: {rmse:.4f}")
    if "classes" in result:
        print("class  images  found")
        for name, (images, found) in enumerate(result["classes"]):
            print(f"{name:5}{images:8}{found:7}")
        return
    print("confusion matrix (rows: label, columns: prediction)")
    confusion = result["confusion"]
    width = max(len(str(count)) for row in confusion for count in row) + 1
    width = max(width, len(str(len(confusion) - 1)) + 1)
    print(" " * 5 + "".join(f"{name:{width}}" for name in range(len(confusion))))
    for name, row in enumerate(confusion):
        counts = "".join(f"{count or '.':>{width}}" for count in row)
        print(f"{name:5}{counts}")
