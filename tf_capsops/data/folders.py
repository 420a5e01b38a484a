# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Finds the pictures in a folder: their classes, and which ones are for testing."""

import dataclasses
import hashlib
import pathlib

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".webp")
FORMS = "PNG, JPEG, BMP, GIF or WebP"  # in the words of messages
TEST_SHARE = 0.2
# Files that file managers leave behind.
_LEFT_BEHIND = ("desktop.ini", "thumbs.db")


@dataclasses.dataclass
class Part:
    """The pictures of one part: paths, and the number of each one's class."""

    paths: list = dataclasses.field(default_factory=list)
    labels: list = dataclasses.field(default_factory=list)

    def add(self, paths, label):
        self.paths += map(str, paths)
        self.labels += [label] * len(paths)


def find(folder, test_share, seed, class_names, skip_broken, training):
    """Finds the pictures of each class, by their names alone.

    Args:
      folder: a path. Below it are `train` and `test`, each with a folder for every
        class, or the classes' folders themselves. Without training, `test` is enough.
      test_share: how much of each class is for testing, where there is no `test`.
      seed: an int, which decides which pictures these are.
      class_names: the classes, in the order of their numbers; None for the folders'
        names in alphabetical order.
      skip_broken: whether to pass over files of other kinds.
      training: whether training pictures are wanted. If not, and there is neither a
        `test` nor a share, all pictures are for testing.

    Returns:
      The names of the classes, the `Part` for training, the `Part` for testing, the
      share that is for testing (None if folders decide), and the files that were passed
      over.

    Raises:
      ValueError: if the folder has another layout; the message names file or folder.
    """
    if test_share is not None and not 0 < test_share < 1:
        raise ValueError(f"load: test_share must be between 0 and 1, got {test_share}")
    skipped = [] if skip_broken else None
    folder = pathlib.Path(folder)
    halves = [folder / "train", folder / "test"]
    if all(half.is_dir() for half in halves):
        if test_share is not None:
            raise ValueError(f"{folder} has train/ and test/: no --test-share")
        trained = _classes(halves[0], skipped) if training else {}
        tested = _classes(halves[1], skipped)
    elif not training and halves[1].is_dir() and _folders(halves[1]):
        if test_share is not None:
            raise ValueError(f"{folder} has test/: no --test-share")
        trained, tested = {}, _classes(halves[1], skipped)
    else:
        for half, other in (halves, halves[::-1]):
            if half.is_dir() and _folders(half):
                more = ", which is then divided by --test-share" if training else ""
                raise ValueError(
                    f"{folder} has {half.name}/ but no {other.name}/: add it, or give "
                    f"{half} itself{more}"
                )
        everything = _classes(folder, skipped)
        trained, tested = {}, everything
        if training or test_share is not None:
            test_share = TEST_SHARE if test_share is None else test_share
            trained, tested = divided(folder, everything, test_share, seed)
        if not training:
            trained = {}
    names = list(class_names or trained or tested)
    if len(names) < 2:
        raise ValueError(
            f"{folder} has one class, {names[0]}: there must be two folders or more, "
            "one for each class"
        )
    parts = []
    for classes, half in zip((trained, tested), halves):
        part = Part()
        for name, paths in classes.items():
            if name not in names:
                place = half if half.is_dir() else folder
                known = "training has" if class_names is None else "the network knows"
                raise ValueError(
                    f"{place / name} is none of the classes that {known}: "
                    f"{', '.join(names)}"
                )
            part.add(paths, names.index(name))
        parts.append(part)
    return names, *parts, test_share, skipped or []


def takes_for_class(folder, path):
    """Whether `find` would take a folder at `path` for a class of pictures."""
    halves = [pathlib.Path(folder) / half for half in ("train", "test")]
    has_halves = all(half.is_dir() for half in halves)
    path = pathlib.Path(path)
    path = path.parent.resolve() / path.name  # the last part may become a link
    for part in halves if has_halves else [pathlib.Path(folder)]:
        if part.resolve() in path.parents:
            below = path.relative_to(part.resolve()).parts
            return not any(name.startswith(".") for name in below)
    return False


def is_picture(path):
    """Whether a file has the suffix of a picture."""
    return path.suffix.lower() in SUFFIXES


def visible(folder):
    """Returns what is in a folder, in order, without hidden files."""
    return sorted(
        path
        for path in folder.iterdir()
        if not path.name.startswith(".") and path.name.lower() not in _LEFT_BEHIND
    )


def _folders(folder):
    return [path for path in visible(folder) if path.is_dir()]


def _classes(folder, skipped):
    """Returns lists of pictures, by the name of their folder."""
    for path in visible(folder):
        if path.is_file() and is_picture(path):
            raise ValueError(
                f"{path} is in no class's folder: put the pictures of each class into "
                f"a folder of its own below {folder}"
            )
    classes = {path.name: _pictures(path, skipped) for path in _folders(folder)}
    if not classes:
        raise ValueError(
            f"{folder} has no folders: there must be one for each class, with its "
            "pictures"
        )
    return classes


def _pictures(folder, skipped):
    """Returns the pictures of one class.

    Other files are added to `skipped`, or raise a ValueError if that is None.
    """
    pictures = []
    for path in visible(folder):
        if path.is_dir():
            raise ValueError(
                f"{path} is a folder among the pictures of a class: put the pictures "
                f"into {folder} itself"
            )
        if is_picture(path):
            pictures.append(path)
        elif skipped is None:
            raise ValueError(
                f"{path} is no {FORMS} picture: take it out, or give --skip-broken"
            )
        else:
            skipped.append(str(path))
    if not pictures:
        raise ValueError(f"{folder} has no pictures: fill the class or remove it")
    return pictures


def divided(folder, classes, share, seed):
    """Returns the pictures for training, and a share of each class for testing.

    The pictures for testing are those with the smallest checksums of seed and name, so
    the choice hardly changes when pictures are added.
    """
    trained, tested = {}, {}
    for name, paths in classes.items():
        if len(paths) < 2:
            raise ValueError(
                f"{folder / name} has one picture: there must be two or more, one for "
                "training and one for testing"
            )

        def mixed(path, name=name):
            text = f"{seed}/{name}/{path.name}"
            return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()

        order = sorted(paths, key=mixed)
        count = min(max(round(share * len(paths)), 1), len(paths) - 1)
        tested[name], trained[name] = sorted(order[:count]), sorted(order[count:])
    return trained, tested
