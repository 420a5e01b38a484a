# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Segments images of any size, large ones tile by tile."""

import itertools
import math

import keras
import numpy as np

from tf_capsops import layers
from tf_capsops.cli import evaluation
from tf_capsops.errors import CommandError
from tf_capsops.metrics import classes_read
from tf_capsops.models.segmenter import Segmenter

# The largest sizes of images and of volumes that are segmented at once by default.
LARGEST = {2: 1024, 3: 128}
_TRANSPOSED = (
    keras.layers.Conv2DTranspose,
    keras.layers.Conv3DTranspose,
    layers.SlimCaps2DTranspose,
    layers.SlimCaps3DTranspose,
)


def opened(model):
    """Returns a network that segments, with the same weights, for images of any size.

    Args:
      model: a `Segmenter` or a `UNet`.

    Raises:
      CommandError: if it is a U-Net in which poolings round sizes up.
    """
    sizes = model.input_shape[1:-1]
    if not any(sizes):
        return model
    if any(size and size % model.multiple for size in sizes):
        only = " x ".join(str(size or "any") for size in reversed(sizes))
        raise CommandError(
            f"the network takes only images of {only} pixels, which are not multiples "
            f"of {model.multiple}"
        )

    def clone(part):
        inputs = keras.Input((*[None] * len(sizes), part.input_shape[-1]))
        return keras.models.clone_model(part, input_tensors=inputs)

    if isinstance(model, Segmenter):
        parts = {name: clone(getattr(model, name)) for name in ("network", "decoder")}
        free = type(model)(**{**model.get_config(), **parts})
    else:
        free = clone(model)
    free.set_weights(model.get_weights())
    return free


def reach(model):
    """Returns how many pixels to each side of a pixel its scores depend on.

    This is half the receptive field, for networks without windows in their skip
    connections. A normalization over whole images, as in `ucaps3d`, is not counted.
    """
    pixels, scale = 0, 1
    for layer in getattr(model, "network", model).layers:
        window = getattr(layer, "kernel_size", getattr(layer, "pool_size", None))
        if window is None:
            continue
        size, stride = max(window), max(layer.strides)
        dilation = max(getattr(layer, "dilation_rate", (1,)))
        before = scale
        scale = scale // stride if isinstance(layer, _TRANSPOSED) else scale * stride
        # "same" padding has the larger half of size - stride behind the window.
        beyond = size - 1 - (size - stride) // 2
        pixels += max(beyond, 0) * dilation * min(before, scale)
    return pixels


def tile_of(model, tile=None):
    """Returns the largest height, width and depth that are read at once.

    Args:
      model: a network that segments.
      tile: the size that was asked for; None for `LARGEST`.
    """
    tile = tile or LARGEST[len(model.input_shape) - 2]
    return _round_up(tile, model.multiple)


def seamless(model):
    """Returns the smallest tile whose margin is the network's `reach`.

    It is 0 for a network of one size, which has no tiles.
    """
    if None not in model.input_shape[1:-1]:
        return 0
    return 4 * _round_up(reach(model), model.multiple)


def classes_of(model, image, tile=None):
    """Returns the class that a network reads at each pixel, `[H, W]` or `[D, H, W]`.

    Each tile has a margin that is only read: the network's `reach`, or a quarter of the
    tile if that is less, and then seams may show.

    Args:
      model: a network that segments.
      image: `[H, W, C]` or `[D, H, W, C]`, of any size where the network's are open.
      tile: the largest height, width and depth to read at once; None for `LARGEST`. It
        is rounded up to a multiple of what divides the network's sizes.
    """
    sizes = image.shape[:-1]
    if None not in model.input_shape[1:-1]:
        return _read(model, image)
    multiple = model.multiple
    tile = tile_of(model, tile)
    margin = min(seamless(model) // 4, tile // 4 // multiple * multiple)
    padding = [(0, -size % multiple) for size in sizes]
    image = np.pad(image, [*padding, (0, 0)])
    found = np.empty(image.shape[:-1], np.int64)
    along = [_windows(size, tile, margin) for size in found.shape]
    for windows in itertools.product(*along):
        outer, kept, inner = map(tuple, zip(*windows))
        found[kept] = _read(model, image[outer])[inner]
    return found[tuple(map(slice, sizes))]


def _read(model, image):
    scores = model.predict_on_batch(image[np.newaxis])
    evaluation.require_numbers(scores)
    return classes_read(scores[0]).numpy()


def _round_up(size, multiple):
    return -(-size // multiple) * multiple


def _windows(size, tile, margin):
    """Divides a length into overlapping windows of a tile each.

    Returns:
      Three slices for each window: the part of the length that it sees, the part that
      is kept, and the place of the kept part in the window.
    """
    if size <= tile:
        return [(slice(0, size),) * 3]
    count = math.ceil((size - tile) / (tile - 2 * margin)) + 1
    windows = []
    for number in range(count):
        start = min(number * (tile - 2 * margin), size - tile)
        begin = start + (margin if number else 0)
        end = start + tile - (margin if number < count - 1 else 0)
        kept = slice(begin, end)
        windows.append(
            (slice(start, start + tile), kept, slice(begin - start, end - start))
        )
    return windows
