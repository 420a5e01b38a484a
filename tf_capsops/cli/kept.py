# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Writes files without replacing others of the same names."""

import itertools
import os


def write(draws, folder, stem, taken=()):
    """Writes files under one name, with a number if other files have that name.

    Files that are there already, with the same bytes, are not written again.

    Args:
      draws: functions that write a file to a given path, by the form of the path, as in
        `{"{}.png": draw, "overlays/{}.png": draw_over}`. The content of the file may
        depend on the path's suffix, but on nothing else of the path.
      folder: where the files go.
      stem: their name, which replaces the `{}`.
      taken: paths that the first file must not have, even if the bytes are the same.

    Returns:
      The first file's path, and whether all files were there already.
    """
    partial = _paths(draws, folder, f".partial-{os.getpid()}")
    try:
        for path, draw in zip(partial, draws.values()):
            draw(path)
        for number in itertools.count(1):
            name = stem if number == 1 else f"{stem}-{number}"
            paths = _paths(draws, folder, name)
            pairs = list(zip(partial, paths))
            if paths[0] in taken or not all(_may_have(*pair) for pair in pairs):
                continue
            new = [_place(*pair) for pair in pairs if not os.path.lexists(pair[1])]
            if all(new):
                return paths[0], not new
    finally:
        for path in partial:
            path.unlink(missing_ok=True)


def _paths(draws, folder, name):
    return [folder / form.format(name) for form in draws]


def _may_have(partial, path):
    """Whether a file may have a path: none is there, or one with the same bytes."""
    if not os.path.lexists(path):
        return True
    return path.is_file() and path.read_bytes() == partial.read_bytes()


def _place(partial, path):
    """Gives a file a path. Returns False if another process was faster."""
    try:
        os.link(partial, path)
    except FileExistsError:
        return False
    except OSError:  # a file system without hard links
        partial.rename(path)
    return True
