# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Pictures and masks in folders: what is read from them, and what is refused."""

import pathlib
import re

import fresh
import numpy as np
import pytest
import tensorflow as tf
from masked import masked_pictures

from tf_capsops import data


def test_a_folder_may_have_pictures_for_testing_alone(tmp_path):
    masked_pictures(tmp_path / "cells/test", 3)
    assert len(data.load(tmp_path / "cells", training=False).test) == 3
    with pytest.raises(ValueError, match="cells has test/ but no train/ with pictures"):
        data.load(tmp_path / "cells")
    with pytest.raises(ValueError, match="cells has test/: no --test-share"):
        data.load(tmp_path / "cells", training=False, test_share=0.3)
    masked_pictures(tmp_path / "cells", 10)  # which count, then
    loaded = data.load(tmp_path / "cells")
    assert (len(loaded.train), len(loaded.test)) == (8, 2)


def test_a_folder_has_pictures_and_masks_of_the_same_names(tmp_path):
    folder = masked_pictures(tmp_path / "cells", 10, grays=(0, 100, 255))
    loaded = data.load(folder)
    assert loaded.has_masks and loaded.class_names == ["0", "100", "255"]
    assert loaded.image_shape == (8, 16, 1)
    assert (len(loaded.train), len(loaded.test)) == (8, 2)
    images, masks = loaded.train.take(range(8))
    grays = np.array([0, 100, 255])[masks.numpy()]
    np.testing.assert_allclose(images, (grays // 2 + 20) / 255, atol=1e-6)
    alone = loaded.train.targets(range(8), loaded.train.draws(0))
    np.testing.assert_array_equal(alone, masks)
    held = loaded.held_out(np.arange(6), np.arange(6, 8))
    for ours, theirs in zip(held.test.take([0, 1]), (images, masks)):
        np.testing.assert_array_equal(ours, theirs[6:])
    again = data.load(folder, **loaded.options)
    np.testing.assert_array_equal(again.train.take(range(8))[1], masks)
    everything = data.load(folder, training=False)
    assert (len(everything.train), len(everything.test)) == (0, 10)
    # Masks keep their classes when pictures are resized.
    resized = data.load(folder, image_size=(16, 8), color_mode="rgb")
    images, masks = resized.test.take([0])
    assert images.shape == (1, 16, 8, 3) and masks.shape == (1, 16, 8, 1)
    assert set(np.unique(masks)) <= {0, 1, 2}
    # Numbers of classes are those of the network.
    ordered = data.load(folder, class_names=["255", "0", "100"])
    assert np.all(ordered.train.take(range(8))[1].numpy() == (masks_of(loaded) + 1) % 3)


def masks_of(loaded):
    return loaded.train.take(range(len(loaded.train)))[1].numpy()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"image_size": 0}, "load: image_size must be an integer >= 1, got 0"),
        ({"image_size": (8, 0)}, "load: image_size must be"),
        ({"color_mode": "hsv"}, "color_mode must be grayscale or rgb, got 'hsv'"),
    ],
)
def test_options_are_those_of_pictures(tmp_path, options, text):
    folder = masked_pictures(tmp_path / "cells", 10)
    assert data.load(folder, image_size=8).image_shape == (8, 8, 1)
    with pytest.raises(ValueError, match=re.escape(text)):
        data.load(folder, **options)


def test_a_folder_may_be_divided(tmp_path):
    for part, count in (("train", 5), ("test", 3)):
        masked_pictures(tmp_path / part, count)
    loaded = data.load(tmp_path)
    assert (len(loaded.train), len(loaded.test)) == (5, 3)
    with pytest.raises(ValueError, match="has train/ and test/: no --test-share"):
        data.load(tmp_path, test_share=0.5)


def _alone(folder):
    (folder / "masks/1.png").unlink()


def _named(folder):
    (folder / "masks/1.png").rename(folder / "masks/1_mask.png")


def _other_size(folder):
    masked_pictures(folder / "other", 1, size=(8, 8))
    (folder / "other/masks/0.png").rename(folder / "masks/1.png")


def _broken(folder):
    (folder / "masks/1.png").write_bytes(b"no picture")


def _one_class(folder):
    for path in (folder / "masks").iterdir():
        path.write_bytes(tf.io.encode_png(np.zeros([8, 16, 1], np.uint8)).numpy())


def _twice(folder):
    (folder / "images/1.jpg").write_bytes(b"")


def _no_picture(folder):
    (folder / "images/notes.txt").write_text("")


def _write(path, mask):
    path.write_bytes(tf.io.encode_png(mask).numpy())


def _colored(folder):
    _write(folder / "masks/1.png", np.zeros([8, 16, 3], np.uint8))


def _deep(folder):
    _write(folder / "masks/1.png", np.zeros([8, 16, 1], np.uint16))


def _lossy(folder):
    jpeg = tf.io.encode_jpeg(np.zeros([8, 16, 1], np.uint8))
    (folder / "masks/1.png").write_bytes(jpeg.numpy())


def _without_masks(folder):
    (folder / "masks").rename(folder / "annotations")


@pytest.mark.parametrize(
    "change, text",
    [
        (_colored, "masks/1.png has colors, or a palette of them: masks must be gray"),
        (_colored, "docs/segmentation.md shows how to convert masks"),
        (_deep, "masks/1.png has 16 bits for each pixel: masks must have 8 at most"),
        (_lossy, "masks/1.png is no PNG file: masks must be, .* how to convert masks"),
        (_without_masks, "cells has images/ but no masks/"),
        (_alone, "images/1.png has no mask of the same name$"),
        (_named, "images/1.png has no mask .*: rename .*masks/1_mask.png to 1.png$"),
        (_other_size, "differ in size: give --image-size PIXELS"),
        (_broken, "masks/1.png cannot be read as a picture"),
        (_one_class, "have one gray, 0: there must be two or more"),
        (_twice, "1.png and .*1.jpg have the same name"),
        (
            _no_picture,
            "notes.txt is no PNG, JPEG, BMP, GIF or WebP picture: take it out",
        ),
    ],
)
def test_bad_folders_are_named(tmp_path, change, text):
    folder = masked_pictures(tmp_path / "cells")
    change(folder)
    with pytest.raises(ValueError, match=text):
        data.load(folder)


def test_the_page_shows_how_to_convert_masks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (fresh.ROOT / "docs/segmentation.md").read_text()
    (convert,) = re.findall(r"^```python\n(colors = .*?)^```$", page, re.S | re.M)
    drawn = np.zeros([8, 16, 3], np.uint8)
    drawn[4:, 8:, 0] = drawn[:4, :8, 1] = 255
    for folder in ("colored", "cells/images"):
        (tmp_path / folder).mkdir(parents=True)
    for name, encode in (
        ("1_mask.png", tf.io.encode_png),
        ("2.jpg", tf.io.encode_jpeg),
    ):
        (tmp_path / "colored" / name).write_bytes(encode(drawn).numpy())
        _write(tmp_path / "cells/images" / f"{name[0]}.png", drawn)
    exec(convert, {"np": np, "pathlib": pathlib, "tf": tf})
    loaded = data.load("cells")
    assert loaded.class_names == ["0", "1", "2"]
    expected = 1 * (drawn[..., 0] > 0) + 2 * (drawn[..., 1] > 0)
    for samples in (loaded.train, loaded.test):
        _, masks = samples.take([0])
        np.testing.assert_array_equal(masks[0, ..., 0], expected)


def test_empty_folders_may_be_meant_for_pictures_or_volumes(tmp_path):
    for name in ("images", "masks"):
        (tmp_path / "scans" / name).mkdir(parents=True)
    with pytest.raises(ValueError, match="images has no pictures and no NIfTI volumes"):
        data.load(tmp_path / "scans")


def test_a_gray_that_the_network_does_not_know_is_named(tmp_path):
    folder = masked_pictures(tmp_path / "cells", grays=(0, 7))
    with pytest.raises(ValueError, match="has a gray of 7, and the network knows 0, 5"):
        data.load(folder, class_names=["0", "5"])


def test_a_gray_that_only_masks_for_testing_have_is_named(tmp_path):
    masked_pictures(tmp_path / "train")
    masked_pictures(tmp_path / "test", grays=(0, 7, 255))
    with pytest.raises(ValueError, match="has a gray of 7, and the network knows 0, 2"):
        data.load(tmp_path)
    everything = data.load(tmp_path, training=False)
    assert everything.class_names == ["0", "7", "255"]


def test_broken_masks_are_skipped(tmp_path):
    folder = masked_pictures(tmp_path / "cells", 10)
    _broken(folder)
    with pytest.warns(UserWarning, match="skipped 1 file that is no picture, .*1.png"):
        loaded = data.load(folder, skip_broken=True)
    assert len(loaded.train) + len(loaded.test) == 9
    assert loaded.skipped == [str(folder / "masks/1.png")]


@pytest.mark.filterwarnings("ignore:skipped")
@pytest.mark.parametrize("part, purpose", [("train", "training"), ("test", "testing")])
def test_a_part_that_is_all_broken_is_named(tmp_path, part, purpose):
    for each in ("train", "test"):
        masked_pictures(tmp_path / each, 1)
    (tmp_path / part / "images/0.png").write_bytes(b"no picture")
    with pytest.raises(ValueError, match=f"no picture and mask for {purpose} that can"):
        data.load(tmp_path, skip_broken=True)
