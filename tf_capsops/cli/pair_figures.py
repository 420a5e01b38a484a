# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Draws what a capsnet makes of images of two digits."""

import numpy as np
from matplotlib.colors import to_rgb

from tf_capsops.cli import canvas
from tf_capsops.cli.evaluate import multi_hot

_SEARCHED = 1000  # test images among which wrong predictions are looked for
_COLORS = np.array([to_rgb(canvas.BLUE), to_rgb(canvas.ORANGE)], np.float32)


def reconstructions(model, dataset, path, count=40, columns=10):
    """Draws test images, and below each both reconstructions in two colours, to `path`.

    Figure 5 of Sabour et al. (2017). L names the labels, and R the classes whose
    capsules are decoded. Of the `count` images a quarter have wrong predictions, if
    there are so many. They come last, in red, and twice: decoded from the labels, and
    from the prediction (P).
    """
    images, shown, decoded, wrong = _chosen(model, dataset, count)
    outputs = model({"images": images, "labels": decoded})
    overlaid = _overlaid(np.asarray(outputs["reconstruction"]))
    grey = canvas.INK(images.mean(axis=-1))[..., :3]
    columns = min(columns, len(images))
    rows = -(-len(images) // columns)
    figure = canvas.figure(columns * 0.9, rows * 2.2 + 0.3)
    for row, axes in enumerate(figure.subplots(rows, 1, squeeze=False)[:, 0]):
        part = slice(row * columns, (row + 1) * columns)
        centers, _ = canvas.tiles(axes, np.stack([grey[part], overlaid[part]]), columns)
        for center, *sample in zip(centers, shown[part], decoded[part], wrong[part]):
            _caption(axes, center, *sample)
    figure.suptitle("test images, and below each its reconstructions", fontsize=10)
    canvas.save(figure, path)


def _chosen(model, dataset, count):
    """Chooses what to draw.

    Returns:
      Images; their classes and those to decode, each `[N, classes]` with ones; and
      whether the prediction is wrong.
    """
    right, wrong = [], []
    for images, targets in dataset.test.batches(100).take(_SEARCHED // 100):
        lengths = model.predict_on_batch(images)["lengths"]
        shown, read = targets["lengths"].numpy(), multi_hot(lengths, model.objects)
        for each in zip(images.numpy(), shown, read):
            (right if np.array_equal(*each[1:]) else wrong).append(each)
    wrong = wrong[: max(count // 4, count - len(right))]
    chosen = [(*each, False) for each in right[: count - len(wrong)]]
    for image, shown, read in wrong:
        chosen += [(image, shown, shown, True), (image, shown, read, True)]
    return [np.stack(each) for each in zip(*chosen)]


def _overlaid(pairs):
    """Returns images `[N, H, W, 3]` of pairs `[N, 2, H, W, C]`, in colours on paper.

    Where both have ink, their colours mix to a dark one.
    """
    ink = np.einsum("nphwc,pk->nhwk", pairs, 1 - _COLORS) / pairs.shape[-1]
    return np.clip(1 - ink, 0, 1) * canvas.INK(0.0)[:3]


def _caption(axes, center, shown, decoded, wrong):
    """Names above an image the classes of its labels and those that are decoded."""
    labels, read = (", ".join(map(str, np.flatnonzero(x))) for x in (shown, decoded))
    predicted = " (P)" if labels != read else ""
    axes.annotate(
        f"L {labels}\nR {read}{predicted}",
        (center, 1.02),
        xycoords=("data", "axes fraction"),
        ha="center",
        fontsize=7,
        color=canvas.RED if wrong else canvas.GREY,
    )
