# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Random changes of training images move their masks with them."""

import json

import numpy as np
import pytest
import scipy.ndimage
import tensorflow as tf
from masked import masked_pictures

from tf_capsops.__main__ import main
from tf_capsops.cli.distortions import distort, distort_masks
from tf_capsops.cli.pipeline import training_batches
from tf_capsops.cli.presets import Distortion
from tf_capsops.data.samples import ArraySamples

pytestmark = pytest.mark.usefixtures("eagerly")

_CHANGES = {
    "shift": {"shift": 3.0},
    "turn": {"degrees": 40.0},
    "zoom": {"zoom": 0.3},
    "flip": {"flip": 0.5},
    "elastic": {"elastic": 4.0},
    "all": {"shift": 2.0, "degrees": 30.0, "zoom": 0.2, "flip": 0.5, "elastic": 3.0},
}
every_change = pytest.mark.parametrize("change", _CHANGES)


def _places(count, *size):
    """Returns images of each pixel's row and column, and masks of its number.

    The images have the row, the column, 1 and a random number, `[B, H, W, 4]`.
    """
    height, width = size
    rows, columns = np.mgrid[:height, :width].astype(np.float32)
    noise = np.random.default_rng(3).random(size, np.float32)
    image = np.stack([rows, columns, np.ones(size, np.float32), noise], axis=-1)
    number = np.arange(height * width, dtype=np.int32).reshape(1, *size, 1)
    return np.repeat(image[None], count, axis=0), np.repeat(number, count, axis=0)


@every_change
@pytest.mark.parametrize("size", [(17, 23), (32, 32), (7, 13)])
def test_a_mask_stays_with_its_image(change, size):
    images, masks = _places(30, *size)
    options, seed = Distortion(**_CHANGES[change]), [4, 2]
    moved = distort(tf.constant(images), seed, options).numpy()
    numbers = distort_masks(tf.constant(masks), seed, options).numpy()[..., 0]
    # The image says which place each of its pixels comes from, the mask which pixel.
    rows, columns, ones, noise = np.moveaxis(moved, -1, 0)
    inside = ones > 1 - 1e-6
    assert inside.any() and (moved != images).any()
    for place, pixel in ((rows, numbers // size[1]), (columns, numbers % size[1])):
        # Both are of the nearest pixel, give or take the rounding of one half.
        assert np.abs(place - pixel)[inside].max() <= 0.5 + 1e-3
    assert numbers.dtype == np.int32 and not numbers[ones == 0].any()
    expected = scipy.ndimage.map_coordinates(
        images[0, ..., 3].astype(np.float64), [rows[inside], columns[inside]], order=1
    )
    np.testing.assert_allclose(noise[inside], expected, atol=1e-4)


def test_bends_are_smooth_and_as_large_as_they_may_be():
    images, _ = _places(200, 33, 47)
    moved = distort(tf.constant(images), [1, 2], Distortion(elastic=4.0)).numpy()
    ones = moved[..., 2]
    bend = np.where(ones[..., None] > 1 - 1e-6, moved[..., :2] - images[..., :2], 0)
    # Cubic interpolation goes a little beyond the points that it meets.
    assert 3 < np.abs(bend).max() < 4 * 1.5
    assert np.abs(bend.mean(axis=(0, 1, 2))).max() < 0.2
    whole = (ones > 1 - 1e-6)[:, 1:] & (ones > 1 - 1e-6)[:, :-1]
    assert np.abs(np.diff(bend, axis=1))[whole].max() < 1.5  # of neighbors
    # Each image has a bend of its own, and a seed repeats it.
    assert np.ptp(bend[:, 16, 23], axis=0).min() > 2
    again = distort(tf.constant(images), [1, 2], Distortion(elastic=4.0))
    np.testing.assert_array_equal(again, moved)


@every_change
def test_slices_of_a_volume_move_together(change):
    images, masks = _places(8, 16, 24)
    volumes, numbers = (np.stack([each] * 3, axis=1) for each in (images, masks))
    numbers[:, 1] += 1000
    options = Distortion(**_CHANGES[change])
    moved = distort(tf.constant(volumes), [7, 1], options).numpy()
    slices = distort_masks(tf.constant(numbers), [7, 1], options).numpy()
    expected = distort(tf.constant(images), [7, 1], options).numpy()
    for place in range(3):
        np.testing.assert_allclose(moved[:, place], expected, atol=1e-4)
    inside = expected[..., 2] > 1 - 1e-6
    plain = distort_masks(tf.constant(masks), [7, 1], options).numpy()
    np.testing.assert_array_equal(slices[:, 0], plain)
    np.testing.assert_array_equal(slices[:, 1][inside], plain[inside] + 1000)


def test_light_and_erasing_leave_masks_alone():
    images, masks = _places(8, 8, 8)
    options = Distortion(brightness=0.3, contrast=0.2, erase=0.3)
    moved = distort_masks(tf.constant(masks), [1, 2], options)
    np.testing.assert_array_equal(moved, masks)
    assert (
        (distort(tf.constant(images / 8), [1, 2], options) != images / 8).numpy().any()
    )


def test_training_batches_have_both():
    images, masks = _places(12, 9, 9)
    batches = training_batches(
        ArraySamples(images, masks), 4, Distortion(flip=0.5, degrees=20.0), 1
    )
    for moved, numbers in batches.take(3).as_numpy_iterator():
        inside = moved[..., 2] > 1 - 1e-6
        away = np.abs(moved[..., 1] - numbers[..., 0] % 9)[inside]
        assert away.max() <= 0.5 + 1e-3 and inside.mean() > 0.5


@pytest.mark.parametrize("kind", ["folder", "volumes"])
def test_train_moves_masks(kind, tmp_path):
    source = tmp_path / "cells"
    if kind == "folder":
        masked_pictures(source, 10)
        options = ["--model", "unet", "--elastic", "1.5", "--erase", "0.1"]
    else:
        source = source.with_suffix(".npz")
        masks = np.random.default_rng(1).integers(0, 2, [4, 8, 8, 8])
        arrays = {"x_train": masks * 0.5, "y_train": masks}
        np.savez(source, **arrays, x_test=masks * 0.5, y_test=masks)
        options = ["--brightness", "0.1", "--distortion", "1", "20", "0"]
    run = tmp_path / "run"
    given = ["--data", str(source), "--epochs", "1", "--batch-size", "4", "--flip"]
    assert main(["train", *given, *options, "--output", str(run)]) == 0
    kept = json.loads((run / "config.json").read_text())["distortion"]
    assert kept["flip"] == 0.5 and ("elastic" in kept) == (kind == "folder")
