# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Prints the class of each picture and its score, or writes its mask."""

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
        help="pictures (PNG, JPEG, BMP, GIF, WebP), or folders with such, however "
        "deep; they are resized to what the network takes, and converted to gray or "
        "color; NIfTI volumes for a network that segments volumes",
    )
    parser.add_argument(
        "--top",
        type=options.positive_int,
        metavar="K",
        help="the K classes with the highest scores, the best first (default: as many "
        "as an image shows, which is one for most networks)",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print a JSON list, with one object for each picture",
    )
    group = parser.add_argument_group("networks that segment")
    group.add_argument(
        "--output",
        metavar="DIRECTORY",
        help="where masks go: PNG or NIfTI files with the names and sizes of the "
        "pictures or volumes, numbered if another file has that name (default: masks/ "
        "next to the model)",
    )
    group.add_argument(
        "--tile",
        type=options.positive_int,
        metavar="PIXELS",
        help="read pictures at their own sizes, however large, in tiles of up to this "
        "height and width (default: resize pictures to what the network takes; where "
        "it takes any size, tiles of 1024 for larger pictures; tiles of 128 for "
        "volumes)",
    )
    group.add_argument(
        "--overlays",
        action="store_const",
        const=True,
        help="also draw the masks over their pictures, or over the middle slices of "
        "volumes, in overlays/ next to the masks",
    )


def check(args):
    """Checks what can be checked without TensorFlow; raises a CommandError."""
    runs.find(args.model)
    # If some paths exist, `run` reads them and reports the others.
    if not any(pathlib.Path(path).exists() for path in args.pictures):
        raise CommandError(f"there is no file {args.pictures[0]}")


def run(args):
    """Reads pictures and prints. Returns the exit status, 2 if one is at fault."""
    from tf_capsops.cli import image_sizes, networks, predict_masks
    from tf_capsops.data import pairs

    path = runs.find(args.model)
    model, shape, classes = networks.load(path)
    kind = pairs.PICTURES if len(shape) == 3 else pairs.VOLUMES
    if kind is pairs.PICTURES and shape[2] not in (1, 3):
        raise CommandError(
            f"{path} takes images of {shape[2]} channels, and pictures have 1 or 3"
        )
    networks.warn_of_range(path, "pictures are read as", standardized=False)
    names = networks.class_names(model, path.parent, classes)
    # Listed before any mask is written, so that no mask is read as a picture.
    listed = [(path, _files(path, kind)) for path in args.pictures]
    if networks.segments(model):
        if args.top:
            raise CommandError(f"{path} reads a class for each pixel: no --top")
        output = pathlib.Path(args.output or path.parent / "masks")
        files = [file for _, found in listed for file in found]
        masks = predict_masks.Masks(model, kind, names, files, output, args)
        shape, answers_of = masks.image_shape, masks.write
    else:
        given = [name for name in ("output", "tile", "overlays") if getattr(args, name)]
        if given:
            raise CommandError(f"{path} writes no masks: no --{given[0]}")
        masks = None
        count = min(args.top or getattr(model, "objects", 1), classes)

        def answers_of(files, images):
            return _classes(model, files, images, names, count)

    def check(file, image):
        if not masks and None in shape and not image_sizes.takes(model, image.shape):
            raise ValueError(image_sizes.refusal(model, file, image.shape))

    answers, failed = [], False
    for files, images, faults in _batches(listed, kind, shape, check):
        for fault in faults:
            failed = True
            print(f"tf-capsops predict: error: {fault}", file=sys.stderr, flush=True)
        for answer, said in answers_of(files, images):
            if args.json:
                answers.append(answer)
            else:
                print(said, flush=True)
    if args.json:
        print(json.dumps(answers, indent=2))
    return 2 if failed else 0


def _batches(listed, kind, shape, check):
    """Reads pictures or volumes, a batch at a time.

    Args:
      listed: the paths of files and folders, each with the list of files that it names.
      kind: a `data.pairs.Kind`.
      shape: (height, width, channels) of the images; with a height and width of None,
        each picture keeps its own.
      check: a function that raises a ValueError for a file and an image that the
        network does not take.

    Yields:
      Three lists: the paths of some files, their images, and messages about files that
      cannot be read.
    """
    from tf_capsops import data

    size = 1 if None in shape else _BATCH
    files, images, faults = [], [], []
    for path, found in listed:
        if not found:
            faults.append(f"{path} has no {kind.form}s")
        for file in found:
            try:
                if len(shape) == 3:
                    image = data.read_pictures([file], shape)[0]
                else:
                    image = _volume(file, shape, kind)
                check(file, image)
                images.append(image)
                files.append(str(file))
            except ValueError as error:
                faults.append(str(error))
            if len(files) == size or faults:
                yield files, images, faults
                files, images, faults = [], [], []
    yield files, images, faults


def _volume(file, shape, kind):
    """Returns a NIfTI volume.

    Raises:
      ValueError: if it is none, or has other channels than the network takes.
    """
    from tf_capsops import data

    if not kind.stem(file):
        raise ValueError(f"{file} is no .nii or .nii.gz file, which the network reads")
    volume = data.read_volume(file)
    if volume.shape[-1] != shape[-1]:
        raise ValueError(
            f"{file} has {volume.shape[-1]} channels, and the network takes {shape[-1]}"
        )
    return volume


def _files(path, kind):
    """Returns the files that a path names: itself, or all images in a folder."""
    path = pathlib.Path(path)
    return _within(path, kind) if path.is_dir() else [path]


def _within(folder, kind, above=()):
    """Returns the images in a folder and those below it, without hidden ones.

    `above` has the folders that contain it, which links may lead back to.
    """
    from tf_capsops.data import folders

    found, above = [], (*above, folder.resolve())
    for path in folders.visible(folder):
        if path.is_dir():
            if path.resolve() not in above:  # no link leads back
                found += _within(path, kind, above)
        elif kind.stem(path):
            found.append(path)
    return found


def _classes(model, files, images, names, count):
    """Yields the answer to print for each picture, for JSON and as text."""
    for file, best in zip(files, _best(model, images, names, count)):
        shown = (f"{each['class']} {each['score']:.4f}" for each in best)
        yield {"file": file, **best[0], "top": best}, f"{file}: {', '.join(shown)}"


def _best(model, images, names, count):
    """Returns the `count` classes of the highest scores for each image, as dicts."""
    import numpy as np

    from tf_capsops.cli import evaluation

    if not images:
        return []
    scores = model.predict_on_batch(np.stack(images))
    scores = scores["lengths"] if isinstance(scores, dict) else scores
    evaluation.require_numbers(scores)
    ranked = np.argsort(-np.asarray(scores), axis=1, kind="stable")[:, :count]
    return [
        [{"class": names[each], "score": float(row[each])} for each in best]
        for row, best in zip(scores, ranked)
    ]
