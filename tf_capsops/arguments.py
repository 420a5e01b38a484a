# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Checks of arguments, with one form of message."""

import numbers
import sys

import keras
import numpy as np
import tensorflow as tf

_MOST_INT32 = 2**31 - 1
_FLOATS = (tf.float32, tf.float64, tf.float16, tf.bfloat16)


class OperandTypeError(TypeError, ValueError):
    """An operand has a type that the op does not take.

    TensorFlow raises a TypeError for this, and Keras a ValueError; this is both.
    """

    # AutoGraph raises an error again in its own class only if it has this __init__.
    __init__ = Exception.__init__


def positive_int(owner, name, value, minimum=1):
    """Returns `value` as an int of at least `minimum`.

    Raises:
      ValueError: if it is not one; the message names owner, argument and value.
    """
    is_int = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not is_int or value < minimum:
        raise ValueError(
            f"{owner}: {name} must be an integer >= {minimum}, got {value!r}"
        )
    return int(value)


def boolean(owner, name, value):
    """Returns `value`, True or False, or 1 or 0, as a bool.

    Raises:
      ValueError: if it is something else; the message names owner, argument and value.
    """
    if not isinstance(value, (numbers.Integral, np.bool_)) or value not in (0, 1):
        raise ValueError(f"{owner}: {name} must be True or False, got {value!r}")
    return bool(value)


def int_between(owner, name, value, smallest, largest):
    """Returns `value` as an int from `smallest` to `largest`.

    Raises:
      ValueError: if it is not one; the message names owner, argument and value.
    """
    is_int = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not is_int or not smallest <= value <= largest:
        raise ValueError(
            f"{owner}: {name} must be an integer from {smallest} to {largest}, "
            f"got {value!r}"
        )
    return int(value)


def integers(owner, name, value, smallest, largest):
    """Returns `value` after checking that Python or NumPy numbers in it are integers.

    Tensors pass, because their types say what they hold. When TensorFlow converts
    numbers to a tensor, it wraps around those out of range and cuts off fractions.

    Raises:
      ValueError: if one is not; the message names owner, argument and number.
    """
    if isinstance(value, (numbers.Number, np.ndarray, np.generic, list, tuple)):
        array = np.asarray(value)
        good = array.dtype.kind in "iu" and (smallest <= array) & (array <= largest)
        if not np.all(good):
            first = array[~np.broadcast_to(good, array.shape)][:1]
            raise ValueError(
                f"{owner}: {name} must be integers from {smallest} to {largest}, "
                f"got {first.tolist()}"
            )
    return value


def number(owner, name, value):
    """Returns `value` after checking that it is a finite number.

    Raises:
      ValueError: if it is not one; the message names owner, argument and value.
    """
    if not _is_real(value) or not abs(value) <= sys.float_info.max:
        raise ValueError(f"{owner}: {name} must be a number, got {value!r}")
    return value


def _is_real(value):
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def positive_number(owner, name, value):
    """Returns `value` as a float above zero that is finite.

    Raises:
      ValueError: if it is not one; the message names owner, argument and value.
    """
    if not _is_real(value) or not 0 < value <= sys.float_info.max:
        raise ValueError(f"{owner}: {name} must be a positive number, got {value!r}")
    return float(value)


def not_negative(owner, name, value):
    """Returns `value` after checking that it is a finite number of at least zero.

    Raises:
      ValueError: if it is not one; the message names owner, argument and value.
    """
    if not _is_real(value) or not 0 <= value <= sys.float_info.max:
        raise ValueError(f"{owner}: {name} must not be negative, got {value!r}")
    return value


def positive_float32(owner, name, value):
    """Returns `value` as a float above zero that is finite and normal in float32 too.

    Raises:
      ValueError: if it is not one; the message names owner, argument and value.
    """
    value = positive_number(owner, name, value)
    float32 = np.finfo(np.float32)
    if not float(float32.tiny) <= value <= float(float32.max):
        raise ValueError(
            f"{owner}: {name} must be a float32 from {float32.tiny!s} to "
            f"{float32.max!s}, got {value!r}"
        )
    return value


def positive_ints(owner, name, value, count):
    """Returns `value`, an int or `count` ints of at least 1, as a tuple of `count`.

    Raises:
      ValueError: if it is neither; the message names owner, argument and value.
    """
    if getattr(value, "shape", ()) != ():
        raise ValueError(
            f"{owner}: {name} must be an integer, or a list or tuple of {count}, got "
            f"{value!r}"
        )
    entries = value if isinstance(value, (list, tuple)) else (value,) * count
    if len(entries) != count:
        numbers = {1: "one integer", 2: "one or two integers"}
        must = numbers.get(count, "one or three integers")
        raise ValueError(f"{owner}: {name} must be {must}, got {value!r}")
    return tuple(positive_int(owner, name, entry) for entry in entries)


def positive_pair(owner, name, value):
    """Returns `value`, an int or two ints of at least 1, as a tuple of two ints.

    Raises:
      ValueError: if it is neither; the message names owner, argument and value.
    """
    return positive_ints(owner, name, value, 2)


def odd_pair(owner, name, value):
    """Returns `value`, an odd positive int or two, as a tuple of two ints.

    Raises:
      ValueError: if it is neither; the message names owner, argument and value.
    """
    pair = positive_pair(owner, name, value)
    if not all(entry % 2 for entry in pair):
        raise ValueError(f"{owner}: {name} must be odd, got {value!r}")
    return pair


def window_attributes(owner, strides, padding, dilations, axes=2):
    """Returns a convolution's attributes as its op takes them, by name.

    Args:
      owner: the name to begin messages with.
      strides: a positive integer, or one for each axis.
      padding: "VALID" or "SAME" in any case.
      dilations: a positive integer, or one for each axis.
      axes: how many axes the window slides along.

    Raises:
      ValueError: if one is something else; the message names owner, argument and value.
    """
    strides = positive_ints(owner, "strides", strides, axes)
    if not isinstance(padding, str) or padding.upper() not in ("VALID", "SAME"):
        raise ValueError(f"{owner}: padding must be 'VALID' or 'SAME', got {padding!r}")
    dilations = positive_ints(owner, "dilations", dilations, axes)
    require_int32(owner, strides=strides, dilations=dilations)
    return {"strides": strides, "padding": padding.upper(), "dilations": dilations}


def require_int32(owner, **values):
    """Raises a ValueError if a tuple of positive ints has a number beyond int32.

    The message names owner, argument and value.
    """
    for name, each in values.items():
        if max(each) > _MOST_INT32:
            raise ValueError(f"{owner}: {name} must fit in int32, got {each}")


def known_shape(owner, shape, axes, may_be_unknown=("the batch size",)):
    """Checks the rank of an input shape and that all but its first axes are known.

    Args:
      owner: the name to begin the message with.
      shape: a tuple of ints and Nones.
      axes: what the axes are, as in `"[batch, in_caps, in_dim]"`.
      may_be_unknown: what the first axes are called, which may be None.

    Raises:
      ValueError: if the rank differs, or a later dimension is None.
    """
    if len(shape) != axes.count(",") + 1:
        raise ValueError(f"{owner}: the input must be {axes}, got shape {shape}")
    if None in shape[len(may_be_unknown) :]:
        raise ValueError(
            f"{owner}: only {' and '.join(may_be_unknown)} of {axes} may be unknown, "
            f"got shape {shape}"
        )


_ROUNDING = 1e-3  # Values so little outside of the range from 0 to 1 may be in it.


def outside_of_unit(images):
    """Returns the lowest and the highest value of images, or None if in 0 to 1.

    >>> import numpy as np
    >>> from tf_capsops.arguments import outside_of_unit
    >>> outside_of_unit(np.array([-1.5, 0.5])), outside_of_unit(np.array([0.0, 1.0]))
    ((-1.5, 0.5), None)
    """
    lowest, highest = float(np.min(images)), float(np.max(images))
    is_outside = lowest < -_ROUNDING or highest > 1 + _ROUNDING
    return (lowest, highest) if is_outside else None


LARGEST = 10  # Standardized images have no larger numbers, but unscaled pixels do.


def image_range(owner, images):
    """Returns `images` after checking that they are not pixels from 0 to 255.

    Networks learn nothing from pixels that nobody has scaled, and do not say so. Values
    are read on the host: tensors of a graph pass, because only their types are known.

    Args:
      owner: the name to begin the message with.
      images: an array, a tensor, or nested lists of numbers, of any shape.

    Raises:
      ValueError: if they are integers, or floating-point numbers above 10; the message
        names the owner and the largest number or the type, and says how to scale.

    >>> from tf_capsops.arguments import image_range
    >>> image_range("model", [[0.0, 0.5]])
    [[0.0, 0.5]]
    """
    array = _floating_point(owner, images)
    if isinstance(array, tf.SparseTensor):
        array = array.values
    elif isinstance(array, tf.RaggedTensor):
        array = array.flat_values
    if not tf.is_symbolic_tensor(array) and not isinstance(array, keras.KerasTensor):
        # This ignores NaN, and needs no array of booleans as large as the images.
        largest = np.fmax.reduce(np.asarray(array), axis=None, initial=-np.inf)
        if largest > LARGEST:
            raise ValueError(
                f"{owner}: images must be floating-point numbers from 0 to 1, or "
                f"standardized, got {float(largest):g}: if they are pixels from 0 to "
                "255, divide by 255"
            )
    return images


def _floating_point(owner, images):
    """Returns `images`, or an array of nested lists, if they are of a floating type."""
    try:
        array = images if hasattr(images, "dtype") else np.asarray(images)
        dtype = keras.backend.standardize_dtype(array.dtype)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{owner}: images must be numbers: {error}") from error
    if not keras.backend.is_float_dtype(dtype):
        raise ValueError(
            f"{owner}: images must be floating-point numbers from 0 to 1, got {dtype}: "
            "divide integers from 0 to 255 by 255"
        )
    return array


def scaled_images(owner, images, image_shape=None):
    """Returns `images` if their type and shape are good; nested lists become an array.

    `image_range` checks the values if they are known, and says why.

    Args:
      owner: the name to begin the message with.
      images: floating-point, `[batch, *image_shape]`.
      image_shape: a tuple of ints; None for a model that checks it itself.

    Raises:
      ValueError: if it is another type or shape, or pixels from 0 to 255; the message
        names owner and what came.
    """
    images = _floating_point(owner, image_range(owner, images))
    shape = tf.TensorShape(images.shape)
    if image_shape and not shape.is_compatible_with([None, *image_shape]):
        raise ValueError(
            f"{owner}: images must be [batch, {', '.join(map(str, image_shape))}], got "
            f"shape {shape}"
        )
    return images


def float_tensors(owner, **operands):
    """Returns the operands of an op, in order, as tensors of one floating-point type.

    Numbers from Python and NumPy take the type of the first tensor among the operands.
    Without a tensor, all take the type of the first NumPy array, or float32.

    Raises:
      OperandTypeError: if one is ragged, sparse, no numbers, or of another type; the
        message names owner, operand and what came.
    """
    tensors = {
        name: dense_tensor(owner, name, value)
        for name, value in operands.items()
        if tf.is_tensor(value)
    }
    typed = tensors or {
        name: value
        for name, value in operands.items()
        if isinstance(value, (np.ndarray, np.generic))
    }
    first = next(iter(typed), None)
    dtype = tf.as_dtype(typed[first].dtype) if typed else tf.float32
    if dtype not in _FLOATS:
        allowed = ", ".join(each.name for each in _FLOATS)
        raise OperandTypeError(
            f"{owner}: {first} must have one of the types {allowed}, got {dtype.name}"
        )
    for name, tensor in tensors.items():
        if tensor.dtype != dtype:
            raise OperandTypeError(
                f"{owner}: {name} must have the type of {first}, {dtype.name}, got "
                f"{tensor.dtype.name}"
            )
    return [
        tensors[name] if name in tensors else dense_tensor(owner, name, value, dtype)
        for name, value in operands.items()
    ]


def tensor_of(owner, name, value, dtype):
    """Returns `value`, a tensor or numbers, as a tensor of `dtype`.

    Raises:
      OperandTypeError: if it is ragged, sparse, no numbers, or a tensor of another
        type; the message names owner, argument and what came.
    """
    if not tf.is_tensor(value):
        return dense_tensor(owner, name, value, dtype)
    tensor = dense_tensor(owner, name, value)
    if tensor.dtype != dtype:
        raise OperandTypeError(
            f"{owner}: {name} must have the type {dtype.name}, got {tensor.dtype.name}"
        )
    return tensor


def dense_tensor(owner, name, value, dtype=None):
    """Returns `value`, a tensor or numbers, as a tensor, which keeps its type.

    Numbers become a tensor of `dtype`, or of the type that TensorFlow gives them.

    Raises:
      OperandTypeError: if it is ragged, sparse or no numbers; the message names owner,
        argument and what came.
    """
    if isinstance(value, tf.Tensor):
        return value
    if isinstance(value, (tf.RaggedTensor, tf.SparseTensor)):
        raise OperandTypeError(
            f"{owner}: {name} must be a dense tensor, got a {type(value).__name__}"
        )
    try:
        return tf.convert_to_tensor(value, dtype)
    except (TypeError, ValueError) as error:
        raise OperandTypeError(f"{owner}: {name} must be a tensor: {error}") from error
