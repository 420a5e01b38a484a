# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Prints the test accuracy and the confusion matrix of a trained model."""

import json
import os
import pathlib

from tf_capsops import options
from tf_capsops.cli import runs
from tf_capsops.errors import CommandError, make_directory, reported, require

_DRAWN = 4  # number of images drawn of the first ones, and of the worst ones


def add_arguments(parser):
    """Adds the arguments of `tf-capsops evaluate`."""
    options.add_run(parser, "what to evaluate on")
    parser.add_argument(
        "--batch-size",
        type=options.positive_int,
        help="images that are read at a time (default: 256, or 8 with masks)",
    )
    parser.add_argument(
        "--output",
        metavar="DIRECTORY",
        help="where confusion.png and confusion.json go, or with masks "
        "segmentation.json and overlays.png (default: next to the model; the name of "
        "data other than the run's is added to theirs)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def check(args):
    """Checks what can be checked without TensorFlow; raises a CommandError."""
    require("matplotlib")
    runs.find(args.model)


def run(args):
    """Evaluates and reports. Returns the exit status."""
    from tf_capsops.cli import gone, networks

    model, dataset, directory = networks.open_model(
        args.model, args.data, skip_broken=args.skip_broken, takes_masks=True
    )
    output = Output(args, dataset, directory)
    evaluated = _segmentation if dataset.has_masks else _classification
    with gone.reported("and evaluate again"):
        evaluated(args, model, dataset, directory, output)
    return 0


class Output:
    """Writes the files of a command that judges a network.

    They go to `--output`, or to the directory of the model. In the latter case, their
    names end with the model's name if it is not the run's `model.keras`, and with the
    data's name if it is not the run's data.

    Args:
      args: `model`, `data`, `output` and `json`, as they were parsed.
      dataset: the data that the network is judged on.
      directory: the network's directory.

    Raises:
      CommandError: if the directory cannot be made or written to.
    """

    def __init__(self, args, dataset, directory):
        from tf_capsops import data

        self._prints_json = args.json
        self._directory, self._end = directory, ""
        if args.output:
            self._directory = pathlib.Path(args.output)
            make_directory(self._directory)
            if not os.access(self._directory, os.W_OK):
                raise CommandError(f"{self._directory} may not be written to")
            return
        own, path = runs.read_config(directory).get("data"), runs.find(args.model)
        if path.name != runs.MODEL and (directory / runs.MODEL).is_file():
            self._end += f"-{path.stem}"
        if own and args.data and data.absolute(args.data) != own:
            self._end += f"-{dataset.name}"

    def write(self, files):
        """Writes files, if that is allowed, and says so.

        Args:
          files: functions that write a file to a path, by the file's name.
        """
        paths = [self._directory / name for name in files]
        paths = [path.with_stem(path.stem + self._end) for path in paths]
        names = ", ".join(path.name for path in paths)
        said = f"{self._directory} may not be written to: no {names}"
        if os.access(self._directory, os.W_OK):
            with reported(OSError):
                for path, write in zip(paths, files.values()):
                    write(path)
            said = f"wrote {self._directory}: {names}"
        if not self._prints_json:
            print(said)


def _classification(args, model, dataset, directory, output):
    """Evaluates a network that classifies."""
    from tf_capsops.cli import evaluation, plots

    scores, shown, rmse = evaluation.measure(
        model, dataset.test, args.batch_size or 256
    )
    evaluation.require_numbers(scores)
    if dataset.objects > 1:
        found = shown * evaluation.multi_hot(scores, dataset.objects)
        wrong = int((found.sum(axis=1) < dataset.objects).sum())
        counts = zip(shown.sum(axis=0), found.sum(axis=0))
        counted = {"classes": [[int(x), int(y)] for x, y in counts]}
    else:
        predicted = scores.argmax(axis=1)
        wrong = int((predicted != shown).sum())
        matrix = evaluation.confusion_matrix(shown, predicted, scores.shape[1])
        counted = {"confusion": matrix.tolist()}
    images = len(dataset.test)
    result = {
        "data": dataset.name,
        "images": images,
        "wrong": wrong,
        "accuracy": 1 - wrong / images,
        "error": wrong / images,
        **counted,
    }
    if rmse is not None:
        result["reconstruction_rmse"] = rmse
    names = evaluation.names(dataset, directory, scores.shape[1])
    if dataset.objects == 1:
        result["class_names"] = names
        result.update(evaluation.precision_and_recall(matrix))
    print(json.dumps(result) if args.json else _text(result, names), flush=True)
    if dataset.objects == 1:
        output.write(
            {
                "confusion.json": lambda path: runs.write_json(path, result),
                "confusion.png": lambda path: plots.confusion(matrix, names, path),
            }
        )


def _segmentation(args, model, dataset, directory, output):
    """Evaluates a network that segments."""
    from tf_capsops.cli import evaluation, image_sizes

    batch_size = args.batch_size or 8
    matrix, dice = evaluation.count_pixels(model, dataset.test, batch_size)
    overlaps = evaluation.overlaps(matrix)
    names = evaluation.names(dataset, directory, len(matrix))
    result = {
        "data": dataset.name,
        "images": len(dataset.test),
        "pixel_accuracy": float(matrix.trace() / matrix.sum()),
        **{f"mean_{name}": evaluation.mean(each) for name, each in overlaps.items()},
        "class_names": names,
        **overlaps,
        "pixels": matrix.sum(axis=1).tolist(),
        "confusion": matrix.tolist(),
    }
    said = image_sizes.words(dataset.image_shape)
    print(
        json.dumps(result) if args.json else _text_of_masks(result, *said), flush=True
    )
    output.write(
        {
            "segmentation.json": lambda path: runs.write_json(path, result),
            "overlays.png": lambda path: _draw(model, dataset, dice, names, path),
        }
    )


def _draw(model, dataset, dice, names, path):
    """Draws the first test images, and the worst of the others, with their masks."""
    from tf_capsops.cli import overlays
    from tf_capsops.metrics import classes_read

    everything = range(len(dice))
    worst = sorted(everything[_DRAWN:], key=dice.__getitem__)[:_DRAWN]
    numbers = [*everything[:_DRAWN], *worst]
    samples, read = [], []
    for number in numbers:
        (image,), (mask,) = (each.numpy() for each in dataset.test.take([number]))
        samples.append((image, mask[..., 0], number))
        read.append(classes_read(model.predict_on_batch(image[None])[0]).numpy())
    overlays.draw(samples, read, [dice[each] for each in numbers], names, path)


def _text_of_masks(result, kind, parts):
    """Returns the text that is printed for masks.

    Args:
      result: the content of `segmentation.json`.
      kind, parts: what the images are called, and what they consist of.
    """
    names = result["class_names"]
    wide = max(5, *map(len, names))
    lines = [
        f"{result['data']}: {result['images']} test {kind}",
        f"{parts} right {result['pixel_accuracy']:.2%}",
        f"Dice {result['mean_dice']:.4f}, IoU {result['mean_iou']:.4f}, means of "
        "classes",
        f"{'class':{wide}}      {parts}    Dice     IoU",
    ]
    for name, pixels, *shares in zip(
        names, result["pixels"], result["dice"], result["iou"]
    ):
        shown = ("-" if share is None else f"{share:.4f}" for share in shares)
        dice, iou = (f"{each:>8}" for each in shown)
        lines.append(f"{name:{wide}}{pixels:12}{dice}{iou}")
    return "\n".join(lines)


def _text(result, names):
    """Returns the text that is printed for a result."""
    lines = [
        f"{result['data']}: {result['images']} test images",
        f"accuracy {result['accuracy']:.2%}",
        f"error    {result['error']:.2%} ({result['wrong']} wrong)",
    ]
    if "reconstruction_rmse" in result:
        rmse = result["reconstruction_rmse"]
        lines.append(f"reconstruction, root mean square error: {rmse:.4f}")
    # Numbers are aligned to the right, names to the left.
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
    # Columns are headed by numbers, so rows with names show their numbers, too.
    first = names
    if names != heads:
        first = [f"{head:>{len(heads[-1])}} {name}" for head, name in zip(heads, names)]
    width, wide = max(width, len(heads[-1]) + 1), max(5, *map(len, first))
    lines.append(" " * wide + "".join(f"{head:>{width}}" for head in heads))
    for name, row in zip(first, confusion):
        counts = "".join(f"{count or '.':>{width}}" for count in row)
        lines.append(f"{name:{side}{wide}}{counts}")
    return "\n".join(lines)
