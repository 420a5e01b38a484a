# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Packs codes into as few bits as they need, for storage."""

import math

import numpy as np

from tf_capsops.arguments import positive_int
from tf_capsops.codes import checked_bits, checked_codes


def pack(codes, bits):
    """Packs codes next to each other, in `bits` bits each.

    Codes are taken in row-major order. Bit b of code i is bit `bits * i + b` of the
    result, which starts with the least significant bit of the first byte. The last byte
    is padded with zeros.

    Args:
      codes: Integers of any shape, as `tf_capsops.inq.encode` makes them.
      bits: Bits of a code, 2 to 8.

    Returns:
      A NumPy array of uint8, `[ceil(bits * number of codes / 8)]`.

    Raises:
      ValueError: a code is not in the book, or `bits` is not as above.

    >>> import tf_capsops
    >>> tf_capsops.inq.pack([1, 4, 3, 7, 0], bits=4)
    array([ 65, 115,   0], dtype=uint8)
    """
    bits = checked_bits("pack", bits)
    codes = checked_codes("pack", codes, bits)
    every_bit = np.unpackbits(codes.reshape(-1, 1), axis=1, bitorder="little")
    return np.packbits(every_bit[:, :bits].reshape(-1), bitorder="little")


def unpack(packed, bits, shape):
    """Reads codes that `tf_capsops.inq.pack` wrote.

    Args:
      packed: The result of `pack`, or bytes of the same content.
      bits: Bits of a code, 2 to 8.
      shape: The shape of the codes, a sequence of ints or one int.

    Returns:
      A NumPy array of uint8 and of that shape.

    Raises:
      ValueError: `packed` is longer or shorter than such codes are, its last bits are
        not zero, a code is not in the book, or an argument is not as above.

    >>> import numpy as np
    >>> import tf_capsops
    >>> packed = np.array([65, 115, 0], np.uint8)
    >>> tf_capsops.inq.unpack(packed, bits=4, shape=[5])
    array([1, 4, 3, 7, 0], dtype=uint8)
    """
    bits = checked_bits("unpack", bits)
    sizes = np.atleast_1d(np.asarray(shape, dtype=object)).tolist()
    shape = tuple(positive_int("unpack", "shape", size, minimum=0) for size in sizes)
    if isinstance(packed, (bytes, bytearray, memoryview)):
        packed = np.frombuffer(packed, np.uint8)
    try:
        packed = np.asarray(packed)
    except ValueError as error:
        raise ValueError(f"unpack: packed is no array: {error}") from error
    if packed.dtype != np.uint8 or packed.ndim != 1:
        raise ValueError(
            "unpack: packed must be bytes or uint8 of one axis, got "
            f"{packed.dtype} of shape {packed.shape}"
        )
    used = bits * math.prod(shape)
    if len(packed) != -(-used // 8):
        raise ValueError(
            f"unpack: codes of {bits} bits and shape {shape} take {-(-used // 8)} "
            f"bytes, got {len(packed)}"
        )
    every_bit = np.unpackbits(packed, bitorder="little")
    if every_bit[used:].any():
        raise ValueError("unpack: the bits after the last code must be zero")
    each = every_bit[:used].reshape(-1, bits)
    codes = checked_codes("unpack", np.packbits(each, axis=1, bitorder="little"), bits)
    try:
        return codes.reshape(shape)
    except (ValueError, OverflowError) as error:  # though there may be no codes
        raise ValueError(
            f"unpack: there is no array of shape {shape}: {error}"
        ) from error
