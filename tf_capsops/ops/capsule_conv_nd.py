# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Convolution of lines and volumes of capsules, and transposed convolutions.

All of them run as convolutions of images. A line is an image of one row. For a volume,
the slices that a window reads along the depth become channels of an image. This copy
takes `kernel_depth / stride` times the memory of the input.
"""

import math

import tensorflow as tf

from tf_capsops import _library, _portable
from tf_capsops.arguments import float_tensors, window_attributes
from tf_capsops.ops.capsule_conv import bound, capsule_conv2d, folded, of_matrices
from tf_capsops.ops.conv2d import (
    IMAGE,
    conv_transpose,
    has_no_elements,
    nothing,
    require_window,
    span_of,
    transposed_sizes,
    windows_of_axis,
)
from tf_capsops.shapes import ShapeRule, dimensions

LINE, VOLUME = ("width",), ("depth", *IMAGE)


def capsule_conv1d(inputs, weights, strides=1, padding="VALID", dilations=1, name=None):
    """Convolves a line of capsules, multiplying poses by weight matrices.

        output[n, x, o] = sum over k, c of
            inputs[n, x * stride + k * dilation, c] @ weights[k, c, o]

    This is `capsule_conv2d` for images of one row.

    Args:
      inputs: Capsules, `[batch, in_width, in_channels, pose_rows, pose_inner]`, of type
        float32, float64, float16 or bfloat16. Capsules of rank 3 have one axis more,
        `pose_depth` before `pose_rows`.
      weights: Matrices, `[kernel_width, in_channels, out_channels, pose_inner,
        pose_columns]`, of the same type. For capsules of rank 3, `pose_depth` comes
        before `pose_inner`.
      strides: Capsules from one window to the next: a positive integer.
      padding: "VALID" or "SAME", as for `capsule_conv2d`.
      dilations: Capsules from one tap of the kernel to the next: a positive integer.
      name: Name of the scope of the operations in a graph.

    Returns:
      Capsules, `[batch, out_width, out_channels, pose_rows, pose_columns]`. For
      capsules of rank 3, `pose_depth` comes before `pose_rows`.

    Raises:
      ValueError: As `capsule_conv2d`.
      tf.errors.InvalidArgumentError: As `capsule_conv2d`; one operand's rank must be
        known.
      ImportError: The operator library is missing or of another TensorFlow version.

    Example:

    >>> import tensorflow as tf
    >>> import tf_capsops
    >>> words, kernel = tf.ones([2, 9, 3, 4, 4]), tf.ones([5, 3, 8, 4, 4])
    >>> tf_capsops.capsule_conv1d(words, kernel, padding="SAME").shape
    TensorShape([2, 9, 8, 4, 4])
    """
    owner, axes = "capsule_conv1d", LINE
    inputs, weights = float_tensors(owner, inputs=inputs, weights=weights)
    window = window_attributes(owner, strides, padding, dilations, len(axes))
    inputs, weights = _bound(owner, inputs, weights, axes, window)
    (stride,), (dilation,) = window["strides"], window["dilations"]
    with tf.name_scope(name or owner):
        outputs = capsule_conv2d(
            tf.expand_dims(inputs, 1),
            tf.expand_dims(weights, 0),
            (1, stride),
            window["padding"],
            (1, dilation),
        )
        return tf.squeeze(outputs, 1)


def capsule_conv3d(inputs, weights, strides=1, padding="VALID", dilations=1, name=None):
    """Convolves a volume of capsules, multiplying poses by weight matrices.

        output[n, z, y, x, o] = sum over kd, kh, kw, c of
            inputs[n, z * sd + kd * dd, y * sh + kh * dh, x * sw + kw * dw, c]
            @ weights[kd, kh, kw, c, o]

    with strides `sd`, `sh`, `sw` and dilations `dd`, `dh`, `dw`. This is
    `capsule_conv2d` with three spatial axes. A kernel that is deeper than 1 needs
    memory for a copy of the input, `kernel_depth / sd` times as large, and for the
    gradient of this copy.

    Args:
      inputs: Capsules, `[batch, in_depth, in_height, in_width, in_channels, pose_rows,
        pose_inner]`, of type float32, float64, float16 or bfloat16. Capsules of rank 3
        have one axis more, `pose_depth` before `pose_rows`.
      weights: Matrices, `[kernel_depth, kernel_height, kernel_width, in_channels,
        out_channels, pose_inner, pose_columns]`, of the same type. For capsules of
        rank 3, `pose_depth` comes before `pose_inner`. `kernel_depth` must be known.
      strides: Voxels from one window to the next: a positive integer, or three, along
        depth, height and width.
      padding: "VALID" or "SAME", as for `capsule_conv2d`.
      dilations: Voxels from one tap of the kernel to the next: a positive integer, or
        three.
      name: Name of the scope of the operations in a graph.

    Returns:
      Capsules, `[batch, out_depth, out_height, out_width, out_channels, pose_rows,
      pose_columns]`. For capsules of rank 3, `pose_depth` comes before `pose_rows`.

    Raises:
      ValueError: As `capsule_conv2d`.
      tf.errors.InvalidArgumentError: As `capsule_conv2d`; one operand's rank must be
        known.
      ImportError: The operator library is missing or of another TensorFlow version.

    Example:

    >>> import tensorflow as tf
    >>> import tf_capsops
    >>> scan, kernel = tf.ones([1, 8, 16, 16, 2, 4, 4]), tf.ones([3, 3, 3, 2, 5, 4, 4])
    >>> tf_capsops.capsule_conv3d(scan, kernel, strides=2, padding="SAME").shape
    TensorShape([1, 4, 8, 8, 5, 4, 4])
    """
    owner = "capsule_conv3d"
    inputs, weights = float_tensors(owner, inputs=inputs, weights=weights)
    window = window_attributes(owner, strides, padding, dilations, len(VOLUME))
    inputs, weights = _bound(owner, inputs, weights, VOLUME, window)
    (stride, *strides), (dilation, *dilations) = window["strides"], window["dilations"]
    padding = window["padding"]
    with tf.name_scope(name or owner):
        images, depth = windows_as_channels(
            inputs, weights.shape[0], stride, dilation, padding
        )
        outputs = capsule_conv2d(
            images, taps_as_channels(weights), strides, padding, dilations
        )
        return as_volume(outputs, dimensions(inputs)[0], depth)


def capsule_conv2d_transpose(inputs, weights, strides=1, padding="VALID", name=None):
    """Upsamples an image of capsules by a transposed convolution.

    The transposed convolution is the gradient of `capsule_conv2d` in its input. With
    strides `sh`, `sw`, and `above` rows and `left` columns that "SAME" cuts off (none
    for "VALID"), it starts from zeros and computes:

        output[n, y * sh + kh - above, x * sw + kw - left, o] +=
            inputs[n, y, x, c] @ weights[kh, kw, c, o]

    It is differentiable any number of times in both arguments. Half types accumulate in
    float32.

    Args:
      inputs: As for `capsule_conv2d`; the rank of one operand must be known.
      weights: As for `capsule_conv2d`: `[kernel_height, kernel_width, in_channels,
        out_channels, pose_inner, pose_columns]`, with the channels and `pose_inner` of
        `inputs`.
      strides: Pixels of the output from one window to the next: a positive integer, or
        two, down and across.
      padding: "SAME", where `out_height = in_height * sh`; or "VALID", where
        `out_height = in_height * sh + max(kernel_height - sh, 0)`, which is what
        `keras.layers.Conv2DTranspose` returns. The width likewise.
      name: Name of the scope of the operations in a graph.

    Returns:
      Capsules, `[batch, out_height, out_width, out_channels, pose_rows, pose_columns]`.
      For capsules of rank 3, `pose_depth` comes before `pose_rows`.

    Raises:
      ValueError: `strides` or `padding` is not as above, or `inputs` or `weights` is of
        another type, ragged or sparse.
      tf.errors.InvalidArgumentError: A rank or a dimension does not fit (a `ValueError`
        while a graph is built).
      ImportError: The operator library is missing or of another TensorFlow version.

    Example:

    >>> import tensorflow as tf
    >>> import tf_capsops
    >>> image, kernel = tf.ones([1, 7, 7, 8, 4, 4]), tf.ones([3, 3, 8, 2, 4, 4])
    >>> tf_capsops.capsule_conv2d_transpose(image, kernel, 2, padding="SAME").shape
    TensorShape([1, 14, 14, 2, 4, 4])
    """
    owner = "capsule_conv2d_transpose"
    inputs, weights = float_tensors(owner, inputs=inputs, weights=weights)
    window = window_attributes(owner, strides, padding, 1)
    inputs, weights = _bound(owner, inputs, weights, IMAGE, window, transposed=True)
    moved = {"strides": window["strides"], "padding": window["padding"]}
    batch, *image = dimensions(inputs)[:3]
    *kernel, _, out_channels = dimensions(weights)[:4]
    image = transposed_sizes(image, kernel, **moved)
    poses = [*dimensions(inputs)[4:-1], dimensions(weights)[-1]]
    shape = [batch, *image, out_channels, *poses]
    with tf.name_scope(name or owner):
        if has_no_elements(inputs, weights):
            return nothing(inputs, weights, shape)
        if _portable.is_on():
            return _portable.widened(_plain_transpose)(inputs, weights, **moved)
        # With these weights, a capsule convolution maps our output to our input.
        *poses, inner, columns = range(4, weights.shape.rank)
        weights = tf.transpose(weights, (0, 1, 3, 2, *poses, columns, inner))
        return _library.load().capsule_conv_backprop_input(
            shape, weights, inputs, **window
        )


def capsule_conv3d_transpose(inputs, weights, strides=1, padding="VALID", name=None):
    """Upsamples a volume of capsules by a transposed convolution.

    This is `capsule_conv2d_transpose` with three spatial axes:

        output[n, z * sd + kd - front, y * sh + kh - above, x * sw + kw - left, o] +=
            inputs[n, z, y, x, c] @ weights[kd, kh, kw, c, o]

    A kernel that is deeper than its stride needs memory for copies of the input, in all
    `kernel_depth` times as large.

    Args:
      inputs: As for `capsule_conv3d`.
      weights: As for `capsule_conv3d`.
      strides: Voxels of the output from one window to the next: a positive integer, or
        three, along depth, height and width.
      padding: "SAME" or "VALID", as for `capsule_conv2d_transpose`.
      name: Name of the scope of the operations in a graph.

    Returns:
      Capsules, `[batch, out_depth, out_height, out_width, out_channels, pose_rows,
      pose_columns]`. For capsules of rank 3, `pose_depth` comes before `pose_rows`.

    Raises:
      ValueError: As `capsule_conv2d_transpose`.
      tf.errors.InvalidArgumentError: As `capsule_conv2d_transpose`.
      ImportError: The operator library is missing or of another TensorFlow version.

    Example:

    >>> import tensorflow as tf
    >>> import tf_capsops
    >>> scan, kernel = tf.ones([1, 4, 8, 8, 5, 4, 4]), tf.ones([3, 3, 3, 5, 2, 4, 4])
    >>> tf_capsops.capsule_conv3d_transpose(scan, kernel, 2, padding="SAME").shape
    TensorShape([1, 8, 16, 16, 2, 4, 4])
    """
    owner = "capsule_conv3d_transpose"
    inputs, weights = float_tensors(owner, inputs=inputs, weights=weights)
    window = window_attributes(owner, strides, padding, 1, len(VOLUME))
    inputs, weights = _bound(owner, inputs, weights, VOLUME, window, transposed=True)
    stride, *strides = window["strides"]
    padding, taps = window["padding"], weights.shape[0]
    overlap = max(taps - stride, 0)
    front, more = (overlap // 2, 0) if padding == "SAME" else (0, overlap)
    with tf.name_scope(name or owner):
        batch, size = dimensions(inputs)[:2]
        # Every `stride`th slice of the output reads the same taps. With tap
        # `phase + stride * i`, its slice number m reads slice m - i of the input.
        first, beyond = front // stride, (front + more - 1) // stride + 1
        count = size + beyond - first
        most = -(-taps // stride) - 1
        before = max(most - first, 0)
        inputs = padded(inputs, before, max(beyond, 0))
        phases = []
        for phase in range(min(stride, taps)):
            own = weights[phase::stride]
            begins = [before + first - i for i in range(own.shape[0])]
            outputs = capsule_conv2d_transpose(
                as_channels(inputs, begins, count, 1),
                taps_as_channels(own),
                strides,
                padding,
            )
            phases.append(as_volume(outputs, batch, count))
        phases += [tf.zeros_like(phases[0])] * (stride - len(phases))
        outputs = tf.stack(phases, 2)
        _, _, _, *rest = dimensions(outputs)
        begin, length = front - first * stride, size * stride + more
        outputs = tf.reshape(outputs, [batch, count * stride, *rest])
        return sliced(outputs, slice(begin, begin + length))


def _bound(owner, inputs, weights, axes, window, transposed=False):
    """Checks the operands and the kernel, and returns them with known ranks."""
    rule = ShapeRule(owner)
    inputs, weights = bound(rule, inputs, weights, axes)
    padding = "SAME" if transposed else window["padding"]
    require_kernel(rule, inputs, weights, axes, padding, window["dilations"])
    return rule.checked(inputs, weights)


def require_kernel(rule, inputs, weights, axes, padding, dilations):
    """Checks that a kernel fits the image, and that its depth, if any, is known."""
    require_window(rule, "weights", weights, inputs, padding, dilations, axes)
    is_known = axes != VOLUME or weights.shape[0] is not None
    rule.require(is_known, "kernel_depth must be known")


def windows_as_channels(inputs, taps, stride, dilation, padding):
    """Returns an image for each window along the depth, with its slices as channels.

    Args:
      inputs: `[batch, depth, height, width, channels, ...]`.
      taps, stride, dilation, padding: The window along the depth.

    Returns:
      `[batch * windows, height, width, taps * channels, ...]`, and the number of
      windows along the depth.
    """
    inputs, count = padded_depth(inputs, taps, stride, dilation, padding)
    begins = range(0, taps * dilation, dilation)
    return as_channels(inputs, begins, count, stride), count


def padded_depth(inputs, taps, stride, dilation, padding):
    """Returns a volume with the slices that "SAME" adds, and the number of its windows.

    Window z reads slices `z * stride + tap * dilation`. Arguments are those of
    `windows_as_channels`.
    """
    size = dimensions(inputs)[1]
    count, missing = windows_of_axis(size, taps, stride, dilation, padding)
    if padding == "SAME":
        return padded(inputs, missing // 2, missing - missing // 2), count
    return inputs, count


def padded(inputs, before, after, value=0):
    """Adds slices filled with `value` before and after a volume."""
    shape = dimensions(inputs)
    if _too_many_axes(inputs):
        inputs = tf.reshape(inputs, [*shape[:2], math.prod(shape[2:])])
    others = [[0, 0]] * (inputs.shape.rank - 2)
    slices = [[0, 0], [before, after], *others]
    outputs = tf.pad(inputs, slices, constant_values=value)
    if outputs.shape.rank == len(shape):
        return outputs
    return tf.reshape(outputs, [*dimensions(outputs)[:2], *shape[2:]])


def _too_many_axes(inputs):
    """Whether axes must be flattened: TFLite slices and pads at most five."""
    return _portable.is_on() and inputs.shape.rank > 5


def sliced(inputs, span, axis=1):
    """Returns a slice along an axis."""
    if not _too_many_axes(inputs):
        return inputs[(*[slice(None)] * axis, span)]
    shape = dimensions(inputs)
    flat = [math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])]
    outputs = tf.reshape(inputs, flat)[:, span]
    return tf.reshape(
        outputs, [*shape[:axis], dimensions(outputs)[1], *shape[axis + 1 :]]
    )


def as_channels(inputs, begins, count, stride):
    """Returns `count` images for each volume, with several slices as channels.

    The channels of image z are those of the slices `begin + z * stride`, for each
    `begin` of `begins`.
    """
    batch, depth, height, width, channels, *poses = dimensions(inputs)
    if _too_many_axes(inputs):
        flat = [batch, depth, height, width, channels * math.prod(poses)]
        inputs = tf.reshape(inputs, flat)
    slices = [inputs[:, span_of(begin, count, stride)] for begin in begins]
    joined = tf.concat(slices, axis=4)
    image = [height, width, len(slices) * channels, *poses]
    return tf.reshape(joined, [batch * count, *image])


def taps_as_channels(weights):
    """Returns weights for such images, `[height, width, taps * channels, ...]`."""
    others = range(3, weights.shape.rank)
    weights = tf.transpose(weights, (1, 2, 0, *others))
    height, width, taps, channels, *rest = dimensions(weights)
    return tf.reshape(weights, [height, width, taps * channels, *rest])


def as_volume(images, batch, count):
    """Returns volumes whose slices are `count` consecutive images each."""
    return tf.reshape(images, [batch, count, *dimensions(images)[1:]])


def _plain_transpose(inputs, weights, strides, padding):
    """The definition of `capsule_conv2d_transpose` in TensorFlow's own ops."""

    moved = {"strides": strides, "padding": padding}
    if inputs.shape.rank == 6:
        return folded(inputs, weights, conv_transpose, moved)
    depth = inputs.shape[4] or weights.shape[4]
    rule = ShapeRule("capsule_conv2d_transpose")
    rule.require(depth is not None, "pose_depth must be known under portable()")
    return of_matrices(depth, folded, inputs, weights, conv_transpose, moved)
