# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rounds weights to powers of two, and encodes them, in exact arithmetic.

All decisions use mantissa and exponent, which are whole numbers, and never a logarithm:
a logarithm that is off by its last bit would move a weight at a boundary.
"""

import operator

import ml_dtypes
import numpy as np

from tf_capsops.arguments import int_between


def top_exponent(weights, axes=()):
    """Returns the exponent n1 of the largest power of two of quantized weights.

    `n1 = floor(log2(4 max|w| / 3))`, equation 3 of Zhou et al. (2017). The largest
    weight is quantized to `2^n1`.

    Args:
      weights: Numbers of any shape: a NumPy array, a tensor or a Keras variable.
      axes: Axes with a code book for each of their elements, such as those of output
        channels, in ascending order; () for one book.

    Returns:
      An int, or an array of ints of the sizes of `axes`; 0 where all weights are zero,
      or there are none.

    Raises:
      ValueError: a weight is infinite or not a number, they are no real numbers, or
        `axes` is not as above.

    >>> import tf_capsops
    >>> tf_capsops.inq.top_exponent([0.1, -0.75, 0.5])
    0
    >>> tf_capsops.inq.top_exponent([0.1, -0.74, 0.5])
    -1
    """
    values, _ = _float64("top_exponent", weights)
    axes = _checked_axes("top_exponent", axes, values.ndim)
    return _without_others(_top_exponent(values, axes), axes)


def quantize(weights, bits, top_exponent=None, axes=()):
    """Rounds weights to zero or a power of two, as incremental quantization does.

    A weight becomes `sgn(w) beta` where `(alpha + beta) / 2 <= |w| < 3 beta / 2` and
    `alpha < beta` are neighbors among 0, 2^n2, ..., 2^n1: equation 4 of Zhou et al.
    (2017). A weight halfway between two goes up; one of at least `3/2 2^n1` becomes
    `2^n1`; one below `2^n2 / 2` becomes zero.

    Args:
      weights: Numbers of any shape: a NumPy array, a tensor or a Keras variable.
      bits: Bits of a weight, 2 to 8. `n2 = n1 + 1 - 2^(bits-2)`: there are
        `2^(bits-2)` powers.
      top_exponent: An integer, n1; None for `tf_capsops.inq.top_exponent(weights)`.
      axes: As `tf_capsops.inq.top_exponent` takes them; n1 is then an array.

    Returns:
      A NumPy array of the shape and the floating type of `weights` (float32 for
      integers). Zeros are positive.

    Raises:
      ValueError: a weight is infinite or not a number; an argument is not as above; or
        the type cannot hold a power of two, as float32 cannot hold 2^128.

    >>> import tf_capsops
    >>> tf_capsops.inq.quantize([0.75, -0.74, 0.375, 0.1, -0.01], bits=4)
    array([ 1.   , -0.5  ,  0.5  ,  0.125,  0.   ])
    """
    codes, n1 = encode(weights, bits, top_exponent, axes)
    return decode(codes, bits, n1, _float64("quantize", weights)[1], axes)


def encode(weights, bits, top_exponent=None, axes=()):
    """Quantizes weights, and returns codes instead of values.

    Code 0 is zero; for 0 <= k < 2^(bits-2), code `1 + 2k` is `+2^(n1-k)` and code
    `2 + 2k` is `-2^(n1-k)`. These are the codes that `tf_capsops.inq_conv2d` takes.

    Args:
      weights, bits, top_exponent, axes: as `tf_capsops.inq.quantize` takes them.

    Returns:
      The codes, a NumPy array of uint8 and of the shape of `weights`; and n1, an int,
      or an array of the sizes of `axes`.

    Raises:
      ValueError: as for `tf_capsops.inq.quantize`.

    >>> import tf_capsops
    >>> tf_capsops.inq.encode([0.75, -0.74, 0.375, 0.1, -0.01], bits=4)
    (array([1, 4, 3, 7, 0], dtype=uint8), 0)
    """
    powers = 2 ** (checked_bits("encode", bits) - 2)
    values, _ = _float64("encode", weights)
    axes = _checked_axes("encode", axes, values.ndim)
    if top_exponent is None:
        n1 = _top_exponent(values, axes)
    else:
        n1 = _checked_exponents("encode", top_exponent, values.shape, axes)
    n2 = n1 + 1 - powers
    nearest, above = _nearest_exponent(np.abs(values))
    steps = n1 - np.clip(nearest, n2, n1)
    codes = 1 + 2 * steps + np.signbit(values)
    # 2^(above - 1) <= |w|, so this is |w| >= 2^n2 / 2.
    codes = np.where((values != 0) & (above >= n2), codes, 0).astype(np.uint8)
    return codes, _without_others(n1, axes)


def decode(codes, bits, top_exponent, dtype="float32", axes=()):
    """Returns the exact weights that codes represent.

    Args:
      codes: Integers of any shape, as `tf_capsops.inq.encode` makes them.
      bits: Bits of a weight, 2 to 8.
      top_exponent: An integer, n1, or an array of the sizes of `axes`.
      dtype: The type of the result: float32, float64, float16 or bfloat16.
      axes: As `tf_capsops.inq.encode` takes them.

    Returns:
      A NumPy array of the shape of `codes`.

    Raises:
      ValueError: a code is beyond the last one, `2^(bits-1)`; an argument is
        not as above; or `dtype` cannot hold a power of two.

    >>> import tf_capsops
    >>> tf_capsops.inq.decode([[0, 1, 2], [3, 4, 5]], bits=4, top_exponent=1)
    array([[ 0. ,  2. , -2. ],
           [ 1. , -1. ,  0.5]], dtype=float32)
    """
    bits = checked_bits("decode", bits)
    codes = checked_codes("decode", codes, bits)
    axes = _checked_axes("decode", axes, codes.ndim)
    n1 = _checked_exponents("decode", top_exponent, codes.shape, axes)
    dtype = np.dtype(getattr(dtype, "as_numpy_dtype", dtype))
    steps = np.maximum(codes.astype(np.int64) - 1, 0) // 2
    limits = ml_dtypes.finfo(dtype)
    # The smallest power of two is a subnormal number.
    lowest = np.frexp(np.float64(limits.smallest_subnormal))[1] - 1
    highest = np.frexp(np.float64(limits.max))[1] - 1
    used = (n1 - steps)[codes > 0]
    if used.size and not (lowest <= used.min() and used.max() <= highest):
        wrong = used.max() if used.max() > highest else used.min()
        raise ValueError(
            f"decode: {dtype} has no 2^{wrong}: its powers of two are 2^{lowest} to "
            f"2^{highest}"
        )
    # Exponents are clipped because zeros may have a code book that no type can hold.
    powers = np.ldexp(1.0, np.clip(n1 - steps, -1074, 1023))
    signs = np.where(codes == 0, 0.0, 1.0 - 2.0 * (codes % 2 == 0))
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return np.where(signs == 0, 0.0, signs * powers).astype(dtype)


def checked_bits(owner, bits):
    """Returns `bits` as an int of 2 to 8, or raises a ValueError that names `owner`."""
    return int_between(owner, "bits", bits, 2, 8)


def checked_codes(owner, codes, bits):
    """Returns `codes` as an array of uint8.

    Raises:
      ValueError: one is not in the book of `bits` bits; the message names `owner`.
    """
    last = 2 ** (checked_bits(owner, bits) - 1)
    codes = np.asarray(codes)
    if not codes.size:
        return codes.astype(np.uint8)
    if not np.issubdtype(codes.dtype, np.integer):
        raise ValueError(f"{owner}: codes must be integers, got {codes.dtype}")
    if codes.min() < 0 or codes.max() > last:
        wrong = codes.min() if codes.min() < 0 else codes.max()
        raise ValueError(
            f"{owner}: codes of {bits} bits must be 0 to {last}, got {wrong}"
        )
    return codes.astype(np.uint8)


def _checked_axes(owner, axes, rank):
    """Returns axes as a tuple of ints from 0 to `rank - 1`."""
    given = axes if isinstance(axes, (list, tuple)) else [None]
    found = []
    for axis in given:
        try:
            axis = operator.index(axis)
        except TypeError:
            break
        if not -rank <= axis < rank or found[-1:] >= [axis % rank]:
            break
        found.append(axis % rank)
    if len(found) < len(given):
        raise ValueError(
            f"{owner}: axes must be a tuple of some of {rank} axes in ascending order, "
            f"each once, got {axes!r}"
        )
    return tuple(found)


def _integer(owner, top_exponent):
    """Returns an exponent, an integer of 32 bits, as an int."""
    try:
        value = operator.index(top_exponent)
    except TypeError:
        value = 2**31
    if not -(2**31) <= value < 2**31:
        raise ValueError(
            f"{owner}: top_exponent must be an integer of 32 bits, got {top_exponent!r}"
        )
    return value


def _checked_exponents(owner, top_exponent, shape, axes):
    """Returns n1 as an int, or as an array that broadcasts over weights of a shape."""
    if not axes:
        return _integer(owner, top_exponent)
    sizes = tuple(shape[axis] for axis in axes)
    exponents = np.asarray(top_exponent)
    if exponents.shape != sizes or not np.issubdtype(exponents.dtype, np.integer):
        raise ValueError(
            f"{owner}: top_exponent must be integers of shape {sizes} for axes {axes}, "
            f"got {exponents.dtype} of shape {exponents.shape}"
        )
    return exponents.astype(np.int64).reshape(
        [size if axis in axes else 1 for axis, size in enumerate(shape)]
    )


def _without_others(exponents, axes):
    """Returns n1 with the axes of the code books only."""
    if not axes:
        return exponents
    return exponents.reshape([exponents.shape[axis] for axis in axes])


def _float64(owner, weights):
    """Returns weights in float64, which holds them exactly, and their own type."""
    weights = np.asarray(weights)
    if np.issubdtype(weights.dtype, np.integer) or not weights.size:
        own = np.dtype("float32")
    else:
        own = weights.dtype
    try:
        if own.kind == "c":
            raise TypeError
        ml_dtypes.finfo(own)
        values = weights.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{owner}: weights must be real numbers, got {weights.dtype}"
        ) from error
    wrong = np.count_nonzero(~np.isfinite(values))
    if wrong:
        raise ValueError(
            f"{owner}: weights must be finite, but {wrong} of {values.size} are not"
        )
    return values, own


def _top_exponent(values, axes):
    """Returns n1: an int, or with `axes` an array of the rank of the weights."""
    others = tuple(axis for axis in range(values.ndim) if axis not in axes)
    largest = np.abs(values).max(axis=others, initial=0.0, keepdims=True)
    exponents = np.where(largest == 0, 0, _nearest_exponent(largest)[0])
    return exponents if axes else int(exponents.reshape(()))


def _nearest_exponent(sizes):
    """Returns the exponents k with `3/4 2^k <= size < 3/2 2^k`.

    Also returns the exponents of the least powers above the sizes.
    """
    mantissa, above = np.frexp(sizes)
    above = np.asarray(above, np.int64)
    return above - (mantissa < 0.75), above
