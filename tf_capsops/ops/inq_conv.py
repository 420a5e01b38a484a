# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Convolution with weights that are zero or signed powers of two."""

import tensorflow as tf

from tf_capsops import _library, _portable
from tf_capsops.arguments import (
    float_tensors,
    int_between,
    integers,
    tensor_of,
    window_attributes,
)
from tf_capsops.ops.conv2d import conv2d, require_window
from tf_capsops.shapes import ShapeRule, sizes

_ATTRIBUTES = ("bits", "strides", "padding", "dilations")


def inq_conv2d(
    inputs,
    codes,
    top_exponent,
    bits=5,
    strides=1,
    padding="SAME",
    dilations=1,
    name=None,
):
    """Convolves an image with weights that are zero or signed powers of two.

    With strides `sh`, `sw` and dilations `dh`, `dw`, it computes:

        output[n, y, x, o] = sum over kh, kw, c of
            inputs[n, y * sh + kh * dh, x * sw + kw * dw, c] * weight[kh, kw, c, o]

    This is `tf.nn.conv2d`, with the same rules for sizes and padding, but the weights
    are given as codes of one byte. For `k` from 0 to `2 ** (bits - 2) - 1`:

    * code 0 is zero;
    * code `1 + 2 * k` is `2 ** (top_exponent - k)`;
    * code `2 + 2 * k` is `-2 ** (top_exponent - k)`.

    This is the code book of Zhou et al., "Incremental Network Quantization" (2017).
    Float32 results are as accurate as those of `tf.nn.conv2d` with the decoded weights.
    The op is differentiable any number of times in `inputs`. Half types accumulate in
    float32.

    Args:
      inputs: Images, `[batch, in_height, in_width, in_channels]`, of type float32,
        float64, float16 or bfloat16.
      codes: Codes of the weights, `[kernel_height, kernel_width, in_channels,
        out_channels]`, of type uint8.
      top_exponent: Exponent of the largest weights of the code book, a scalar of type
        int32. Any value works: results too large for their type are infinite, and
        results too small are zero.
      bits: Bits of a code in storage, from 2 to 8.
      strides: Pixels from one window to the next: a positive integer, or two, down and
        across.
      padding: "VALID", where the kernel stays inside the image, or "SAME", where zeros
        around it make `out_height = ceil(in_height / sh)`, and the width likewise.
      dilations: Pixels from one row of the kernel to the next, and from one column to
        the next: a positive integer, or two.
      name: Name of the operation in a graph.

    Returns:
      Images, `[batch, out_height, out_width, out_channels]`. They are zero if
      `in_channels` is 0.

    Raises:
      ValueError: `bits`, `strides`, `padding` or `dilations` is not as above, or
        `inputs`, `codes` or `top_exponent` is of another type, ragged or sparse, or
        holds numbers out of its range.
      tf.errors.InvalidArgumentError: A rank or a dimension does not fit, or the kernel
        is larger than the image under "VALID" (a `ValueError` while a graph is built);
        or a code is larger than `2 ** (bits - 1)`, the last one of the book. A GPU does
        not check for these, and reads them as zero.
      ImportError: The operator library is missing or of another TensorFlow version.

    Example:

    >>> import tensorflow as tf
    >>> import tf_capsops
    >>> image = tf.constant([[1.0, 2.0, 3.0]])[:, :, tf.newaxis, tf.newaxis]
    >>> codes = tf.constant([[[[1, 2, 3, 0]]]], tf.uint8)  # 2 ** 1, -2 ** 1, 2 ** 0, 0
    >>> tf_capsops.inq_conv2d(image, codes, 1, bits=3)[0, :, 0].numpy()
    array([[ 2., -2.,  1.,  0.],
           [ 4., -4.,  2.,  0.],
           [ 6., -6.,  3.,  0.]], dtype=float32)
    """
    owner = "inq_conv2d"
    codes = integers(owner, "codes", codes, 0, 2**8 - 1)
    top_exponent = integers(owner, "top_exponent", top_exponent, -(2**31), 2**31 - 1)
    (inputs,) = float_tensors(owner, inputs=inputs)
    operands = (
        inputs,
        tensor_of(owner, "codes", codes, tf.uint8),
        tensor_of(owner, "top_exponent", top_exponent, tf.int32),
    )
    attributes = {
        "bits": int_between(owner, "bits", bits, 2, 8),
        **window_attributes(owner, strides, padding, dilations),
    }
    if _portable.is_on():
        return _portable.compute(plain, *operands, **attributes, name=name or owner)
    return _library.load().inq_conv(*operands, **attributes, name=name)


def plain(
    inputs, codes, top_exponent, bits, strides, padding, dilations, convolve=conv2d
):
    """The definition of `inq_conv2d` in TensorFlow's own ops."""
    rule = ShapeRule("InqConv")
    image = ("batch", "in_height", "in_width", "in_channels")
    inputs = rule.bind("input", inputs, image)
    kernel = ("kernel_height", "kernel_width", "in_channels", "out_channels")
    codes = rule.bind("codes", codes, kernel)
    top_exponent = rule.bind("top_exponent", top_exponent, ())
    require_window(rule, "codes", codes, inputs, padding, dilations)
    (inputs,) = rule.checked(inputs)
    weights = decoded(codes, top_exponent, bits, inputs.dtype)
    return convolve(inputs, weights, strides, padding, dilations)


def decoded(codes, top_exponent, bits, dtype):
    """Returns the weights that codes stand for, as a tensor.

    They are exact, except that powers of two outside of the normal range of `dtype` may
    become infinite or zero. A code past the end of the book raises an
    InvalidArgumentError on a CPU, and is zero on a GPU.

    Args:
      codes: As for `inq_conv2d`.
      top_exponent: A scalar of any integer type.
      bits: As for `inq_conv2d`.
      dtype: A floating-point type.
    """
    steps = tf.range(2 ** (bits - 2), dtype=tf.int64)
    powers = powers_of_two(tf.cast(top_exponent, tf.int64) - steps, dtype)
    signed = tf.reshape(tf.stack([powers, -powers], axis=1), [-1])
    book = tf.concat([tf.zeros([1], dtype), signed], axis=0)
    # The error for a code past the end of the book names this operation.
    return tf.gather(book, tf.cast(codes, tf.int32), name="codes")


def powers_of_two(exponents, dtype):
    """Returns exact powers of two; infinity or zero outside of the range of `dtype`."""
    if dtype != tf.float64 and not _portable.is_on():
        # Few ops, because each takes as long as decoding a small layer. Rounding to
        # `dtype` removes any error in the last bits of `tf.pow`.
        exponents = tf.cast(exponents, tf.float64)
        return tf.cast(tf.pow(tf.constant(2.0, tf.float64), exponents), dtype)
    # A float64 whose only set bits are in its biased exponent is a power of two; biased
    # exponent 0 gives zero, and 2047 gives infinity.
    biased = tf.clip_by_value(tf.cast(exponents, tf.int64) + 1023, 0, 2047)
    return tf.cast(tf.bitcast(biased * 2**52, tf.float64), dtype)


# The convolution is linear in its input, and codes have no derivative. So each of the
# two ops is the gradient of the other.


def _attributes(op):
    return {name: op.get_attr(name) for name in _ATTRIBUTES}


@tf.RegisterGradient("InqConv")
def _inq_conv_grad(op, grad):
    inputs, codes, top_exponent = op.inputs
    by_input = _library.load().inq_conv_backprop_input(
        sizes(inputs), codes, top_exponent, grad, **_attributes(op)
    )
    return by_input, None, None


@tf.RegisterGradient("InqConvBackpropInput")
def _inq_conv_backprop_input_grad(op, inputs):
    _, codes, top_exponent, _ = op.inputs
    by_grad = _library.load().inq_conv(inputs, codes, top_exponent, **_attributes(op))
    return None, None, None, by_grad
