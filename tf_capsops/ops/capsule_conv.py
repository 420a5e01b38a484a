# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Convolution of images whose features are capsules."""

import math

import tensorflow as tf

from tf_capsops import _library, _portable
from tf_capsops.arguments import float_tensors, window_attributes
from tf_capsops.ops.conv2d import IMAGE, conv2d, patches, require_window
from tf_capsops.shapes import ShapeRule, dimensions, shape_text, sizes

_ATTRIBUTES = ("strides", "padding", "dilations")
_DEPTH = ("pose_depth",)
_MOST_CONVOLUTIONS = 16  # The plain definition unrolls `pose_depth` up to this.


def capsule_conv2d(inputs, weights, strides=1, padding="VALID", dilations=1, name=None):
    """Convolves an image of capsules, multiplying poses by weight matrices.

    With strides `sh`, `sw` and dilations `dh`, `dw`, it computes:

        output[n, y, x, o] = sum over kh, kw, c of
            inputs[n, y * sh + kh * dh, x * sw + kw * dw, c] @ weights[kh, kw, c, o]

    This is `tf.nn.conv2d` with matrices in place of numbers; sizes and padding follow
    the same rules. It is equation 2 of Vaidya, "Speeding up Capsules", where capsules
    are 4x4 matrices. It is also the capsule convolution of Chen et al., "How to
    Accelerate Capsule Convolutions in Capsule Networks": their capsules of rank 3 are
    `pose_depth` matrices, each multiplied by its own weights. The op is differentiable
    any number of times in both arguments. Half types accumulate in float32.

    Args:
      inputs: Capsules, `[batch, in_height, in_width, in_channels, pose_rows,
        pose_inner]`, of type float32, float64, float16 or bfloat16. Capsules of rank 3
        have one axis more, `pose_depth` before `pose_rows`.
      weights: Matrices, `[kernel_height, kernel_width, in_channels, out_channels,
        pose_inner, pose_columns]`, of the same type. For capsules of rank 3,
        `pose_depth` comes before `pose_inner`.
      strides: Pixels from one window to the next: a positive integer, or two, down and
        across.
      padding: "VALID", where the kernel stays inside the image, or "SAME", where zeros
        around it make `out_height = ceil(in_height / sh)`, and the width likewise.
      dilations: Pixels from one row of the kernel to the next, and from one column to
        the next: a positive integer, or two.
      name: Name of the operation in a graph.

    Returns:
      Capsules, `[batch, out_height, out_width, out_channels, pose_rows, pose_columns]`.
      For capsules of rank 3, `pose_depth` comes before `pose_rows`. All are zero if
      `in_channels` or `pose_inner` is 0.

    Raises:
      ValueError: `strides`, `padding` or `dilations` is not as above, or `inputs` or
        `weights` is of another type, ragged or sparse.
      tf.errors.InvalidArgumentError: A rank or a dimension does not fit, or the kernel
        is larger than the image under "VALID" (a `ValueError` while a graph is built).
      ImportError: The operator library is missing or of another TensorFlow version.

    Example:

    >>> import tensorflow as tf
    >>> import tf_capsops
    >>> image = tf.ones([1, 5, 5, 1, 3, 3, 3])         # capsules of rank 3
    >>> kernel = tf.ones([4, 4, 1, 1, 3, 3, 3])
    >>> output = tf_capsops.capsule_conv2d(image, kernel)
    >>> output.shape
    TensorShape([1, 2, 2, 1, 3, 3, 3])
    >>> tf.unique(tf.reshape(output, [-1])).y.numpy()
    array([48.], dtype=float32)
    """
    owner = "capsule_conv2d"
    operands = float_tensors(owner, inputs=inputs, weights=weights)
    attributes = window_attributes(owner, strides, padding, dilations)
    if _portable.is_on():
        return _portable.compute(plain, *operands, **attributes, name=name or owner)
    return _library.load().capsule_conv(*operands, **attributes, name=name)


def capsule_conv2d_bias_relu(
    inputs, weights, bias, strides=1, padding="VALID", dilations=1, name=None
):
    """Convolves an image of capsules, adds a bias, and applies relu, in one operation.

        output = max(0, capsule_conv2d(inputs, weights) + bias)

    This saves the passes over the output that a separate bias and relu would take. The
    op is differentiable any number of times in all three operands.

    Args:
      inputs: As for `capsule_conv2d`.
      weights: As for `capsule_conv2d`.
      bias: `[out_channels, pose_rows, pose_columns]`, of the type of `inputs`. For
        capsules of rank 3, `pose_depth` comes before `pose_rows`.
      strides: As for `capsule_conv2d`.
      padding: As for `capsule_conv2d`.
      dilations: As for `capsule_conv2d`.
      name: Name of the operation in a graph.

    Returns:
      Capsules, as `capsule_conv2d`.

    Raises:
      ValueError: As `capsule_conv2d`, or `bias` is of another type.
      tf.errors.InvalidArgumentError: As `capsule_conv2d`, or the shape of `bias` is not
        that of a pixel of the output.
      ImportError: The operator library is missing or of another TensorFlow version.

    Example:

    >>> import tensorflow as tf
    >>> import tf_capsops
    >>> image, kernel = tf.ones([1, 2, 2, 1, 1, 2]), tf.ones([2, 2, 1, 1, 2, 3])
    >>> bias = tf.constant([[[-9.0, -8.0, 1.0]]])
    >>> tf.squeeze(tf_capsops.capsule_conv2d_bias_relu(image, kernel, bias)).numpy()
    array([0., 0., 9.], dtype=float32)
    """
    owner = "capsule_conv2d_bias_relu"
    operands = float_tensors(owner, inputs=inputs, weights=weights, bias=bias)
    attributes = window_attributes(owner, strides, padding, dilations)
    if _portable.is_on():
        return _portable.compute(
            plain_bias_relu, *operands, **attributes, name=name or owner
        )
    return _library.load().capsule_conv_bias_relu(*operands, **attributes, name=name)


def plain(inputs, weights, strides, padding, dilations, convolve=conv2d):
    """The definition of `capsule_conv2d` in TensorFlow's own ops.

    It moves pose rows to the batch, and the poses' inner dimension to the channels.

    Args:
      inputs, weights: As for `capsule_conv2d`; the rank of one must be known.
      strides, padding, dilations: As `window_attributes` returns them.
      convolve: The function that convolves images of numbers, such as `conv2d`.
    """
    rule = ShapeRule("CapsuleConv")
    return _plain(rule, inputs, weights, strides, padding, dilations, convolve)


def plain_bias_relu(inputs, weights, bias, strides, padding, dilations):
    """The definition of `capsule_conv2d_bias_relu` in TensorFlow's own ops."""
    rule = ShapeRule("CapsuleConvBiasRelu")
    outputs = _plain(rule, inputs, weights, strides, padding, dilations, conv2d)
    depth = _DEPTH[: outputs.shape.rank - 6]
    axes = ("out_channels", *depth, "pose_rows", "pose_columns")
    outputs, bias = rule.checked(outputs, rule.bind("bias", bias, axes))
    return tf.nn.relu(outputs + bias)


def bound(rule, inputs, weights, axes=IMAGE):
    """Checks the shapes of a convolution's operands, and returns them with known ranks.

    Args:
      rule: A `ShapeRule`, which records the sizes of all axes.
      inputs, weights: As for `capsule_conv2d`, but with one axis for each of `axes` in
        place of height and width; the rank of one must be known.
      axes: The names of the axes that the window slides along.

    Raises:
      tf.errors.InvalidArgumentError: A rank or a dimension does not fit (a `ValueError`
        while a graph is built).
    """
    operands = {"input": inputs, "weights": weights}
    ranked = (name for name in operands if operands[name].shape.rank is not None)
    first = next(ranked, "input")
    shape, least = operands[first].shape, len(axes) + 4
    rank_2, rank_3 = (
        f"{least + len(depth)} [{', '.join(_axes(axes, depth)[first])}]"
        for depth in ((), _DEPTH)
    )
    rule.require(
        shape.rank in (least, least + 1),
        f"{first} must have rank {rank_2} or {rank_3}, got {shape_text(shape)}",
    )
    named = _axes(axes, _DEPTH[: shape.rank - least])
    return [rule.bind(name, operands[name], named[name]) for name in operands]


def _axes(axes, depth):
    image = ("batch", *(f"in_{axis}" for axis in axes), "in_channels")
    kernel = (*(f"kernel_{axis}" for axis in axes), "in_channels", "out_channels")
    return {
        "input": (*image, *depth, "pose_rows", "pose_inner"),
        "weights": (*kernel, *depth, "pose_inner", "pose_columns"),
    }


def _plain(rule, inputs, weights, strides, padding, dilations, convolve):
    inputs, weights = bound(rule, inputs, weights)
    require_window(rule, "weights", weights, inputs, padding, dilations)
    inputs, weights = rule.checked(inputs, weights)
    moved = {"strides": strides, "padding": padding, "dilations": dilations}
    if "pose_depth" not in rule.sizes:
        return folded(inputs, weights, convolve, moved)
    depth = rule.sizes["pose_depth"]
    rule.require(depth is not None, "pose_depth must be known under portable()")
    if not 0 < depth <= _MOST_CONVOLUTIONS:  # TensorFlow cannot stack an empty list.
        return _product_of_matrices(inputs, weights, moved)
    return of_matrices(depth, folded, inputs, weights, convolve, moved)


def of_matrices(depth, convolve, inputs, weights, *arguments):
    """Convolves capsules of rank 3 as `depth` convolutions of matrices."""
    of_depth = {"num": depth, "axis": -3}
    matrices = zip(tf.unstack(inputs, **of_depth), tf.unstack(weights, **of_depth))
    return tf.stack([convolve(*each, *arguments) for each in matrices], axis=-3)


def folded(inputs, weights, convolve, moved):
    """Convolves matrices by one convolution of images of numbers.

    Args:
      inputs, weights: As for `capsule_conv2d`, without `pose_depth`.
      convolve: A function that convolves images of numbers with filters.
      moved: Keyword arguments for `convolve`, such as the strides.
    """
    batch, height, width, channels, rows, inner = dimensions(inputs)
    *kernel, _, out_channels, _, columns = dimensions(weights)
    images = tf.transpose(inputs, (0, 4, 1, 2, 3, 5))
    images = tf.reshape(images, [batch * rows, height, width, channels * inner])
    filters = tf.transpose(weights, (0, 1, 2, 4, 3, 5))
    filters = tf.reshape(filters, [*kernel, channels * inner, out_channels * columns])
    outputs = convolve(images, filters, **moved)
    size = dimensions(outputs)[1:3]
    outputs = tf.reshape(outputs, [batch, rows, *size, out_channels, columns])
    return tf.transpose(outputs, (0, 2, 3, 4, 1, 5))


def _product_of_matrices(inputs, weights, moved):
    batch, height, width, channels, *poses = dimensions(inputs)
    *kernel, _, out_channels, depth, inner, columns = dimensions(weights)
    images = tf.reshape(inputs, [batch, height, width, channels * math.prod(poses)])
    gathered = patches(images, kernel, **moved)
    terms = kernel[0] * kernel[1] * channels
    gathered = tf.reshape(gathered, [*dimensions(gathered)[:3], terms, *poses])
    matrices = tf.reshape(weights, [terms, out_channels, depth, inner, columns])
    return tf.einsum("nyxcgpq,cogqr->nyxogpr", gathered, matrices)


# The convolution is linear in input and in weights. So each of the three ops is the
# derivative of one number, <grad, conv(input, weights)>, in one of its arguments. The
# gradients of each op are the other two ops, where the incoming gradient replaces the
# argument in which the op is the derivative.


def _attributes(op):
    return {name: op.get_attr(name) for name in _ATTRIBUTES}


def _in_input(like, weights, grad, attributes):
    return _library.load().capsule_conv_backprop_input(
        sizes(like), weights, grad, **attributes
    )


def _in_weights(inputs, like, grad, attributes):
    return _library.load().capsule_conv_backprop_weights(
        inputs, sizes(like), grad, **attributes
    )


def _in_output(inputs, weights, attributes):
    return _library.load().capsule_conv(inputs, weights, **attributes)


def _gradients(inputs, weights, grad, attributes):
    return (
        _in_input(inputs, weights, grad, attributes),
        _in_weights(inputs, weights, grad, attributes),
    )


@tf.RegisterGradient("CapsuleConv")
def _capsule_conv_grad(op, grad):
    return _gradients(*op.inputs, grad, _attributes(op))


@tf.RegisterGradient("CapsuleConvBiasRelu")
def _capsule_conv_bias_relu_grad(op, grad):
    inputs, weights, bias = op.inputs
    grad = tf.raw_ops.ReluGrad(gradients=grad, features=op.outputs[0])
    sums = tf.float64 if grad.dtype == tf.float64 else tf.float32
    grad_bias = tf.reduce_sum(tf.cast(grad, sums), axis=[0, 1, 2])
    return (
        *_gradients(inputs, weights, grad, _attributes(op)),
        tf.cast(grad_bias, bias.dtype),
    )


@tf.RegisterGradient("CapsuleConvBackpropInput")
def _capsule_conv_backprop_input_grad(op, inputs):
    _, weights, grad = op.inputs
    attributes = _attributes(op)
    return (
        None,
        _in_weights(inputs, weights, grad, attributes),
        _in_output(inputs, weights, attributes),
    )


@tf.RegisterGradient("CapsuleConvBackpropWeights")
def _capsule_conv_backprop_weights_grad(op, weights):
    inputs, _, grad = op.inputs
    attributes = _attributes(op)
    return (
        _in_input(inputs, weights, grad, attributes),
        None,
        _in_output(inputs, weights, attributes),
    )
