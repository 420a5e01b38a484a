# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Canvas, colors and tiles that several kinds of pictures share."""

import warnings

import numpy as np
from matplotlib import font_manager, rcParams
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.text import Text

BLUE, ORANGE, RED, GRAY = "#2a6fbb", "#d9772b", "#c0262d", "#666666"
# Paper is a shade off white, so that an image's edge shows against the gaps.
INK = LinearSegmentedColormap.from_list("ink", ["#f1f1ee", "#14202e"])


def figure(width, height):
    """Returns an empty picture of a size in inches."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save(figure, path):
    """Writes a picture to `path`, in the format of its suffix.

    Letters that matplotlib's font lacks are drawn in system fonts that have them.
    Without such a font they appear as boxes.
    """
    texts = figure.findobj(Text)
    families = _families({letter for text in texts for letter in text.get_text()})
    for text in texts:
        text.set_fontfamily(families)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")
        figure.savefig(path, dpi=130, facecolor="white")


def _families(letters):
    """Returns the font families that together have some letters, the default first."""
    families = list(rcParams["font.family"])
    missing = {ord(letter) for letter in letters if letter.isprintable()}
    own = font_manager.FontProperties(family=families)
    missing -= _letters(font_manager.findfont(own))
    for font in font_manager.fontManager.ttflist if missing else ():
        placeholders = font.name.startswith("Last Resort")
        if found := not placeholders and missing & _letters(font.fname):
            families.append(font.name)
            missing -= found
    return families


def _letters(path):
    return font_manager.get_font(path).get_charmap().keys()


def literal(name):
    """Escapes a name for matplotlib, where a plain $ would begin a formula."""
    return name.replace("$", r"\$")


def tiles(axes, images, columns):
    """Shows images `[rows, up to columns, H, W, C]`, with gaps between them.

    Images of three channels are shown in color. For others, the first channel is shown
    dark on light.

    Returns:
      The centers of the columns and of the rows, in data coordinates.
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
        axes.imshow(np.clip(np.nan_to_num(sheet, nan=1.0), 0, 1))
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
