# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Windows that slide over an image, and the sizes of their outputs."""

from tf_capsops.arguments import positive_ints

LINE, IMAGE, VOLUME = ("width",), ("height", "width"), ("depth", "height", "width")


def set_window(layer, kernel_size, strides, padding, dilation_rate=1, axes=IMAGE):
    """Sets a layer's `kernel_size`, `strides`, `padding` and `dilation_rate`.

    Args:
      layer: the layer, named in messages.
      kernel_size, strides, dilation_rate: an int, or one for each axis.
      padding: `"valid"` or `"same"`.
      axes: what the axes are called that the window slides along.

    Raises:
      ValueError: if one is not as `keras.layers.Conv2D` takes it; the message names
        layer, argument and value.
    """
    owner = type(layer).__name__
    count = len(axes)
    layer.kernel_size = positive_ints(owner, "kernel_size", kernel_size, count)
    layer.strides = positive_ints(owner, "strides", strides, count)
    layer.dilation_rate = positive_ints(owner, "dilation_rate", dilation_rate, count)
    layer.padding = str(padding).lower()
    if layer.padding not in ("valid", "same"):
        raise ValueError(f"{owner}: padding must be 'valid' or 'same', got {padding!r}")


def map_size(layer, input_shape, axes=IMAGE):
    """Returns the sizes of the output, as for `keras.layers.Conv2D`.

    Args:
      layer: what `set_window` was given; it may also have a `data_format`.
      axes: as `set_window` was given them; the sizes returned are theirs.
      input_shape: `[batch, height, width, ...]`, or `[batch, channels, height, width]`
        for `"channels_first"`; None is unknown.

    Raises:
      ValueError: the window is larger than the image.
    """
    sizes = []
    first = 2 if getattr(layer, "data_format", "") == "channels_first" else 1
    for axis, side in enumerate(axes):
        size = input_shape[first + axis]
        if size is not None:
            if layer.padding == "valid":
                size -= (layer.kernel_size[axis] - 1) * layer.dilation_rate[axis]
            if size < 1:
                dilated = layer.dilation_rate
                raise ValueError(
                    f"{type(layer).__name__}: the input's {side} is smaller than "
                    f"kernel_size {layer.kernel_size}"
                    f"{f' of dilation_rate {dilated}' if {*dilated} != {1} else ''}, "
                    f"got shape {input_shape}"
                )
            size = -(-size // layer.strides[axis])
        sizes.append(size)
    return sizes
