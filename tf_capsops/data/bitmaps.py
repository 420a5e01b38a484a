# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Finds BMP and WebP pictures that TensorFlow decodes wrongly."""

import tensorflow as tf


def has_palette(contents):
    """Whether a file is a BMP picture with a palette that changes its pixels.

    TensorFlow ignores palettes and takes the numbers of their entries for grays. That
    is right only if each entry is the gray of its own number.

    Args:
      contents: the bytes of a file, or its first kilobytes.
    """
    if contents[:2] != b"BM" or _number(contents, 28, 2) != 8:
        return False
    start, entries = 14 + _number(contents, 14, 4), _number(contents, 46, 4) or 256
    found = (contents[start + 4 * each :][:3] for each in range(min(entries, 256)))
    return any(color != bytes([gray] * 3) for gray, color in enumerate(found))


def is_animated_webp(contents):
    """Whether a file is an animated WebP picture, as a scalar tensor.

    Args:
      contents: the bytes of a file, a string tensor.

    Raises:
      tf.errors.InvalidArgumentError: if these are too few for any picture.
    """
    start = tf.io.decode_raw(tf.strings.substr(contents, 0, 21), tf.uint8)
    is_extended = tf.reduce_all(start[12:16] == list(b"VP8X"))
    return is_extended & (tf.bitwise.bitwise_and(start[20], 2) > 0)


def _number(contents, start, size):
    return int.from_bytes(contents[start : start + size], "little")
