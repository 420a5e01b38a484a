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
      axes: the names of the axes that the window slides along.

    Raises:
      ValueError: if `keras.layers.Conv2D` would not take an argument; the message names
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
    """Returns the output size along each axis, as `keras.layers.Conv2D` computes it.

    Args:
      layer: a layer after `set_window`; it may also have a `data_format`.
      input_shape: `[batch, height, width, ...]`, or `[batch, channels, height, width]`
        for `"channels_first"`; None is unknown.
      axes: the `axes` that `set_window` was given.

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


def transposed_map_size(layer, input_shape):
    """Returns the output size of a transposed convolution, as Keras computes it.

    Args:
      layer: a layer after `set_window`.
      input_shape: `[batch, spatial..., ...]`; None is unknown.
    """
    overlaps = layer.padding == "valid"
    sizes = zip(input_shape[1:], layer.kernel_size, layer.strides)
    return [
        None if size is None else size * stride + max(window - stride, 0) * overlaps
        for size, window, stride in sizes
    ]


def require_known(layer, input_shape, names):
    """Raises a ValueError if a dimension other than batch and spatial is unknown.

    Args:
      layer: a layer with `axes`, the names of the spatial axes.
      input_shape: `[batch, spatial..., ...]`; None is unknown.
      names: the names of all axes.
    """
    first = 1 + len(layer.axes)
    if None in input_shape[first:]:
        *others, last = names[:first]
        raise ValueError(
            f"{type(layer).__name__}: only {', '.join(others)} and {last} of "
            f"[{', '.join(names)}] may be unknown, got shape {input_shape}"
        )


def require_no_dilation(layer):
    """Raises a ValueError if a layer's `dilation_rate` is not 1."""
    if {*layer.dilation_rate} != {1}:
        raise ValueError(
            f"{type(layer).__name__}: dilation_rate must be 1, got "
            f"{layer.dilation_rate}"
        )
