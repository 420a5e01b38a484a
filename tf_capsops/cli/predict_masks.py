# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Writes the masks that a segmenting network predicts for pictures and volumes."""

import functools
import os
import pathlib
import sys

import numpy as np

from tf_capsops import data
from tf_capsops.cli import kept, overlays, tiles
from tf_capsops.data import masks, pairs, volumes
from tf_capsops.errors import CommandError, make_directory, reported


class Masks:
    """Writes masks that have the sizes of their images.

    Pixels have the values of the training masks. An existing file with another mask is
    kept, and the new file's name gets a number.

    Args:
      model: a network that segments.
      kind: a `pairs.Kind`, of the images.
      names: names of its classes.
      files: the paths of all images.
      output: the folder for the masks.
      args: `tile` and `overlays` of `tf-capsops predict`.

    Attributes:
      image_shape: (height, width, channels) of images that `write` takes, with None for
        any; for volumes (depth, height, width, channels).

    Raises:
      CommandError: if a mask would replace an image or be written among true masks,
        there are too many classes, the folder cannot be made, or a package that reads
        volumes is missing.
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
        self._kind, self._output, self._written = kind, output, {}
        self._suffix = ".png" if kind is pairs.PICTURES else ".nii.gz"
        _check_output(files, output, kind)
        self._check_images(files)
        self._warned = False
        self.image_shape = tuple(self._model.input_shape[1:])
        make_directory(output / "overlays" if self._draws else output)

    def _check_images(self, files):
        """Raises a CommandError if a mask or overlay would replace an image."""
        images = {file.resolve() for file in files}
        for file in files:
            for form in self._forms():
                each = self._output / form.format(self._stem(file))
                if each.resolve() in images:
                    raise CommandError(
                        f"{each} is one of the {self._kind.name}s, and a mask would "
                        "replace it: give another --output"
                    )

    def _stem(self, path):
        return self._kind.stem(path) or path.stem

    def _forms(self):
        """Returns the paths of a mask and of its overlay, in which {} is the name."""
        return [f"{{}}{self._suffix}", *["overlays/{}.png"] * bool(self._draws)]

    def write(self, files, images):
        """Writes masks, and yields the answer to print for each, for JSON and text."""
        for file, image in zip(files, images):
            self._warn_of_seams(image)
            read = tiles.classes_of(self._model, image, self._tile)
            with reported(OSError):
                if self._are_volumes:
                    values = self._values[read]
                    write = functools.partial(
                        volumes.write_mask, values=values, like=file
                    )
                    shown = overlays.middle(image), overlays.middle(read)
                else:
                    classes = masks.like(file, read)
                    gray = self._values[classes][..., np.newaxis]
                    write = functools.partial(masks.write_png, image=gray)
                    shown = file, classes
                draw = functools.partial(self._draw, *shown)
                path = self._keep(pathlib.Path(file), write, draw)
            shares = np.bincount(read.ravel(), minlength=len(self._names)) / read.size
            shown = {
                name: float(share) for name, share in zip(self._names, shares) if share
            }
            text = ", ".join(f"{name} {share:.2%}" for name, share in shown.items())
            answer = {"file": file, "mask": str(path), "classes": shown}
            yield answer, f"{file} -> {path}: {text}"

    def _keep(self, file, *draws):
        """Writes a mask with the first of `draws`, and returns its path."""
        image, taken = file.resolve(), self._written.values()
        if image not in self._written:  # an image may be named twice
            draws = dict(zip(self._forms(), draws))
            self._written[image], _ = kept.write(
                draws, self._output, self._stem(file), taken
            )
        return self._written[image]

    def _warn_of_seams(self, image):
        """Warns once if tiles are too small for masks without seams."""
        size = tiles.seamless(self._model)
        tile = tiles.tile_of(self._model, self._tile)
        if not self._warned and tile < size and max(image.shape[:-1]) > tile:
            self._warned = True
            parts = "voxels" if self._are_volumes else "pixels"
            print(
                f"warning: a tile of {tile} {parts} shows less than the network sees "
                f"around each pixel, and masks may have seams: --tile {size} has none",
                file=sys.stderr,
            )

    def _draw(self, image, classes, target):
        """Draws a mask over an image, `[H, W, C]` or the path of a picture."""
        if isinstance(image, str):
            shape = (None, None, self.image_shape[-1])
            (image,) = data.read_pictures([image], shape)
        masks.write_png(target, overlays.overlaid(image, classes))


def _check_output(files, output, kind):
    """Raises a CommandError if the masks would go into a folder of true masks.

    Such a folder is called `masks` and is next to an `images` folder, either as given
    or behind links.
    """
    output = pathlib.Path(os.path.abspath(output))
    read = (pathlib.Path(os.path.abspath(file)).parents for file in files)
    read = {each for parents in read for each in parents if each.name == "images"}
    true = {each.with_name("masks").resolve(): each for each in read}
    behind = output.resolve()  # the folder that links lead to
    for folder in (output, *output.parents, behind, *behind.parents):
        images = true.get(folder)
        if folder.name == "masks" and (folder.parent / "images").is_dir():
            images = folder.parent / "images"
        if images:
            raise CommandError(
                f"{folder} has the masks of the {kind.name}s in {images}: give another "
                "--output"
            )
