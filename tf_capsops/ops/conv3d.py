# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The ordinary convolution of volumes, which computes several windows at once.

`capsule_conv3d` copies the slices that a window reads along the depth to channels: with
a kernel of five slices, it copies the volume five times. Here, the channels of a pixel
are the slices that `together` neighboring windows read, and its outputs are the results
of all these windows. Four windows with a kernel of five slices read eight slices, which
is two copies of the volume. The weights of a window are zero for the slices that it
does not read. This adds products, but tensor cores multiply tiles of 128 and 256
columns anyway.
"""

import tensorflow as tf

from tf_capsops.ops.capsule_conv import capsule_conv2d
from tf_capsops.ops.capsule_conv_nd import VOLUME, padded, padded_depth
from tf_capsops.ops.conv2d import require_window, span_of
from tf_capsops.shapes import ShapeRule, dimensions

_CHOICES = 1, 2, 4, 8
# The time of a tile of 128 columns, relative to a tile of 256: it computes half the
# products but loads as many rows. An estimate from the bandwidth of the L2 cache.
_NARROW = 0.7


def conv3d(volumes, filters, padding="VALID", dilations=(1, 1, 1), together=None):
    """Convolves volumes with a stride of 1, by `capsule_conv2d`.

    Args:
      volumes: `[batch, depth, height, width, channels]`.
      filters: `[kernel_depth, kernel_height, kernel_width, channels, out_channels]`,
        all known.
      padding: "VALID" or "SAME".
      dilations: three ints, along depth, height and width.
      together: the number of neighboring windows to compute as one pixel; None for the
        number with the fewest steps of the tensor cores. Neighboring windows are
        `dilations[0]` slices apart.

    Returns:
      `[batch, out_depth, out_height, out_width, out_channels]`.
    """
    rule = ShapeRule("conv3d")
    require_window(rule, "filters", filters, volumes, padding, dilations, VOLUME)
    (volumes,) = rule.checked(volumes)
    taps, _, _, channels, columns = filters.shape
    together = together or windows_together(taps, channels, columns)
    apart, *across = dilations
    batch = dimensions(volumes)[0]
    volumes, depth = padded_depth(volumes, taps, 1, apart, padding)
    # The windows z, z + apart, z + 2 * apart, ... form one of `apart` phases.
    groups = -(-depth // (together * apart))
    volumes = padded(volumes, 0, groups * together * apart - depth)
    height, width = dimensions(volumes)[2:4]
    read = together + taps - 1
    length = groups * together + taps - 1
    phases = tf.reshape(volumes, [batch, length, apart, height, width, channels])
    slices = [phases[:, span_of(n, groups, together)] for n in range(read)]
    images = tf.reshape(
        tf.concat(slices, axis=-1),
        [batch * groups * apart, height, width, read * channels],
    )
    outputs = capsule_conv2d(
        images[..., None, None],
        _weights_of_all(filters, together)[..., None, None],
        padding=padding,
        dilations=across,
    )
    height, width = dimensions(outputs)[1:3]
    outputs = tf.reshape(
        outputs, [batch, groups, apart, height, width, together, columns]
    )
    outputs = tf.transpose(outputs, [0, 1, 5, 2, 3, 4, 6])
    outputs = tf.reshape(
        outputs, [batch, groups * together * apart, height, width, columns]
    )
    return outputs[:, :depth]


def _weights_of_all(filters, together):
    """Returns the weights that compute `together` neighboring windows at once.

    They are `[height, width, slices * channels, together * out_channels]`, and zero for
    the slices that a window does not read.
    """
    taps, height, width, channels, columns = filters.shape
    moved = [
        tf.pad(filters, [[n, together - 1 - n], *[[0, 0]] * 4]) for n in range(together)
    ]
    every = tf.transpose(tf.stack(moved, axis=4), [1, 2, 0, 3, 4, 5])
    rows = (taps + together - 1) * channels
    return tf.reshape(every, [height, width, rows, together * columns])


def windows_together(taps, channels, columns):
    """Returns how many windows to compute at once for the fewest steps in training.

    Args:
      taps: the kernel's depth.
      channels, columns: the numbers of channels of inputs and outputs.
    """

    def steps(together):
        read, written = (taps + together - 1) * channels, together * columns
        forward = _padded_columns(written) * _rounded(read, 32)
        to_input = _padded_columns(read) * _rounded(written, 32)
        to_weights = _padded_columns(written) * _rounded(read, 128)
        return (forward + to_input + to_weights) / together

    return min(_CHOICES, key=steps)


def _padded_columns(count):
    """Returns the cost of tiles that cover `count` columns, in full-speed columns."""
    return _rounded(count, 256) if count > 128 else _NARROW * 256


def _rounded(count, multiple):
    return -(-count // multiple) * multiple
