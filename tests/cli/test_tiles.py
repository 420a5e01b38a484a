# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Masks of images of any size, tile by tile."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from masked import masked_pictures

from tf_capsops import models
from tf_capsops.__main__ import main
from tf_capsops.cli import overlays, tiles

_RANDOM = np.random.default_rng(8)
_BUILDS = {"segcaps": models.segcaps, "unet": models.unet}
every_build = pytest.mark.parametrize("name", _BUILDS)


def _network(name, shape=(None, None, 1)):
    """Returns a network whose weights are random enough to read several classes."""
    keras.utils.set_random_seed(3)
    build = getattr(models, name)
    model = build(shape, 3, size="small")
    for weight in model.trainable_weights:
        if weight.name == "bias":
            weight.assign(_RANDOM.normal(scale=0.3, size=weight.shape))
    return model


def _blobs(height, width):
    noise = _RANDOM.random([height // 4 + 1, width // 4 + 1, 1])
    large = noise.repeat(4, axis=0).repeat(4, axis=1)
    return large[:height, :width].astype(np.float32)


@every_build
def test_scores_depend_on_no_pixel_beyond_the_reach(name):
    model = _network(name)
    reach = tiles.reach(model)
    size, middle = 8 * (reach // 4 + 2), 4 * (reach // 4 + 2)
    images = tf.constant(_blobs(size, size)[np.newaxis])
    seen = np.zeros(size, bool)
    for place in range(middle, middle + model.multiple):
        with tf.GradientTape() as tape:
            tape.watch(images)
            score = tf.reduce_sum(model(images)[0, place, middle] * [1.0, 2.0, 4.0])
        rows = np.any(tape.gradient(score, images).numpy() != 0, axis=(0, 2, 3))
        (touched,) = np.nonzero(rows)
        assert touched.min() >= place - reach and touched.max() <= place + reach
        seen[touched - place] = True
    assert reach / 2 < seen.sum() <= 2 * reach + 1


@every_build
def test_tiles_give_the_masks_of_the_whole_image(name):
    model = _network(name)
    tile = 4 * tiles.reach(model)  # whose quarter suffices for a margin
    image = _blobs(tile + 90, tile - 3)
    if name == "unet":  # until no class is the likeliest everywhere
        scores = np.log(model.predict_on_batch(image[np.newaxis, :64, :64]))
        model.trainable_weights[-1].assign_sub(scores.mean(axis=(0, 1, 2)))
    whole = tiles.classes_of(model, image, 10_000)
    assert whole.shape == image.shape[:2] and len(np.unique(whole)) > 1
    asked, predict = [], model.predict_on_batch
    model.predict_on_batch = lambda x: asked.append(x.shape[1:3]) or predict(x)
    found = tiles.classes_of(model, image, tile)
    height = -(-tile // 8) * 8
    assert asked == [(height, -(-(tile - 3) // 8) * 8)] * 2
    # Rounding decides between scores that are the same in all but the last digits.
    assert np.mean(found != whole) < 1e-4


@pytest.mark.parametrize("size", [1, 7, 8, 20, 21, 63, 64, 65, 200])
@pytest.mark.parametrize("margin", [0, 1, 5])
def test_windows_keep_every_pixel(size, margin):
    windows = tiles._windows(size, 20, margin)
    kept = {each for _, part, _ in windows for each in range(size)[part]}
    assert kept == {*range(size)}
    for outer, part, inner in windows:
        seen = [*range(size)[outer]]
        assert len(seen) == min(size, 20) and seen[inner] == [*range(size)[part]]
        begin, end = part.start - outer.start, outer.stop - part.stop
        assert begin == (margin if outer.start else 0)
        assert end == (margin if outer.stop < size else 0)


@pytest.mark.parametrize("name", ["segcaps", "unet", "ucaps3d"])
def test_a_network_of_one_size_opens(name):
    shape = (8, 16, 8, 2) if name == "ucaps3d" else (8, 16, 1)
    model = _network(name, shape)
    free = tiles.opened(model)
    assert tiles.opened(free) is free and set(free.input_shape[1:-1]) == {None}
    images = _RANDOM.random([2, *shape], np.float32)
    np.testing.assert_allclose(free(images), model(images), atol=1e-6)
    half = tiles.opened(_network(name, (None, *shape[1:])))
    assert set(half.input_shape[1:-1]) == {None}
    sizes = [13, 21, 9][: len(shape) - 1]
    image = _RANDOM.random([*sizes, shape[-1]], np.float32)
    assert tiles.classes_of(free, image, 16).shape == image.shape[:-1]


def test_a_u_net_that_rounds_up_does_not_open(tmp_path, capsys):
    models.unet((9, 13, 1), 2, size="small").save(tmp_path / "model.keras")
    masked_pictures(tmp_path / "cells", 1)
    given = [str(tmp_path / "model.keras"), str(tmp_path / "cells/images"), "--tile"]
    assert main(["predict", *given, "64"]) == 2
    assert (
        "only images of 13 x 9 pixels, which are not multiples"
        in capsys.readouterr().err
    )


def _png(path):
    return tf.io.decode_png(tf.io.read_file(str(path))).numpy()


def test_predict_reads_tiles_and_draws_overlays(tmp_path, capsys):
    model = _network("unet", (8, 16, 1))
    model.save(tmp_path / "model.keras")
    masked_pictures(tmp_path / "large", 2, grays=(0, 90, 200), size=(37, 300))
    output, pictures = tmp_path / "found", tmp_path / "large/images"
    given = ["predict", str(tmp_path / "model.keras"), str(pictures), "--json"]
    options = ["--tile", "256", "--overlays", "--output", str(output)]
    assert main([*given, *options]) == 0
    answers = json.loads(capsys.readouterr().out)
    for answer, picture in zip(answers, sorted(pictures.iterdir())):
        image = _png(picture)
        whole = tiles.classes_of(tiles.opened(model), np.float32(image / 255), 1000)
        found = _png(answer["mask"])[..., 0]
        assert found.shape == (37, 300) and np.mean(found != whole) < 1e-3
        drawn = _png(output / "overlays" / picture.name)
        expected = overlays.overlaid(np.float32(image) / np.float32(255), found)
        np.testing.assert_array_equal(drawn, expected)
    assert tiles.seamless(tiles.opened(model)) == 256
    # Smaller tiles may show seams, which is said once.
    for tile, warnings in (("256", 0), ("248", 1), ("304", 0)):
        assert main([*given, "--tile", tile, "--output", str(output)]) == 0
        said = capsys.readouterr().err
        assert said.count("masks may have seams: --tile 256 has none") == warnings
    # An overlay replaces no picture.
    folder = output / "overlays"
    assert main([*given[:2], str(folder), *options]) == 2
    assert "is one of the pictures" in capsys.readouterr().err
    # Without tiles, pictures are resized to what the network takes.
    assert main([*given, "--output", str(tmp_path / "resized")]) == 0
    assert _png(tmp_path / "resized/0.png").shape == (37, 300, 1)


def test_networks_that_classify_have_no_tiles(tmp_path, capsys):
    layers = [keras.Input([4, 4, 3]), keras.layers.GlobalAveragePooling2D()]
    keras.Sequential(layers).save(tmp_path / "model.keras")
    for option in (["--tile", "8"], ["--overlays"]):
        given = [str(tmp_path / "model.keras"), str(tmp_path), *option]
        assert main(["predict", *given]) == 2
        assert f"writes no masks: no {option[0]}" in capsys.readouterr().err
