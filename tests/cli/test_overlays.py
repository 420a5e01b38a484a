# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Masks drawn over their images: colors, and what `evaluate` draws."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_capsops import models
from tf_capsops.__main__ import main
from tf_capsops.cli import overlays


def test_an_overlay_colors_objects_alone():
    image = np.full([2, 3, 1], 0.5)
    classes = np.array([[0, 1, 2], [0, 0, 1]])
    drawn = overlays.overlaid(image, classes)
    assert drawn.dtype == np.uint8 and drawn.shape == (2, 3, 3)
    np.testing.assert_array_equal(drawn[classes == 0], 128)
    np.testing.assert_array_equal(drawn[0, 1], drawn[1, 2])
    assert len({tuple(each) for each in drawn[classes > 0].tolist()}) == 2
    assert len({tuple(each) for each in overlays.colors(20).tolist()}) == 20
    rgb = overlays.overlaid(np.eye(3)[np.newaxis], np.zeros([1, 3], int))
    np.testing.assert_array_equal(rgb[0], 255 * np.eye(3))


def test_the_outermost_pixels_of_an_object_are_its_contour():
    classes = np.zeros([7, 8], int)
    classes[1:6, 0:5], classes[2:4, 5:7] = 1, 2  # one object at the image's side
    drawn = overlays.overlaid(np.zeros([7, 8, 1]), classes)
    colors = np.round(255 * overlays.colors(3)).astype(np.uint8)
    inside = np.zeros([7, 8], bool)
    inside[2:5, 0:4] = True
    contour = (classes > 0) & ~inside
    np.testing.assert_array_equal(drawn[contour], colors[classes[contour]])
    expected = np.round(255 * 0.4 * overlays.colors(3)[1])
    np.testing.assert_array_equal(drawn[inside], np.tile(expected, [inside.sum(), 1]))
    assert not drawn[classes == 0].any()


@pytest.mark.parametrize("shape", [(8, 16), (8, 8, 16)])
def test_evaluate_draws_the_first_images_and_the_worst(shape, tmp_path, monkeypatch):
    random = np.random.default_rng(4)
    masks = random.integers(0, 3, [10, *shape])
    arrays = {"x_train": masks / 2, "y_train": masks, "x_test": masks / 2}
    np.savez(tmp_path / "blobs.npz", **arrays, y_test=masks)
    build = models.unet if len(shape) == 2 else models.ucaps3d
    keras.utils.set_random_seed(1)
    model = build((*shape, 1), 3, size="small")
    model.save(tmp_path / "model.keras")
    drawn, draw = [], overlays.draw

    def noted(*args):
        drawn.append(args)
        draw(*args)

    monkeypatch.setattr(overlays, "draw", noted)
    given = ["--data", str(tmp_path / "blobs.npz"), "--output", str(tmp_path / "out")]
    assert main(["evaluate", str(tmp_path / "model.keras"), *given]) == 0
    ((samples, read, dice, names, path),) = drawn
    assert names == ["0", "1", "2"] and path == tmp_path / "out/overlays.png"
    assert tf.io.decode_png(path.read_bytes()).shape[-1] in (3, 4)
    images = (masks / 2).astype(np.float32)[..., np.newaxis]
    found = model.predict(images, verbose=0).argmax(axis=-1)
    expected = []
    for mask, each in zip(masks, found):
        pairs = [(mask == c, each == c) for c in range(3)]
        shared = [2 * np.sum(a & b) / (a.sum() + b.sum()) for a, b in pairs if a.any()]
        expected.append(np.mean(shared))
    numbers = [number for *_, number in samples]
    worst = sorted(range(4, 10), key=expected.__getitem__)[:4]
    assert numbers == [0, 1, 2, 3, *worst]
    np.testing.assert_allclose(dice, np.take(expected, numbers))
    for (image, mask, number), each in zip(samples, read):
        np.testing.assert_array_equal(image, images[number])
        np.testing.assert_array_equal(mask, masks[number])
        np.testing.assert_array_equal(each, found[number])
