# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""What pictures of several kinds are drawn on and with."""

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

BLUE, ORANGE, RED, GREY = "#2a6fbb", "#d9772b", "#c0262d", "#666666"
# Paper is a shade off white, so that an image's edge shows against the gaps.
INK = LinearSegmentedColormap.from_list("ink", ["#f1f1ee", "#14202e"])


def figure(width, height):
    """Returns an empty picture of a size in inches."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save(figure, path):
    """Writes a picture to `path`, as PNG or what its name says."""
    figure.savefig(path, dpi=130, facecolor="white")


def literal(name):
    """Returns a name as matplotlib writes it; a $ would begin a formula."""
    return name.replace("$", r"\$")


def tiles(axes, images, columns):
    """Shows images `[rows, up to columns, H, W, C]`, with gaps between them.

    Three channels are shown in colour; of others the first, dark on light.

    Returns:
      The centers of the columns and those of the rows, in data coordinates.
    """
    rows, filled, height, width, channels = images.shape
    gap = max(1, height // 14)
    sheet = np.full(
        (rows * (height + gap) - gap, columns * (width + gap) - gap, channels), np.nan
    )
    for row in range(rows):
        for column in range(filled):
            top, left = row * (height + gap), column * (width + gap)
            sheet[top : top + height, left : left + width] = images[row, column]
    if channels == 3:
        axes.imshow(np.nan_to_num(sheet, nan=1.0), vmin=0, vmax=1)
    else:
        axes.imshow(sheet[..., 0], vmin=0, vmax=1, cmap=INK, interpolation="nearest")
    bare(axes)
    return (
        np.arange(columns) * (width + gap) + (width - 1) / 2,
        np.arange(rows) * (height + gap) + (height - 1) / 2,
    )


def bare(axes):
    """Removes ticks and frame around the picture."""
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    axes.set_xticks([])
    axes.set_yticks([])
