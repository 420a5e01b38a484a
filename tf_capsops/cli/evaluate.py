# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Prints the test accuracy of a trained model and its confusion matrix."""

import json

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
    outputs = model.predict(dataset.x_test, batch_size=args.batch_size, verbose=0)
    lengths = _scores(outputs)
    labels = lengths.argmax(axis=1)
    confusion = confusion_matrix(dataset.y_test, labels, lengths.shape[1])
    images = len(dataset.y_test)
    wrong = images - int(np.trace(confusion))
    result = {
        "data": dataset.name,
        "images": images,
        "wrong": wrong,
        "accuracy": 1 - wrong / images,
        "error": wrong / images,
        "confusion": confusion.tolist(),
    }
    if isinstance(outputs, dict):
        squares = np.square(outputs["reconstruction"] - dataset.x_test)
        result["reconstruction_rmse"] = float(np.sqrt(squares.mean()))
    if args.json:
        print(json.dumps(result))
    else:
        _print(result)
    return 0


def scores(model, images, batch_size=256):
    """Returns the scores that a classifier gives images, `[images, classes]`."""
    return _scores(model.predict(images, batch_size=batch_size, verbose=0))


def _scores(outputs):
    return outputs["lengths"] if isinstance(outputs, dict) else outputs


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
    print("confusion matrix (rows: label, columns: prediction)")
    confusion = result["confusion"]
    width = max(len(str(count)) for row in confusion for count in row) + 1
    width = max(width, len(str(len(confusion) - 1)) + 1)
    print(" " * 5 + "".join(f"{name:{width}}" for name in range(len(confusion))))
    for name, row in enumerate(confusion):
        counts = "".join(f"{count or '.':>{width}}" for count in row)
        print(f"{name:5}{counts}")
