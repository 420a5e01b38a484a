# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Turns pictures upright, as the Exif part of a JPEG file says.

A camera stores the rows of its sensor as they are, however it is held, and notes in the
Exif part how to turn them. TensorFlow decodes the rows without turning them.
"""

import tensorflow as tf

HEADER = 1 << 17  # The Exif part is within so many bytes at the beginning of a file.
_START, _EXIF, _SCAN = 0xD8, 0xE1, 0xDA  # markers of a JPEG file
_ORIENTATION = 0x0112  # the tag of TIFF
# Orientations with the rows, and orientations with the columns, in the opposite order
# (for 5 to 8, after rows and columns have been exchanged).
_FLIPPED = (3, 4, 7, 8), (2, 3, 6, 7)
_ORDERS = {b"II": "little", b"MM": "big"}


def upright(picture, number):
    """Returns a picture `[H, W, C]` turned upright.

    Args:
      picture: decoded from a file.
      number: the `orientation` of the file, a scalar.
    """
    number = tf.convert_to_tensor(number)

    def turned():
        swapped = number > 4
        rows = tf.cond(
            swapped, lambda: tf.transpose(picture, [1, 0, 2]), lambda: picture
        )
        flipped = [tf.reduce_any(number == each) for each in _FLIPPED]
        return tf.raw_ops.Reverse(tensor=rows, dims=tf.stack([*flipped, False]))

    return tf.cond(number > 1, turned, lambda: picture)


def header(path):
    """Returns the bytes at the beginning of a file that `orientation` takes."""
    with open(path, "rb") as file:
        return file.read(HEADER)


def orientation(contents):
    """Returns how Exif says that a JPEG picture is turned, from 1 (not at all) to 8.

    The numbers are those of TIFF 6.0. Files of other formats, and files without this
    entry, are not turned.

    Args:
      contents: the bytes of a file, or its first `HEADER` bytes.
    """
    if contents[:2] != bytes([0xFF, _START]):
        return 1
    position = 2
    while contents[position : position + 1] == b"\xff":
        marker = _number(contents, position + 1, 1, "big")
        size = _number(contents, position + 2, 2, "big")
        part = contents[position + 4 : position + 2 + size]
        if marker == _EXIF and part.startswith(b"Exif\0\0"):
            return _in_tiff(part[6:])
        if marker == _SCAN:
            break
        position += 2 + size
    return 1


def _in_tiff(tiff):
    order = _ORDERS.get(tiff[:2])
    if not order:
        return 1
    directory = _number(tiff, 4, 4, order)
    for entry in range(_number(tiff, directory, 2, order)):
        position = directory + 2 + 12 * entry
        if _number(tiff, position, 2, order) == _ORIENTATION:
            found = _number(tiff, position + 8, 2, order)
            return found if 1 <= found <= 8 else 1
    return 1


def _number(data, position, size, order):
    return int.from_bytes(data[position : position + size], order)
