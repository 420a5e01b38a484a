# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Batches for training: all images once, distorted as promised, repeatable."""

import numpy as np
import pytest
import tensorflow as tf

from tf_capsops import models
from tf_capsops.cli.pipeline import distort, training_batches
from tf_capsops.cli.presets import PRESETS, Distortion, fitting
from tf_capsops.data.samples import ArraySamples


def _dot(size=9):
    image = np.zeros([size, size, 1], np.float32)
    image[size // 2, size // 2] = 1
    return image


def _epochs(images, batch_size, distortion, seed, numbers):
    """Returns the batches of some epochs."""
    samples = ArraySamples(images, np.arange(len(images)))
    given = samples, batch_size, distortion, seed
    batches = training_batches(*given, first_epoch=numbers[0])
    count = -(-len(images) // batch_size)
    found = list(batches.take(len(numbers) * count))
    return [found[i : i + count] for i in range(0, len(found), count)]


def test_epochs_hold_every_image_once_in_another_order():
    images = np.arange(10, dtype=np.float32).reshape(10, 1, 1, 1)
    epochs = _epochs(images, 4, Distortion(), 1, range(2))
    orders = [np.concatenate([y for _, y in epoch]) for epoch in epochs]
    for epoch, order in zip(epochs, orders):
        assert [len(y) for _, y in epoch] == [4, 4, 2]
        assert sorted(order) == list(range(10))
        for x, y in epoch:
            np.testing.assert_array_equal(x[:, 0, 0, 0], y)
    assert np.any(orders[0] != orders[1])


def test_an_epoch_of_some_steps_is_the_beginning_of_a_whole_one():
    samples = ArraySamples(np.zeros([10, 2, 2, 1], np.float32), np.arange(10))
    whole, some = (
        training_batches(samples, 4, Distortion(), 1, **steps)
        for steps in ({}, {"steps": 2})
    )
    orders = [[y.numpy().tolist() for _, y in each.take(9)] for each in (whole, some)]
    assert orders[1][:6] == [*orders[0][:2], *orders[0][3:5], *orders[0][6:8]]
    later = training_batches(samples, 4, Distortion(), 1, None, 2, steps=2)
    assert next(iter(later))[1].numpy().tolist() == orders[0][6]


def test_nobody_waits_for_the_end_of_a_data_set():
    samples = ArraySamples(np.zeros([3, 2, 2, 1], np.uint8), np.zeros(3, np.int64))
    trained = training_batches(samples, 2, Distortion(), 1)
    for batches in (trained, samples.batches(2)):
        assert batches.options().autotune.enabled is False


def test_a_seed_repeats_everything():
    images = np.random.default_rng(1).random([12, 8, 8, 1], np.float32)

    def drawn(seed, numbers):
        distortion = Distortion(shift=1.0, degrees=10, zoom=0.1)
        epochs = _epochs(images, 5, distortion, seed, numbers)
        return np.stack([np.concatenate([x for x, _ in epoch]) for epoch in epochs])

    three = drawn(1, range(3))
    np.testing.assert_array_equal(three, drawn(1, range(3)))
    np.testing.assert_array_equal(three[2:], drawn(1, [2]))
    assert np.any(three != drawn(2, range(3)))
    # Other distortions too, not the same ones in another order.
    assert not set(np.sort(three[0].sum((1, 2, 3)))) & set(three[1].sum((1, 2, 3)))


def test_whole_shifts_move_pixels_and_reach_every_place_alike():
    images = tf.constant(np.tile(_dot(), (5000, 1, 1, 1)))
    moved = distort(images, [1, 2], Distortion(shift=2.0)).numpy()
    assert set(np.unique(moved)) == {0.0, 1.0}
    places = moved.sum(axis=0)[..., 0]
    assert np.count_nonzero(places) == 25
    assert np.count_nonzero(places[2:7, 2:7]) == 25
    # 5000 in 25 places: 200 each, give or take five standard deviations.
    assert np.abs(places[2:7, 2:7] - 200).max() < 5 * np.sqrt(200)


def test_turning_and_zooming_keep_the_middle():
    images = tf.constant(np.tile(_dot(), (50, 1, 1, 1)))
    turned = distort(images, [1, 2], Distortion(degrees=30, zoom=0.2)).numpy()
    np.testing.assert_allclose(turned[:, 4, 4, 0], 1, atol=1e-5)
    bar = np.zeros([50, 9, 9, 1], np.float32)
    bar[:, :, 4] = 1
    turned = distort(tf.constant(bar), [1, 2], Distortion(degrees=30)).numpy()
    assert np.ptp(turned, axis=0).max() > 0.5
    np.testing.assert_array_equal(distort(bar, [1, 2], Distortion()), bar)


@pytest.mark.parametrize(
    "network, preset, shape, parameters",
    [
        ("capsnet", "small", (8, 8, 1), 362688),
        ("capsnet", "compact", (28, 28, 1), 1283600),
        ("capsnet", "sabour", (28, 28, 1), 8227088),
        ("p_capsnet", "small", (8, 8, 1), 67488),
        ("p_capsnet", "compact", (28, 28, 1), 82336),
        ("p_capsnet", "chen", (28, 28, 1), 124704),
        ("p_capsnet", "tiny", (28, 28, 1), 3888),
        ("matrix_capsnet", "small", (8, 8, 1), 19452),
        ("matrix_capsnet", "compact", (28, 28, 1), 318964),
        ("efficient_capsnet", "small", (8, 8, 1), 39216),
        ("efficient_capsnet", "compact", (28, 28, 1), 162400),
        ("deepcaps", "paper", (28, 28, 1), 8506705),
    ],
)
def test_presets_make_networks_for_their_images(network, preset, shape, parameters):
    model = getattr(models, network)(shape, 10, **PRESETS[network][preset].network)
    assert model.count_params() == parameters
    fits = "small" if shape[0] == 8 else "compact"
    assert fitting(shape) == fits and fits in PRESETS[network]
