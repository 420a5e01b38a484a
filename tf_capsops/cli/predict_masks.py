# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Writes the masks that a network which segments reads in pictures."""

import pathlib

import numpy as np

from tf_capsops import data
from tf_capsops.cli import overlays, tiles
from tf_capsops.data import masks
from tf_capsops.errors import CommandError, make_directory, reported


class Masks:
    """Reads pictures and writes masks, of their sizes and with the greys of training.

    Args:
      model: a network that segments.
      names: of its classes.
      files: the paths of all pictures.
      output: the folder of the masks.
      args: `tile` and `overlays` of `tf-capsops predict`.

    Attributes:
      image_shape: (height, width, channels) that `write` takes, None for any.

    Raises:
      CommandError: if a mask would replace a picture, or the folder cannot be made.
    """

    def __init__(self, model, names, files, output, args):
        self._model = tiles.opened(model) if args.tile else model
        self._tile, self._names, self._draws = args.tile, names, args.overlays
        self._greys = np.array(masks.greys_of(names), np.uint8)
        self._targets = _targets(files, output)
        self._check_targets()
        self.image_shape = tuple(self._model.input_shape[1:])
        make_directory(output / "overlays" if self._draws else output)

    def _check_targets(self):
        for target in self._targets.values():
            for each in (target, _overlay(target)) if self._draws else (target,):
                if each.resolve() in self._targets:
                    raise CommandError(
                        f"{each} is one of the pictures, and a mask would replace it: "
                        "give another --output"
                    )

    def write(self, files, images):
        """Writes masks, and yields what is printed of each, for JSON and as text."""
        for file, image in zip(files, images):
            read = tiles.classes_of(self._model, image, self._tile)
            path = self._targets[pathlib.Path(file).resolve()]
            classes = masks.like(file, read)
            with reported(OSError):
                masks.write_png(path, self._greys[classes][..., np.newaxis])
                if self._draws:
                    self._draw(path, file, classes)
            shares = np.bincount(read.ravel(), minlength=len(self._names)) / read.size
            shown = {
                name: float(share) for name, share in zip(self._names, shares) if share
            }
            text = ", ".join(f"{name} {share:.2%}" for name, share in shown.items())
            yield {"file": file, "mask": str(path), "classes": shown}, f"{path}: {text}"

    def _draw(self, path, file, classes):
        shape = (None, None, self.image_shape[-1])
        (picture,) = data.read_pictures([file], shape)
        masks.write_png(_overlay(path), overlays.overlaid(picture, classes))


def _overlay(target):
    """Returns the path of a mask that is drawn over its picture."""
    return target.parent / "overlays" / target.name


def _targets(files, output):
    """Returns the path of the mask of each picture, by the picture's absolute path.

    It has the picture's name, with a number where another one has that name.
    """
    targets = {}
    for file in files:
        name, number = file.stem, 1
        while output / f"{name}.png" in targets.values():
            number += 1
            name = f"{file.stem}-{number}"
        targets.setdefault(file.resolve(), output / f"{name}.png")
    return targets
