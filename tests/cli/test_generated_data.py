# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""MultiMNIST and the affine images: what they are, and that a seed repeats them."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from adversarial.memory import peak

from tf_capsops import data
from tf_capsops.data import affine_mnist

_CLASSES = np.array([0, 3, 3, 1, 0, 2, 2, 2, 3, 0], np.int32)


@pytest.fixture(scope="module")
def digits():
    """Boxes of 20 x 20 pixels in the middle of 28 x 28, each of its own gray."""
    images = np.zeros([len(_CLASSES), 28, 28, 1], np.float32)
    grays = (np.arange(len(_CLASSES)) + 1) / 32
    images[:, 4:24, 4:24] = grays[:, None, None, None]
    return data.Dataset("boxes", images, _CLASSES, images[::-1], _CLASSES[::-1])


def _epochs(samples, epochs):
    """Returns the images of so many epochs, and their targets, as arrays."""
    taken = [samples.take(np.arange(len(samples)), each) for each in range(epochs)]
    return tf.nest.map_structure(lambda *each: np.concatenate(each), *taken)


@pytest.fixture(scope="module")
def pairs(digits):
    """The numbers [N, 2] and places [N, 2, 2] of 2000 pairs, and their targets."""
    images, targets = _epochs(data.MultiMnist(digits).train, 200)
    singles = targets["reconstruction"]
    assert images.shape == (2000, 36, 36, 1) and singles.shape == (2000, 2, 36, 36, 1)
    np.testing.assert_array_equal(images, np.minimum(singles.sum(axis=1), 1))
    numbers = np.rint(singles.max(axis=(2, 3, 4)) * 32).astype(int) - 1
    ink = singles[..., 0] > 0
    places = np.stack([ink.any(axis=3).argmax(2), ink.any(axis=2).argmax(2)], axis=2)
    for single, number, (top, left) in zip(
        singles.reshape(-1, 36, 36, 1), numbers.flat, places.reshape(-1, 2)
    ):
        box = digits.x_train[number, 4:24, 4:24]
        np.testing.assert_array_equal(single[top : top + 20, left : left + 20], box)
        assert np.count_nonzero(single) == 400
    return numbers, places, targets["lengths"]


def test_pairs_are_of_different_classes_and_every_digit_is_the_first_once(pairs):
    numbers, _, lengths = pairs
    classes = _CLASSES[numbers]
    assert np.all(classes[:, 0] < classes[:, 1])
    np.testing.assert_array_equal(lengths, np.eye(4)[classes].sum(axis=1))
    firsts = np.tile(np.arange(10), 200)
    assert np.all((numbers == firsts[:, None]).sum(axis=1) == 1)


def test_every_digit_of_another_class_is_as_likely(pairs):
    numbers, _, _ = pairs
    for first in range(10):
        both = numbers[first::10]
        seconds = both[both != first]
        counts = np.bincount(seconds, minlength=10)
        others = np.flatnonzero(_CLASSES[first] != _CLASSES)
        assert set(np.flatnonzero(counts)) == set(others)
        mean = 200 / len(others)
        assert np.abs(counts[others] - mean).max() < 5 * np.sqrt(mean)


def test_digits_are_shifted_by_up_to_four_pixels_and_overlap(pairs):
    _, places, _ = pairs
    shifts = places - 8  # the box begins 4 pixels into the digit, 8 into the image
    for shift in (shifts[:, i, j] for i, j in itertools.product(range(2), repeat=2)):
        counts = np.bincount(shift + 4)
        assert len(counts) == 9
        assert np.abs(counts - 2000 / 9).max() < 5 * np.sqrt(2000 / 9)
    down, across = np.abs(shifts[:, 0] - shifts[:, 1]).T
    overlap = (20 - down) * (20 - across) / 400
    # The mean distance of two uniform shifts of -4 to 4 is 80/27.
    expected = (1 - 80 / 27 / 20) ** 2
    assert abs(overlap.mean() - expected) < 5 * overlap.std() / np.sqrt(2000)


@pytest.mark.parametrize("kind", [data.MultiMnist, data.AffineMnist])
@pytest.mark.parametrize("part", ["train", "test"])
def test_samples_follow_from_seed_epoch_and_number_alone(digits, kind, part):
    def taken(indices, epoch=0, seed=0):
        samples = getattr(kind(digits, seed), part)
        return tf.nest.map_structure(np.asarray, samples.take(indices, epoch))

    everything = taken(np.arange(10))
    tf.nest.map_structure(
        lambda some, each: np.testing.assert_array_equal(some, each[[7, 2]]),
        taken([7, 2]),
        everything,
    )
    batches = getattr(kind(digits), part).batches(4)
    assert len(batches) == 3
    tf.nest.map_structure(
        lambda each, *some: np.testing.assert_array_equal(np.concatenate(some), each),
        everything,
        *batches,
    )
    for others in (taken(np.arange(10), epoch=1), taken(np.arange(10), seed=1)):
        assert np.all(np.any(others[0] != everything[0], axis=(1, 2, 3)))
    swapped = kind(data.Dataset("boxes", *[digits.x_train, _CLASSES] * 2))
    pair = [part_.take(np.arange(10))[0] for part_ in (swapped.train, swapped.test)]
    assert np.any(pair[0] != pair[1])


def test_training_images_are_put_anywhere(digits):
    images, labels = _epochs(data.AffineMnist(digits).train, 300)
    assert images.shape == (3000, 40, 40, 1)
    np.testing.assert_array_equal(labels, np.tile(_CLASSES, 300))
    ink = images[..., 0] > 0
    for axis in (1, 2):
        assert np.all(ink.any(axis=axis).sum(axis=1) == 20)
        counts = np.bincount(ink.any(axis=axis).argmax(axis=1) - 4)
        assert len(counts) == 13
        assert np.abs(counts - 3000 / 13).max() < 5 * np.sqrt(3000 / 13)


def _moments(images):
    """Returns the means `[N, 2]` and covariances `[N, 2, 2]` of the ink in (x, y)."""
    rows, columns = np.mgrid[: images.shape[1], : images.shape[2]]
    places = np.stack([columns.ravel(), rows.ravel()]).astype(float)
    share = images.reshape(len(images), -1).astype(float)
    share /= share.sum(axis=1, keepdims=True)
    means = share @ places.T
    squares = np.einsum("np,ip,jp->nij", share, places, places)
    return means, squares - means[:, :, None] * means[:, None]


def _blob():
    """A smooth spot, longer than it is wide, right of and below the middle."""
    rows, columns = np.mgrid[:28, :28]
    distance = ((columns - 15) / 3) ** 2 + ((rows - 14) / 2) ** 2
    return np.where(distance < 9, np.exp(-distance / 2), 0)[None, :, :, None]


def _rotation(degrees):
    cos, sin = np.cos(np.deg2rad(degrees)), np.sin(np.deg2rad(degrees))
    return np.array([[cos, -sin], [sin, cos]])


def test_test_images_are_scaled_sheared_rotated_and_put_inside():
    images = np.repeat(_blob(), 200, axis=0).astype(np.float32)
    labels = np.arange(200) % 2
    samples = data.AffineMnist(data.Dataset("spots", *[images, labels] * 2)).test
    draws = np.random.default_rng(0).random([200, 6], np.float32)
    draws[:4, 4:] = list(itertools.product([0, 0.9999], repeat=2))
    mapped, kept = (np.asarray(each) for each in samples.make(np.arange(200), draws))
    np.testing.assert_array_equal(kept, labels)
    maps = [
        _rotation(20 * angle)
        @ [[1, 0.2 * shear], [0, 1]]
        @ np.diag([1 + 0.2 * across, 1 + 0.2 * down])
        for angle, shear, across, down in 2 * draws[:, :4] - 1
    ]
    # Mixing four pixels spreads each by a sixth of a pixel, squared, either way.
    before = _moments(images)[1] + np.eye(2) / 6
    means, after = _moments(mapped)
    np.testing.assert_allclose(
        after, maps @ before @ np.swapaxes(maps, 1, 2), 0.03, 0.05
    )
    areas = np.linalg.det(maps)
    np.testing.assert_allclose(
        mapped.sum(axis=(1, 2, 3)), images.sum(axis=(1, 2, 3)) * areas, rtol=0.02
    )
    # All of it is inside, and the outermost places put it at the edges.
    ink = mapped[..., 0] > 0
    for axis, drawn in ((1, draws[:4, 4]), (2, draws[:4, 5])):
        hit = ink[:4].any(axis=axis)
        for sample, amount in zip(hit, drawn):
            edges = (sample[:2], sample[-2:])
            assert edges[int(amount > 0.5)].any() and not edges[int(amount < 0.5)].any()
    assert np.ptp(means, axis=0).min() > 10


def test_maps_lose_no_ink_and_what_is_too_large_is_in_the_middle():
    rng = np.random.default_rng(0)
    images = np.zeros([50, 28, 28, 1], np.float32)
    images[:, 4:24, 4:24] = rng.random([50, 20, 20, 1])
    draws = rng.random([50, 6], np.float32)

    def made(images):
        labels = np.arange(len(images)) % 2
        samples = data.AffineMnist(data.Dataset("noise", *[images, labels] * 2)).test
        return samples.make(np.arange(50), draws)[0].numpy()

    # The same maps in the middle of a larger image, where nothing can be lost.
    wide = np.pad(images, [[0, 0], [20, 20], [20, 20], [0, 0]])
    sums = made(wide).sum(axis=(1, 2, 3))
    np.testing.assert_allclose(made(images).sum(axis=(1, 2, 3)), sums, rtol=0.02)

    full = np.ones([50, 28, 28, 1], np.float32)
    draws[:, :4] = [0, 0.5, 1, 1]
    np.testing.assert_allclose(_moments(made(full))[0], 19.5, rtol=1e-5)
    blank = np.zeros_like(images)
    assert not made(blank).any()


def test_one_class_makes_no_pairs(digits):
    same = np.zeros_like(_CLASSES)
    for train, test in ((same, _CLASSES), (_CLASSES, same)):
        arrays = digits.x_train, train, digits.x_test, test
        with pytest.raises(ValueError, match="different classes: boxes must have two"):
            data.MultiMnist(data.Dataset("boxes", *arrays))


def test_colors_stay(digits):
    images = np.random.default_rng(0).random([10, 9, 7, 3], np.float32)
    colors = data.Dataset("colors", *[images, _CLASSES] * 2)
    assert data.MultiMnist(colors).image_shape == (17, 15, 3)
    _, targets = data.MultiMnist(colors).test.take([4])
    singles = targets["reconstruction"][0].numpy()
    placed = [single[single.any(axis=(1, 2))] for single in singles]
    placed = [each[:, each.any(axis=(0, 2))] for each in placed]
    assert any(np.array_equal(each, images[4]) for each in placed)
    assert data.AffineMnist(colors).test.take([4])[0].shape == (1, 21, 19, 3)


def test_shifted_digits_train_as_affine_ones_and_are_whole_when_tested():
    digits = data.load("digits")
    shifted, mapped = data.ShiftedMnist(digits), data.AffineMnist(digits)
    for one, other in zip(shifted.train.take([5]), mapped.train.take([5]), strict=True):
        np.testing.assert_array_equal(one, other)
    images, labels = shifted.test.take(range(360))
    np.testing.assert_array_equal(labels, digits.y_test)
    corners = set()
    for image, digit in zip(images.numpy(), digits.x_test, strict=True):
        y, x, _ = np.argwhere(image).min(axis=0) - np.argwhere(digit).min(axis=0)
        corners.add((y, x))
        np.testing.assert_array_equal(image[y : y + 8, x : x + 8], digit)
        assert np.count_nonzero(image) == np.count_nonzero(digit)
    assert {y for y, _ in corners} == {x for _, x in corners} == set(range(13))


def test_memory_does_not_grow_with_what_was_generated():
    images = np.random.default_rng(0).random([2000, 28, 28, 1], np.float32)
    labels = np.arange(2000, dtype=np.int32) % 10
    samples = data.MultiMnist(data.Dataset("noise", *[images, labels] * 2)).train

    def taken(epochs):
        peak()
        generated = 0
        for epoch in range(epochs):
            for pairs, targets in samples.batches(50, epoch):
                generated += 4 * tf.size(pairs) + 4 * tf.size(targets["reconstruction"])
        return peak(), int(generated)

    taken(1)  # what TensorFlow keeps for itself grows at first
    (few, _), (many, generated) = taken(1), taken(8)
    assert generated == 8 * 4 * 2000 * 3 * 36 * 36
    assert many - few < generated / 4


def test_scale_shear_and_angle_have_the_documented_bounds():
    documented = data.AffineMnist.__doc__
    assert f"rotated by up to {affine_mnist.DEGREES:.0f} degrees" in documented
    assert f"sheared by up to {affine_mnist.SHEAR}" in documented
    low, high = 1 - affine_mnist.SCALE, 1 + affine_mnist.SCALE
    assert f"{low:.1f}" in documented and f"to {high:.1f}" in documented
