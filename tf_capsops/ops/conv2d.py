# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Convolutions for every size and type, from which portable definitions are built."""

import itertools

import tensorflow as tf

from tf_capsops import _portable
from tf_capsops.shapes import dimensions, shape_text

IMAGE = ("height", "width")


def conv2d(images, filters, strides, padding, dilations):
    """Convolves by `tf.nn.conv2d`, or by a matrix product if TensorFlow has no kernel.

    TensorFlow rejects filters without elements. On a CPU it also lacks the gradients of
    dilated convolutions, except for those that oneDNN computes. With one channel and
    unequal strides, oneDNN may return any numbers (seen with TensorFlow 2.21).

    Args:
      images: `[batch, height, width, channels]`.
      filters: `[kernel_height, kernel_width, channels, out_channels]`.
      strides, padding, dilations: As `window_attributes` returns them.
    """
    kernel = dimensions(filters)[:2]
    batch, *size, _ = dimensions(images)
    size = windows_of_axes(size, kernel, strides, padding, dilations)
    shape = [batch, *size, dimensions(filters)[3]]
    if has_no_elements(images, filters):
        return nothing(images, filters, shape)
    is_known = not any(map(tf.is_tensor, kernel))
    onednn_fails = images.shape[3] == 1 and strides[0] != strides[1]
    if is_known and (dilations != (1, 1) or onednn_fails):
        return product_of_patches(images, filters, strides, padding, dilations)
    if is_known:
        images, padding = padded_for_tflite(images, kernel, strides, padding)
    outputs = tf.nn.conv2d(images, filters, strides, padding, dilations=dilations)
    if not any(map(tf.is_tensor, shape)):
        return outputs
    # On a CPU, TensorFlow 2.21 gives an empty batch the height and width of the input.
    return tf.reshape(outputs, shape)


def has_no_elements(images, filters):
    """Whether images or filters are known to have no elements."""
    return 0 in (*images.shape.as_list(), *filters.shape.as_list())


def nothing(images, filters, shape):
    """Returns zeros of which images or filters without elements get a gradient."""
    zero = 0 * (tf.reduce_sum(images) + tf.reduce_sum(filters))
    return tf.broadcast_to(zero, shape)


def padded_for_tflite(images, kernel, strides, padding, dilations=(1, 1)):
    """Returns images and padding for a convolution that TFLite computes correctly.

    Both are usually unchanged. But with "SAME", TFLite's CPU delegate XNNPACK returns
    zeros if the last window of an axis ends before its last pixel (seen with TensorFlow
    2.21). In portable graphs, such images are padded here, and the returned padding is
    "VALID".

    Args:
      images: `[batch, height, width, channels]`; only the rank must be known.
      kernel: Its height and width, ints.
      strides, padding, dilations: As `window_attributes` returns them.
    """
    if padding != "SAME" or not _portable.is_on():
        return images, padding
    sizes = dimensions(images)[1:3]
    axes = list(zip(sizes, kernel, strides, dilations, strict=True))
    if not any(_may_leave_out_pixels(*axis) for axis in axes):
        return images, padding
    shape, added = dimensions(images), [[0, 0] for _ in images.shape]
    for axis, (size, window, stride, dilation) in enumerate(axes, 1):
        # Windows of one pixel never read outside of the image, whatever its size.
        if window > 1:
            _, missing = windows_of_axis(size, window, stride, dilation, padding)
            added[axis] = [missing // 2, missing - missing // 2]
            shape[axis] += missing
    if any(tf.is_tensor(each) or each for each in itertools.chain(*added)):
        # The reshape tells converters the number of channels.
        images = tf.reshape(tf.pad(images, added), shape)
    return images, "VALID"


def _may_leave_out_pixels(size, window, stride, dilation):
    """Whether, with "SAME", the last window may end before an axis does."""
    span = (window - 1) * dilation + 1
    if tf.is_tensor(size):
        return stride > span
    return (-(-size // stride) - 1) * stride + span < size


def conv_transpose(images, filters, strides, padding):
    """Returns the transposed convolution of images or volumes, which may be empty.

    Args:
      images: `[batch, spatial..., channels]`, of two or three spatial axes.
      filters: `[kernel..., channels, out_channels]`.
      strides, padding: As `window_attributes` returns them.
    """
    axes = len(strides)
    batch, *image, _ = dimensions(images)
    *kernel, _, out_channels = dimensions(filters)
    size = transposed_sizes(image, kernel, strides, padding)
    shape = [batch, *size, out_channels]
    if has_no_elements(images, filters):
        return nothing(images, filters, shape)
    filters = tf.transpose(filters, (*range(axes), axes + 1, axes))
    transposed = {2: tf.nn.conv2d_transpose, 3: tf.nn.conv3d_transpose}[axes]
    return transposed(images, filters, shape, strides, padding)


def transposed_sizes(image, kernel, strides, padding):
    """Returns the output size of a transposed convolution along each axis.

    A size that is a scalar tensor gives a scalar tensor; ints give ints.
    """
    return [
        size * stride + (largest(window - stride, 0) if padding == "VALID" else 0)
        for size, window, stride in zip(image, kernel, strides, strict=True)
    ]


def product_of_patches(images, filters, strides, padding, dilations):
    """Convolves by one matrix product, with a row for each output pixel."""
    *kernel, channels, out_channels = dimensions(filters)
    gathered = patches(images, kernel, strides, padding, dilations)
    rows = kernel[0] * kernel[1] * channels
    return tf.einsum(
        "nyxc,co->nyxo", gathered, tf.reshape(filters, [rows, out_channels])
    )


def patches(images, kernel, strides, padding, dilations):
    """Gathers the pixels that each output reads, side by side along the channels.

    Args:
      images: `[batch, height, width, channels]`; only the rank must be known.
      kernel: Its height and width, ints.
      strides, padding, dilations: As `window_attributes` returns them.
    """
    image = dimensions(images)[1:3]
    axes = steps_of_axes(image, kernel, strides, padding, dilations)
    (height, down), (width, across) = axes
    taps = []
    for (y, rows, top), (x, columns, left) in itertools.product(down, across):
        read = images[
            :, span_of(top, rows, strides[0]), span_of(left, columns, strides[1])
        ]
        outside = [y, height - y - rows], [x, width - x - columns]
        taps.append(tf.pad(read, [[0, 0], *outside, [0, 0]]))
    return tf.concat(taps, axis=3)


def steps_of_axes(image, kernel, strides, padding, dilations):
    """Returns `(output size, steps)` for each axis, with a step for each kernel row.

    A step holds the first output that reads inside the image with this row, the number
    of such outputs, and the pixel that the first one reads. A size that is a scalar
    tensor gives scalar tensors; ints give ints.
    """
    return [
        _steps(*of_axis, padding)
        for of_axis in zip(image, kernel, strides, dilations, strict=True)
    ]


def windows_of_axes(image, kernel, strides, padding, dilations):
    """Returns the number of windows along each axis."""
    axes = zip(image, kernel, strides, dilations, strict=True)
    return [windows_of_axis(*axis, padding)[0] for axis in axes]


def windows_of_axis(size, kernel, stride, dilation, padding):
    """Returns the number of windows along an axis, and the pixels that "SAME" adds.

    A size that is a scalar tensor gives scalar tensors; ints give ints.
    """
    span = (kernel - 1) * dilation + 1
    if padding == "VALID":
        return largest(-(-(size - span + 1) // stride), 0), 0
    out = -(-size // stride)
    return out, largest((out - 1) * stride + span - size, 0)


def _steps(size, kernel, stride, dilation, padding):
    out, missing = windows_of_axis(size, kernel, stride, dilation, padding)
    before, steps = missing // 2, []
    for row in range(kernel):
        offset = row * dilation - before
        first = _least(out, largest(-(offset // stride), 0))
        end = largest(first, _least(out, -((offset - size) // stride)))
        steps.append((first, end - first, first * stride + offset))
    return out, steps


def span_of(first, count, stride):
    """Returns a slice of `count` pixels; if there are none, `first` may be negative."""
    if not tf.is_tensor(count) and count == 0:
        # XLA's gradient of a slice that ends before it begins has a wrong shape.
        return slice(0, 0)
    begin = largest(first, 0)
    return slice(begin, largest(begin + (count - 1) * stride + 1, 0), stride)


def largest(a, b):
    return tf.maximum(a, b) if tf.is_tensor(a) or tf.is_tensor(b) else max(a, b)


def _least(a, b):
    return tf.minimum(a, b) if tf.is_tensor(a) or tf.is_tensor(b) else min(a, b)


def require_window(rule, operand, weights, inputs, padding, dilations, axes=IMAGE):
    """Checks that a kernel is not empty and, with "VALID", fits into the image.

    What is unknown while a graph is built is left to `rule.checked`.

    Args:
      rule: A `ShapeRule`.
      operand: The name of the weights in messages.
      weights: A tensor whose first axes are the kernel's, one for each of `axes`.
      inputs: A tensor whose first axes are the batch and the image's.
      padding, dilations: As `window_attributes` returns them.
      axes: The names of these axes.

    Raises:
      tf.errors.InvalidArgumentError: The kernel is empty or does not fit (a
        `ValueError` while a graph is built).
    """
    sizes, kernels = dimensions(inputs)[1:], dimensions(weights)
    windows = zip(axes, kernels, sizes, dilations)
    for axis, (name, kernel, size, dilation) in enumerate(windows):
        must = f"{operand} dim {axis} (kernel_{name}) must be"
        got = f"got {shape_text(weights.shape)}"
        is_known = not (tf.is_tensor(kernel) or tf.is_tensor(size))
        if tf.is_tensor(kernel):
            rule.require_at_run_time(kernel >= 1, f"{must} at least 1, got", kernel)
        else:
            rule.require(kernel, f"{must} at least 1, {got}")
        if padding == "VALID" and is_known and size:
            most = (size - 1) // dilation + 1
            rule.require(
                kernel <= most,
                f"{must} at most {most} (in_{name} {size}, dilation {dilation}, "
                f"padding VALID), {got}",
            )
        elif padding == "VALID" and not is_known:
            fits = (size == 0) | ((kernel - 1) * dilation < size)
            must += f" at most in_{name}, got {'?' if tf.is_tensor(kernel) else kernel}"
            of = f"(dilation {dilation}, padding VALID); in_{name}, kernel_{name} are"
            rule.require_at_run_time(fits, f"{must} {of}", size, kernel)
