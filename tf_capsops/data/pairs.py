# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Finds images and their masks in a folder, and the classes that masks show."""

import dataclasses
import pathlib

import numpy as np

from tf_capsops.data import folders

VALUES = 256  # number of values that a mask may have


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of image files.

    Args:
      name: the word for one image, such as `"picture"`.
      form: the word with the format.
      suffixes: suffixes of the files' names, in lower case.
      value: the word for a number in a mask.
    """

    name: str
    form: str
    suffixes: tuple
    value: str

    def stem(self, path):
        """Returns a file's name without its suffix; None if it is of another kind."""
        for suffix in self.suffixes:
            if path.name.lower().endswith(suffix):
                return path.name[: -len(suffix)]
        return None


PICTURES = Kind("picture", f"{folders.FORMS} picture", folders.SUFFIXES, "gray")
VOLUMES = Kind("volume", "NIfTI volume", (".nii", ".nii.gz"), "label")


def are_in(folder):
    """Whether a folder has images and masks, or `train` or `test` with both."""
    return any(
        all((part / name).is_dir() for name in ("images", "masks"))
        for part in _parts(folder)
    )


def kind_in(folder):
    """Returns the `Kind` of the images in a folder that has masks."""
    for part in _parts(folder):
        images = part / "images"
        if images.is_dir() and any(map(VOLUMES.stem, folders.visible(images))):
            return VOLUMES
    return PICTURES


def check(folder):
    """Raises a ValueError if a folder has images for masks, and no masks."""
    for part in _parts(folder):
        if (part / "images").is_dir() and not (part / "masks").is_dir():
            raise ValueError(f"{part} has images/ but no masks/")


def _parts(folder):
    """Returns the folders where images may be: the folder itself, and its halves."""
    folder = pathlib.Path(folder)
    return [folder, *_halves(folder)]


def _halves(folder):
    if (folder / "images").is_dir():
        return [folder / "train"]
    return [folder / "train", folder / "test"]


def find(kind, folder, seed, test_share, training):
    """Returns pairs of paths for training and for testing, and the share for testing.

    Args:
      kind: a `Kind`.
      folder, seed, test_share, training: as for `tf_capsops.data.load`.

    Raises:
      ValueError: if there are none, an image has no mask, or a file is of another kind;
        the message names the file or folder.
    """
    folder = pathlib.Path(folder)
    halves = folder / "train", folder / "test"
    if are_in(halves[0]):
        if test_share is not None:
            raise ValueError(f"{folder} has train/ and test/: no --test-share")
        trained, tested = (_pairs(kind, half) for half in halves)
        return trained if training else [], tested, None
    if halves[1] in _halves(folder) and are_in(halves[1]):
        if test_share is not None:
            raise ValueError(f"{folder} has test/: no --test-share")
        if training:
            raise ValueError(
                f"{folder} has test/ but no train/ with {kind.name}s and masks"
            )
        return [], _pairs(kind, halves[1]), None
    pairs = _pairs(kind, folder)
    if not training and test_share is None:
        return [], pairs, None
    test_share = folders.TEST_SHARE if test_share is None else test_share
    images = {"images": [pathlib.Path(image) for image, _ in pairs]}
    _, tested = folders.divided(folder, images, test_share, seed)
    tested = {*map(str, tested["images"])}
    trained = [pair for pair in pairs if pair[0] not in tested]
    return (
        trained if training else [],
        [pair for pair in pairs if pair[0] in tested],
        test_share,
    )


def _pairs(kind, folder):
    """Returns the paths of images and masks of the same names."""
    images, masks = (_by_name(kind, folder / name) for name in ("images", "masks"))
    for ours, theirs, other in (images, masks, "mask"), (masks, images, kind.name):
        alone = sorted(ours.keys() - theirs.keys())
        if alone:
            text = f"{ours[alone[0]]} has no {other} of the same name"
            raise ValueError(text + _renamed(alone[0], theirs))
    return [(images[name], masks[name]) for name in sorted(images)]


def _renamed(stem, others):
    """Returns the end of a message: which file to rename, as `7_mask.png` to `7.png`.

    Args:
      stem: the name of a file that lacks a counterpart, without its suffix.
      others: the paths of the possible counterparts, by such names.
    """
    for other in sorted(others):
        if other.startswith((f"{stem}_", f"{stem}-")):
            path = pathlib.Path(others[other])
            return f": rename {path} to {stem}{path.name[len(other) :]}"
    return ""


def _by_name(kind, folder):
    found = {}
    for path in folders.visible(folder) if folder.is_dir() else []:
        stem = kind.stem(path)
        if not stem:
            raise ValueError(f"{path} is no {kind.form}: take it out")
        if stem in found:
            raise ValueError(f"{path} and {found[stem]} have the same name")
        found[stem] = str(path)
    if not found:
        either = kind is PICTURES and folder.name == "images"
        held = "pictures and no NIfTI volumes" if either else f"{kind.name}s"
        raise ValueError(f"{folder} has no {held}")
    return found


def check_parts(folder, kind, is_good, is_training, training):
    """Raises a ValueError if a part that is wanted has only broken pairs.

    Args:
      folder: the folder of the pairs.
      kind: a `Kind`.
      is_good, is_training: arrays with a bool for each pair.
      training: whether pairs for training are wanted.
    """
    for purpose, part in (("training", is_training), ("testing", ~is_training)):
        if (training or purpose == "testing") and not is_good[part].any():
            raise ValueError(
                f"{folder} has no {kind.name} and mask for {purpose} that can be read"
            )


def classes(kind, folder, trained, tested, class_names, values_of):
    """Returns the names of the classes, and the class of each value, int32 `[256]`.

    Args:
      kind: a `Kind`.
      folder: the folder of the masks.
      trained: the paths of the masks for training.
      tested: the paths of the masks for testing.
      class_names: the classes that the network knows; None for the values of the masks
        for training, or of the masks for testing if there are no others.
      values_of: a function that returns the values of the mask at a path.

    Raises:
      ValueError: if there is one value, or one that the network does not know.
    """
    firsts, others = ({}, {})
    for found, paths in ((firsts, trained), (others, tested)):
        for path in paths:
            for value in values_of(path):
                found.setdefault(value, path)
    names = class_names or [str(value) for value in sorted(firsts or others)]
    if len(names) < 2:
        raise ValueError(
            f"the masks of {folder} have one {kind.value}, {names[0]}: there must be "
            "two or more, one for each class"
        )
    known = values(names)
    for value, path in sorted({**others, **firsts}.items()):
        if value not in known:
            raise ValueError(
                f"{path} has a {kind.value} of {value}, and the network knows "
                f"{', '.join(map(str, known))}"
            )
    numbers = np.zeros(VALUES, np.int32)
    numbers[known] = np.arange(len(known))
    return names, numbers


def values(class_names):
    """Returns the value of each class in a mask: its name, or else its number."""
    if all(name.isdigit() and int(name) < VALUES for name in class_names):
        return [int(name) for name in class_names]
    return list(range(len(class_names)))
