# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Convolution of 8-bit activations with zero or signed power-of-two weights."""

import numbers

import tensorflow as tf

from tf_capsops import _library, _portable
from tf_capsops.arguments import (
    float_tensors,
    int_between,
    integers,
    positive_float32,
    tensor_of,
    window_attributes,
)
from tf_capsops.ops.conv2d import conv2d, require_window
from tf_capsops.ops.inq_conv import decoded, powers_of_two
from tf_capsops.ops.undifferentiable import refuse
from tf_capsops.shapes import ShapeRule, dimensions, shape_text

MOST_BITS = 5

refuse(
    "InqConvInt8",
    "InqConvInt8 has no gradient, because it is for inference: train with "
    "tf_capsops.inq_conv2d of fake-quantized inputs.",
)


def inq_conv2d_int8(
    inputs,
    codes,
    top_exponent,
    scale,
    zero_point,
    bits=5,
    strides=1,
    padding="SAME",
    dilations=1,
    name=None,
):
    """Convolves 8-bit activations with weights that are zero or signed powers of two.

    This is `inq_conv2d` applied to `scale * (q - zero_point)`, where

        q = clip(round(inputs / scale) + zero_point, 0, 255)

    is the affine scheme of Jacob et al., "Quantization and Training of Neural Networks
    for Efficient Integer-Arithmetic-Only Inference" (2018), with ties to even. A CPU
    multiplies and adds integers, so the sums are exact. Each sum is rounded to floating
    point once, and multiplied by a power of two and the scale. A GPU and portable
    graphs sum the same integers in floating point. Positive and negative infinity
    become the largest and the smallest number that q can stand for, and NaN becomes the
    smallest.

    The op is for inference: asking for a gradient raises a `LookupError` that names it.

    Args:
      inputs: Images, `[batch, in_height, in_width, in_channels]`, of type float32,
        float64, float16 or bfloat16.
      codes: Codes of the weights, `[kernel_height, kernel_width, in_channels,
        out_channels]`, uint8, as for `inq_conv2d`.
      top_exponent: Exponent of the largest weights of the code book, an int32 scalar;
        or `[out_channels]`, if each output channel has its own book.
      scale: Distance of neighboring activations, a positive float32 scalar.
      zero_point: The q of an activation of 0, an int32 scalar from 0 to 255.
      bits: Bits of a code in storage, from 2 to 5. With more bits, weights differ too
        much in size for sums in 32 bits.
      strides, padding, dilations, name: As for `inq_conv2d`.

    Returns:
      Images, `[batch, out_height, out_width, out_channels]`, of the type of `inputs`.

    Raises:
      ValueError: An argument is not as above.
      tf.errors.InvalidArgumentError: A rank or a dimension does not fit, the kernel is
        larger than the image under "VALID", or an output channel has so many weights
        that a sum may exceed an int32: more than 65793 with 5 bits, 1052688 with 4, and
        4210752 with 3 (a `ValueError` while a graph is built); `zero_point` is out of
        its range; or a code is past the book, which a GPU reads as zero.
      ImportError: The operator library is missing or of another TensorFlow version.

    Example:

    >>> import tensorflow as tf
    >>> import tf_capsops
    >>> image = tf.constant([[0.0, 0.26, 9.0]])[:, :, tf.newaxis, tf.newaxis]
    >>> codes = tf.constant([[[[1, 4]]]], tf.uint8)  # 2 ** 1, -2 ** 0
    >>> tf_capsops.inq_conv2d_int8(image, codes, 1, 0.25, 0, bits=3)[0, :, 0].numpy()
    array([[ 0.  ,  0.  ],
           [ 0.5 , -0.25],
           [18.  , -9.  ]], dtype=float32)
    """
    owner = "inq_conv2d_int8"
    bits = int_between(owner, "bits", bits, 2, MOST_BITS)
    (inputs,) = float_tensors(owner, inputs=inputs)
    codes = integers(owner, "codes", codes, 0, 2**8 - 1)
    codes = tensor_of(owner, "codes", codes, tf.uint8)
    top_exponent = integers(owner, "top_exponent", top_exponent, -(2**31), 2**31 - 1)
    top_exponent = tensor_of(owner, "top_exponent", top_exponent, tf.int32)
    zero_point = integers(owner, "zero_point", zero_point, 0, 255)
    zero_point = tensor_of(owner, "zero_point", zero_point, tf.int32)
    if isinstance(scale, numbers.Number):
        scale = positive_float32(owner, "scale", scale)
    scale = tensor_of(owner, "scale", scale, tf.float32)
    smallest = tf.cast(top_exponent, tf.int64) - (2 ** (bits - 2) - 1)
    multipliers = scale * powers_of_two(smallest, tf.float32)
    if top_exponent.shape.rank == 0 and codes.shape.rank == 4:
        multipliers = tf.repeat(multipliers, dimensions(codes)[3])
    operands = inputs, codes, scale, zero_point, multipliers
    attributes = {
        "bits": bits,
        **window_attributes(owner, strides, padding, dilations),
    }
    if _portable.is_on():
        return _portable.compute(plain, *operands, **attributes, name=name or owner)
    return _library.load().inq_conv_int8(*operands, **attributes, name=name)


def most_terms(bits):
    """Returns how many weights of an output channel cannot overflow an int32 sum."""
    return (2**31 - 1) // (255 * 2 ** (2 ** (bits - 2) - 1))


def plain(
    inputs,
    codes,
    scale,
    zero_point,
    multipliers,
    bits,
    strides,
    padding,
    dilations,
    convolve=conv2d,
):
    """The definition of the op InqConvInt8 in TensorFlow's own ops."""
    rule = ShapeRule("InqConvInt8")
    image = ("batch", "in_height", "in_width", "in_channels")
    inputs = rule.bind("input", inputs, image)
    kernel = ("kernel_height", "kernel_width", "in_channels", "out_channels")
    codes = rule.bind("codes", codes, kernel)
    require_window(rule, "codes", codes, inputs, padding, dilations)
    scale = rule.bind("scale", scale, ())
    zero_point = rule.bind("zero_point", zero_point, ())
    multipliers = rule.bind("multipliers", multipliers, ("out_channels",))
    (inputs,) = rule.checked(inputs)
    levels = 2 ** (bits - 2)
    terms = codes.shape[:3].num_elements()
    most = most_terms(bits)
    rule.require(
        terms is None or terms <= most,
        f"codes must have at most {most} elements per output channel (bits {bits}), as "
        f"the sum of more may exceed an int32, got {shape_text(codes.shape)}",
    )
    zero = tf.cast(zero_point, inputs.dtype)
    steps = tf.round(inputs / tf.cast(scale, inputs.dtype))
    steps = tf.where(steps > -zero, steps, -zero)  # NaN also becomes -zero.
    steps = tf.minimum(steps, 255 - zero)
    weights = decoded(codes, levels - 1, bits, inputs.dtype)
    sums = convolve(steps, weights, strides, padding, dilations)
    return sums * tf.cast(multipliers, inputs.dtype)
