# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The ordinary convolution of volumes, several windows at once, by `CapsuleConv`.

`capsule_conv3d` makes channels of the slices that a window reads along the depth: with
a kernel of five slices it copies the volume five times. Here a pixel's channels are the
slices that `together` neighboring windows read, and its columns are the results of all
these windows. Of four windows and five slices that is eight slices: two copies of the
volume. The weights of a window are zero for the slices that it does not read, so there
are more products, but tensor cores multiply tiles of 128 and 256 columns anyway.
"""

import tensorflow as tf

from tf_capsops.ops.capsule_conv import capsule_conv2d
from tf_capsops.ops.capsule_conv_nd import padded, padded_depth
from tf_capsops.ops.conv2d import span_of
from tf_capsops.shapes import dimensions

_CHOICES = 1, 2, 4, 8
# The time of a tile of 128 columns, in tiles of 256: it loads as many rows for half the
# products. An estimate, from what level 2 delivers.
_NARROW = 0.7


def conv3d(volumes, filters, padding="VALID", dilations=(1, 1, 1), together=None):
    """Convolves volumes without strides.

    Args:
      volumes: `[batch, depth, height, width, channels]`.
      filters: `[kernel_depth, kernel_height, kernel_width, channels, out_channels]`,
        all known.
      padding: "VALID" or "SAME".
      dilations: three, along depth, height and width.
      together: how many neighboring windows are one pixel; None for the fewest steps of
        the tensor cores. Windows are neighbors if they are `dilations[0]` slices apart.

    Returns:
      `[batch, out_depth, out_height, out_width, out_channels]`.
    """
    taps, _, _, channels, columns = filters.shape
    together = together or windows_together(taps, channels, columns)
    apart, *across = dilations
    batch = dimensions(volumes)[0]
    volumes, depth = padded_depth(volumes, taps, 1, apart, padding)
    # Windows z, z + apart, z + 2 * apart ... are in one of `apart` phases.
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
    """Returns the weights of neighboring windows.

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
    """Returns how many windows together take the fewest steps in training.

    Args:
      taps: the kernel's slices.
      channels, columns: a voxel's numbers, read and written.
    """

    def steps(together):
        read, written = (taps + together - 1) * channels, together * columns
        forward = _padded_columns(written) * _rounded(read, 32)
        to_input = _padded_columns(read) * _rounded(written, 32)
        to_weights = _padded_columns(written) * _rounded(read, 128)
        return (forward + to_input + to_weights) / together

    return min(_CHOICES, key=steps)


def _padded_columns(count):
    """Returns the columns of the tiles that cover `count`, in equal steps."""
    return _rounded(count, 256) if count > 128 else _NARROW * 256


def _rounded(count, multiple):
    return -(-count // multiple) * multiple
