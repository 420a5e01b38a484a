# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Writes the masks that a network which segments reads in pictures and volumes."""

import os
import pathlib
import sys

import numpy as np

from tf_capsops import data
from tf_capsops.cli import overlays, tiles
from tf_capsops.data import masks, pairs, volumes
from tf_capsops.errors import CommandError, make_directory, reported


class Masks:
    """Writes masks of their images' sizes.

    They have the values that the training masks have.

    Args:
      model: a network that segments.
      kind: a `pairs.Kind`, of the images.
      names: of its classes.
      files: the paths of all images.
      output: the folder of the masks.
      args: `tile` and `overlays` of `tf-capsops predict`.

    Attributes:
      image_shape: (height, width, channels) that `write` takes, None for any; or the
        same of volumes, which keep their sizes.

    Raises:
      CommandError: if a mask would replace an image or a true mask, there are too many
        classes, the folder cannot be made, or a package is missing that reads volumes.
    """

    def __init__(self, model, kind, names, files, output, args):
        self._are_volumes = kind is pairs.VOLUMES
        if self._are_volumes:
            with reported(ImportError):
                volumes.library()
        opens = args.tile or self._are_volumes or None in model.input_shape[1:-1]
        self._model = tiles.opened(model) if opens else model
        self._tile, self._names, self._draws = args.tile, names, args.overlays
        if len(names) > pairs.VALUES:
            raise CommandError(f"{len(names)} classes do not fit into a mask of 8 bits")
        self._values = np.array(pairs.values(names), np.uint8)
        self._kind, self._targets = kind, _targets(kind, files, output)
        _check_output(files, output)
        self._check_targets()
        self._warned = False
        self.image_shape = tuple(self._model.input_shape[1:])
        make_directory(output / "overlays" if self._draws else output)

    def _check_targets(self):
        for target in self._targets.values():
            written = (target, self._overlay(target)) if self._draws else (target,)
            for each in written:
                if each.resolve() in self._targets:
                    raise CommandError(
                        f"{each} is one of the {self._kind.name}s, and a mask would "
                        "replace it: give another --output"
                    )

    def _overlay(self, target):
        """Returns the path of a mask that is drawn over its image."""
        return target.parent / "overlays" / f"{self._kind.stem(target)}.png"

    def write(self, files, images):
        """Writes masks, and yields what is printed of each, for JSON and as text."""
        for file, image in zip(files, images):
            self._warn_of_seams(image)
            read = tiles.classes_of(self._model, image, self._tile)
            path = self._targets[pathlib.Path(file).resolve()]
            with reported(OSError):
                if self._are_volumes:
                    volumes.write_mask(path, self._values[read], like=file)
                    self._draw(path, overlays.middle(image), overlays.middle(read))
                else:
                    classes = masks.like(file, read)
                    masks.write_png(path, self._values[classes][..., np.newaxis])
                    self._draw(path, file, classes)
            shares = np.bincount(read.ravel(), minlength=len(self._names)) / read.size
            shown = {
                name: float(share) for name, share in zip(self._names, shares) if share
            }
            text = ", ".join(f"{name} {share:.2%}" for name, share in shown.items())
            answer = {"file": file, "mask": str(path), "classes": shown}
            yield answer, f"{file} -> {path}: {text}"

    def _warn_of_seams(self, image):
        """Warns once of tiles that are too small for masks without seams."""
        size = tiles.seamless(self._model)
        tile = tiles.tile_of(self._model, self._tile)
        if not self._warned and tile < size and max(image.shape[:-1]) > tile:
            self._warned = True
            print(
                f"warning: a tile of {tile} pixels shows less than the network sees "
                f"around each pixel, and masks may have seams: --tile {size} has none",
                file=sys.stderr,
            )

    def _draw(self, target, image, classes):
        """Draws a mask over an image, `[H, W, C]` or the path of a picture."""
        if not self._draws:
            return
        if isinstance(image, str):
            shape = (None, None, self.image_shape[-1])
            (image,) = data.read_pictures([image], shape)
        masks.write_png(self._overlay(target), overlays.overlaid(image, classes))


def _check_output(files, output):
    """Raises a CommandError if the folder of the masks is that of true masks."""
    for file in files:
        for images in pathlib.Path(os.path.abspath(file)).parents:
            masks = images.with_name("masks") if images.name == "images" else None
            if masks and masks.resolve() == output.resolve():
                raise CommandError(
                    f"{output} has the masks of the pictures in {images}: give "
                    "another --output"
                )


def _targets(kind, files, output):
    """Returns the path of the mask of each image, by the image's absolute path.

    It has the image's name, numbered if another one has that name.
    """
    suffix = ".png" if kind is pairs.PICTURES else ".nii.gz"
    targets, taken = {}, set()
    for file in files:
        if file.resolve() in targets:
            continue
        stem, number = kind.stem(file) or file.stem, 1
        name = stem
        while name in taken:
            number += 1
            name = f"{stem}-{number}"
        taken.add(name)
        targets[file.resolve()] = output / f"{name}{suffix}"
    return targets
