# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Overlapping and moving digits: images, masks of classes, and repeatable draws."""

import numpy as np
import pytest
import tensorflow as tf

from tf_capsops import data

_KINDS = {"segmented_mnist": data.SegmentedMnist, "moving_mnist": data.MovingMnist}
_LABELS = np.array([0, 2, 1, 2, 0, 1], np.int32)


def _boxes(shape=(11, 8, 1)):
    """Boxes that fill the digit but for its last row, each of its own gray."""
    images = np.zeros([len(_LABELS), *shape], np.float32)
    images[:, :-1] = (np.arange(len(_LABELS)) + 5).reshape(-1, 1, 1, 1) / 10
    return data.Dataset("boxes", images, _LABELS, images[::-1], _LABELS[::-1])


def _epochs(samples, epochs):
    taken = [samples.take(np.arange(len(samples)), each) for each in range(epochs)]
    return tf.nest.map_structure(lambda *each: np.concatenate(each), *taken)


@pytest.mark.parametrize(
    "shape, size",
    [((28, 28, 1), (40, 40)), ((8, 8, 1), (16, 16)), ((9, 1, 3), (24, 16))],
)
def test_sizes_are_multiples_of_eight(shape, size):
    boxes = _boxes(shape)
    for name, frames in (("segmented_mnist", ()), ("moving_mnist", (16,))):
        kind = _KINDS[name](boxes)
        assert kind.image_shape == (*frames, *size, shape[-1])
        assert kind.num_classes == 4 and kind.has_masks and kind.objects == 1
        images, masks = kind.train.take([3, 0])
        assert images.shape == (2, *kind.image_shape) and images.dtype == tf.float32
        assert masks.shape == (2, *frames, *size, 1) and masks.dtype == tf.int32


@pytest.mark.parametrize("given, size", [(17, (17, 17)), ((8, 12), (8, 12))])
def test_images_have_the_size_that_is_asked_for(given, size):
    for name, frames in (("segmented_mnist", ()), ("moving_mnist", (16,))):
        kind = data.load(f"{name}:digits", image_size=given)
        assert kind.image_shape == (*frames, *size, 1)
        assert kind.base.image_shape == (8, 8, 1)
        images, masks = _epochs(kind.test, 1)
        assert images.shape == masks.shape == (360, *frames, *size, 1)
        # Digits reach all sides of the image.
        shown = masks.any(axis=(*range(masks.ndim - 3), masks.ndim - 1))
        for axis in (0, 1):
            seen = np.flatnonzero(shown.any(axis=1 - axis))
            assert seen.min() <= 1 and seen.max() >= size[axis] - 2


@pytest.mark.parametrize("given", [7, (8, 7), (0, 8), "8"])
def test_digits_must_fit_into_images(given):
    with pytest.raises(ValueError, match="segmented_mnist: image_size must be"):
        data.load("segmented_mnist:digits", image_size=given)
    with pytest.raises(ValueError, match="is no folder of pictures: no --image-size"):
        data.load("multimnist:digits", image_size=16)


def test_a_pixel_is_of_the_digit_that_has_more_ink_there():
    images, masks = _epochs(data.SegmentedMnist(_boxes()).train, 60)
    images, masks = images[..., 0], masks[..., 0]
    grays = np.rint(images * 10).astype(int) - 5
    np.testing.assert_array_equal(images > 0, masks > 0)
    for gray, classes in zip(grays, masks):
        shown = np.unique(gray[classes > 0])
        assert len(shown) <= 2
        # The lighter box may hide the other one, but is whole itself.
        assert np.count_nonzero(gray == shown.max()) == 80
        np.testing.assert_array_equal(
            classes[classes > 0], _LABELS[gray[classes > 0]] + 1
        )
        assert len(np.unique(classes[classes > 0])) == len(shown)
    rows = (images > 0).any(axis=2).argmax(axis=1)
    columns = (images > 0).any(axis=1).argmax(axis=1)
    # Boxes of 11 x 8 on 24 x 16 pixels begin in rows 0 to 13 and columns 0 to 8.
    assert (rows.min(), columns.min()) == (0, 0) and rows.max() <= 13
    last = (images[:, ::-1] > 0).any(axis=2).argmax(axis=1)
    assert last.min() == 1, "the last row of a digit is empty"


def test_faint_pixels_are_background_and_colors_count_by_their_brightest():
    images = np.zeros([2, 8, 8, 3], np.float32)
    images[:, :, :4] = [0.2, 0.49, 0.0]
    images[:, :, 4:] = [0.1, 0.0, 0.51]
    labels = np.array([0, 1], np.int32)
    made, masks = data.SegmentedMnist(
        data.Dataset("halves", *[images, labels] * 2)
    ).test.take([0, 1])
    np.testing.assert_array_equal(masks[..., 0] > 0, made.numpy()[..., 2] > 0.5)


def test_digits_move_in_straight_lines_at_a_constant_speed():
    images = np.zeros([2, 4, 4, 1], np.float32)
    images[0, 0, 0], images[1, 0, 0] = 0.6, 0.9
    labels = np.array([0, 1], np.int32)
    points = data.MovingMnist(data.Dataset("points", *[images, labels] * 2))
    volumes, masks = _epochs(points.train, 50)
    seen = []
    for volume, mask in zip(volumes[..., 0], masks[..., 0]):
        # The lighter point is never hidden.
        frames, rows, columns = np.nonzero(mask == 2)
        np.testing.assert_array_equal(frames, np.arange(16))
        np.testing.assert_allclose(volume[frames, rows, columns], 0.9)
        places = np.stack([rows, columns], axis=1)
        way = np.linspace(places[0], places[-1], 16)
        assert np.abs(places - way).max() <= 0.5 + 1e-5
        seen += [places[0], places[-1]]
        other = np.count_nonzero(mask == 1)
        assert 0 <= other <= 16 and np.count_nonzero(volume) == 16 + other
    assert np.min(seen) == 0 and np.max(seen) == 12


@pytest.mark.parametrize("kind", _KINDS.values())
@pytest.mark.parametrize("part", ["train", "test"])
def test_samples_follow_from_seed_epoch_and_number_alone(kind, part):
    def taken(indices, epoch=0, seed=0):
        samples = getattr(kind(_boxes(), seed), part)
        return tf.nest.map_structure(np.asarray, samples.take(indices, epoch))

    everything = taken(np.arange(6))
    for some, each in zip(taken([4, 1]), everything):
        np.testing.assert_array_equal(some, each[[4, 1]])
    batches = list(getattr(kind(_boxes()), part).batches(4))
    assert len(batches) == 2
    for some, each in zip(zip(*batches), everything):
        np.testing.assert_array_equal(np.concatenate(some), each)
    for others in (taken(np.arange(6), epoch=1), taken(np.arange(6), seed=1)):
        assert np.any(others[0] != everything[0])


@pytest.mark.parametrize("name", _KINDS)
def test_sets_are_loaded_by_name_and_need_two_classes(name):
    loaded = data.load(f"{name}:digits")
    assert isinstance(loaded, _KINDS[name]) and loaded.base.name == "digits"
    assert loaded.class_names == ["background", *map(str, range(10))]
    held = loaded.held_out(np.arange(100, 200), np.arange(100))
    assert (len(held.train), len(held.test)) == (100, 100)
    boxes = _boxes()
    same = np.zeros_like(_LABELS)
    with pytest.raises(ValueError, match=f"{name} pairs digits of different classes"):
        _KINDS[name](data.Dataset("same", boxes.x_train, same, boxes.x_test, same))
