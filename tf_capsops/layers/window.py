# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Output sizes of windows that slide over an image."""


def checked_padding(owner, padding):
    """Returns `"valid"` or `"same"`; raises a ValueError for anything else."""
    lower = str(padding).lower()
    if lower not in ("valid", "same"):
        raise ValueError(f"{owner}: padding must be 'valid' or 'same', got {padding!r}")
    return lower


def map_size(layer, input_shape):
    """Returns height and width of the output, as for `keras.layers.Conv2D`.

    Args:
      layer: has `kernel_size`, `strides`, `padding` and `dilation_rate`.
      input_shape: `[batch, height, width, ...]`; None is unknown.

    Raises:
      ValueError: the window is larger than the image.
    """
    sizes = []
    for axis, side in enumerate(("height", "width")):
        size = input_shape[1 + axis]
        if size is not None:
            if layer.padding == "valid":
                size -= (layer.kernel_size[axis] - 1) * layer.dilation_rate[axis]
            if size < 1:
                raise ValueError(
                    f"{type(layer).__name__}: the input's {side} is smaller than "
                    f"kernel_size {layer.kernel_size} of dilation_rate "
                    f"{layer.dilation_rate}, got shape {input_shape}"
                )
            size = -(-size // layer.strides[axis])
        sizes.append(size)
    return sizes
