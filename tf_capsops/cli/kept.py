# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Writes files beside others of their names, which stay as they are."""

import os


def write(draw, folder, stem, suffix=".png", taken=()):
    """Writes a file `stem` + `suffix`, with a number where another one has that name.

    Args:
      draw: a function that takes a path, and writes what only depends on its suffix.
      folder: where the file goes.
      stem: its name.
      suffix: of its name.
      taken: paths that it must not have, even if what they hold is the same.

    Returns:
      The file's path, and whether it was there already, with the same bytes.
    """
    partial = folder / f".partial-{os.getpid()}{suffix}"
    try:
        draw(partial)
        number = 1
        while True:
            name = stem if number == 1 else f"{stem}-{number}"
            path = folder / f"{name}{suffix}"
            if path not in taken:
                if not path.exists():
                    partial.rename(path)
                    return path, False
                if path.is_file() and path.read_bytes() == partial.read_bytes():
                    return path, True
            number += 1
    finally:
        partial.unlink(missing_ok=True)
