# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Training batches: random changes of color pictures, and weights of classes."""

import numpy as np
import pytest
import tensorflow as tf

from tf_capsops import data, models
from tf_capsops.cli.pipeline import distort, training_batches
from tf_capsops.cli.presets import PRESETS, Distortion, fitting
from tf_capsops.data.samples import ArraySamples


def _images(count=400):
    """Images of 6 x 10 pixels that differ from each other, from 0.4 to 0.6."""
    random = np.random.default_rng(1)
    return random.uniform(0.4, 0.6, [count, 6, 10, 3]).astype(np.float32)


def test_half_of_the_images_are_mirrored():
    images = _images()
    changed = distort(tf.constant(images), [1, 2], Distortion(flip=0.5)).numpy()
    is_same = (changed == images).all(axis=(1, 2, 3))
    np.testing.assert_array_equal(changed[~is_same], images[~is_same][:, :, ::-1])
    # 200 of 400, give or take five standard deviations.
    assert abs(is_same.sum() - 200) < 5 * 10


def test_brightness_moves_all_pixels_alike():
    images = _images()
    options = Distortion(brightness=0.3)
    changed = distort(tf.constant(images), [1, 2], options).numpy()
    moved = (changed - images).reshape(len(images), -1)
    assert np.ptp(moved, axis=1).max() < 1e-6
    assert -0.3 <= moved.min() < -0.28 and 0.28 < moved.max() <= 0.3
    white = distort(tf.ones([40, 6, 10, 3]), [1, 2], options).numpy()
    assert white.max() == 1 and white.min() < 0.8


def test_contrast_stretches_about_the_mean():
    images = _images()
    changed = distort(tf.constant(images), [1, 2], Distortion(contrast=0.5)).numpy()
    kept = [each.mean(axis=(1, 2, 3)) for each in (images, changed)]
    np.testing.assert_allclose(*kept, rtol=1e-5)
    ratio = changed.std(axis=(1, 2, 3)) / images.std(axis=(1, 2, 3))
    assert 0.5 <= ratio.min() < 0.53 and 1.47 < ratio.max() <= 1.5


def test_erasing_paints_a_rectangle_over():
    images = _images()
    changed = distort(tf.constant(images), [1, 2], Distortion(erase=0.25)).numpy()
    erased = (changed != images).any(axis=-1)
    means = images.mean(axis=(1, 2))
    for image, mean, inside in zip(changed, means, erased):
        rows, columns = inside.any(axis=1), inside.any(axis=0)
        np.testing.assert_array_equal(inside, np.outer(rows, columns))
        if inside.any():
            np.testing.assert_allclose(image[inside] - mean, 0, atol=1e-6)
    shares = erased.mean(axis=(1, 2))
    assert 0.2 < shares.max() <= 0.35  # of whole pixels, a few more
    assert erased.any(axis=0).all()


@pytest.mark.parametrize("options", [{}, {"shift": 1.0, "flip": 0.5, "erase": 0.2}])
def test_a_seed_repeats_the_changes(options):
    images = tf.constant(_images(20))
    first, again, other = (
        distort(images, seed, Distortion(**options)).numpy()
        for seed in ([1, 2], [1, 2], [1, 3])
    )
    np.testing.assert_array_equal(first, again)
    assert (first != other).any() == bool(options)


def test_what_was_there_before_is_drawn_as_before():
    images = tf.constant(_images(20))
    before = distort(images, [1, 2], Distortion(shift=2.0, degrees=10.0)).numpy()
    tiny = Distortion(shift=2.0, degrees=10.0, brightness=1e-7)
    np.testing.assert_allclose(distort(images, [1, 2], tiny), before, atol=1e-6)


@pytest.mark.parametrize(
    "network, parameters",
    [
        ("capsnet", 14_816_064),
        ("p_capsnet", 471_456),
        ("matrix_capsnet", 103_524),
        ("efficient_capsnet", 158_240),
        ("convnet", 1_290_826),
    ],
)
def test_large_networks_are_for_48_to_128_pixels(network, parameters):
    options = PRESETS[network]["large"].network
    make = getattr(models, network)
    assert make((128, 128, 3), 10, **options).count_params() == parameters
    make((48, 48, 1), 2, **options)
    assert fitting((47, 64, 3)) == "compact" and fitting((64, 48, 3)) == "large"


def test_entries_without_new_changes_are_those_of_earlier_releases():
    assert Distortion(2.0).entries == {"shift": 2.0, "degrees": 0.0, "zoom": 0.0}
    both = Distortion(flip=0.5, erase=0.1)
    assert Distortion(**both.entries) == both and "contrast" not in both.entries


def test_balanced_classes_have_equal_weight():
    labels = np.array([0] * 6 + [2] * 3 + [3])
    samples = ArraySamples(np.zeros([10, 2, 2, 1], np.float32), labels)
    arguments = samples, 4, Distortion(), 1
    options = {"class_weight": "balanced", "num_classes": 4}
    batches = training_batches(*arguments, **options).take(3)
    sums, count = np.zeros(4), 0
    for _, targets, weights in batches:
        np.add.at(sums, targets.numpy(), weights.numpy())
        count += len(weights)
    assert count == 10
    np.testing.assert_allclose(sums, [10 / 3, 0, 10 / 3, 10 / 3], rtol=1e-6)
    assert len(next(iter(training_batches(*arguments)))) == 2


def test_weights_of_classes_of_masks_are_square_roots_of_their_rarity():
    digits = data.load("segmented_mnist:digits")
    classes = digits.num_classes
    batches = training_batches(
        digits.train, 479, Distortion(), 1, "balanced", num_classes=classes
    )
    counts, found = np.zeros(classes), np.zeros(classes)
    for images, masks, weights in batches.take(3):
        assert weights.shape == images.shape[:-1]
        np.add.at(counts, masks.numpy()[..., 0], 1)
        found[masks.numpy()[..., 0]] = weights.numpy()
    # Other pairs than those that were counted, of places and orders of their own.
    np.testing.assert_allclose(found, np.sqrt(np.mean(counts) / counts), rtol=0.1)
    assert found[0] < 1 < found[1]


@pytest.mark.parametrize("classes", [4, 6])
def test_weights_of_rare_classes_are_bounded(classes):
    masks = np.zeros([600, 8, 8, 1], np.int32)
    masks[::2, 0], masks[0, 1, 1] = 1, 2
    counted = {*np.linspace(0, 599, 512).astype(int)}
    masks[min({*range(600)} - counted), 1, 1] = 3  # in a mask that is not counted
    samples = ArraySamples(np.zeros(masks.shape, np.float32), masks)
    batches = training_batches(
        samples, 100, Distortion(), 1, "balanced", num_classes=classes
    )
    found = {}
    for _, targets, weights in batches.take(6):
        for each, weight in zip(targets.numpy().ravel(), weights.numpy().ravel()):
            found.setdefault(int(each), set()).add(float(weight))
    assert all(len(each) == 1 for each in found.values())
    weights = [found[each].pop() for each in range(4)]
    assert weights[2:] == [100, 1] and 0 < weights[0] < 1 < weights[1] < 5
