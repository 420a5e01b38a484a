# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Pictures whose files say how to turn them."""

import json

import numpy as np
import pytest
import tensorflow as tf

from tf_capsops import data, models
from tf_capsops.__main__ import main
from tf_capsops.data import masks, orientation

_PIXELS = np.kron([[0, 60, 120], [180, 240, 30]], np.ones([8, 8])).astype(np.uint8)
# A picture as TIFF 6.0 has it seen: where its first row and its first column are.
_SEEN = {
    1: lambda x: x,
    2: np.fliplr,
    3: lambda x: np.rot90(x, 2),
    4: np.flipud,
    5: np.transpose,
    6: lambda x: np.rot90(x, -1),
    7: lambda x: np.rot90(x, 2).T,
    8: np.rot90,
}


def _part(marker, content):
    return bytes([0xFF, marker]) + (len(content) + 2).to_bytes(2, "big") + content


def _exif(number, order):
    """Returns the Exif part of a file, with another entry before the orientation."""
    entries = [(0x0100, 4, 24), (0x0112, 3, number)]
    tiff = {"little": b"II", "big": b"MM"}[order]
    for value, size in ((42, 2), (8, 4), (len(entries), 2)):
        tiff += value.to_bytes(size, order)
    for tag, kind, value in entries:
        size = {3: 2, 4: 4}[kind]
        for each, bytes_ in ((tag, 2), (kind, 2), (1, 4), (value, size)):
            tiff += each.to_bytes(bytes_, order)
        tiff += bytes(4 - size)
    return _part(0xE1, b"Exif\0\0" + tiff + bytes(4))


def _write(path, number, order="big", before=b""):
    jpeg = tf.io.encode_jpeg(_PIXELS[..., np.newaxis], quality=100).numpy()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(jpeg[:2] + before + _exif(number, order) + jpeg[2:])
    return path


@pytest.mark.parametrize("number", [1, 6])
def test_a_mask_is_of_the_picture_that_is_seen(number, tmp_path):
    """One of the file's rows is refused where the picture is turned."""
    for name in map(str, range(10)):
        _write(tmp_path / f"train/images/{name}.jpg", number)
        mask = tmp_path / f"train/masks/{name}.png"
        mask.parent.mkdir(exist_ok=True)
        masks.write_png(mask, (_PIXELS > 100).astype(np.uint8)[..., np.newaxis])
    if number == 1:
        assert data.load(tmp_path / "train").image_shape == (*_PIXELS.shape, 1)
        return
    for size in (None, 8):
        with pytest.raises(ValueError, match=r"\d.jpg is turned upright, .*/\d.png is"):
            data.load(tmp_path / "train", image_size=size)


def test_batches_are_made_without_python(tmp_path):
    """Python would decode one picture at a time, on however many cores."""
    for name in ("cat", "dog"):
        for number in (1, 6):
            _write(tmp_path / name / f"{number}.jpg", number)
    samples = data.load(tmp_path, image_size=16).train
    graph = (
        tf.function(samples.make)
        .get_concrete_function(tf.TensorSpec([None], tf.int32), samples.draws(0))
        .graph.as_graph_def()
    )
    functions = [graph, *graph.library.function]
    nodes = [
        [*getattr(each, "node", ()), *getattr(each, "node_def", ())]
        for each in functions
    ]
    kinds = {node.op for each in nodes for node in each}
    assert "DecodeImage" in kinds and not any("PyFunc" in kind for kind in kinds)


@pytest.mark.parametrize("order", ["little", "big"])
@pytest.mark.parametrize("number", _SEEN)
def test_a_picture_is_turned_upright(number, order, tmp_path):
    jfif = _part(0xE0, b"JFIF\0") + _part(0xE1, b"http://ns.adobe.com/xap/1.0/\0")
    path = _write(tmp_path / "1.jpg", number, order, before=jfif)
    expected = _SEEN[number](_PIXELS)
    (read,) = data.read_pictures([path], (*expected.shape, 1))
    np.testing.assert_allclose(read[..., 0], expected / 255, atol=0.02)


@pytest.mark.parametrize("number", [0, 9, 65535])
def test_a_number_that_says_nothing_turns_nothing(number, tmp_path):
    path = _write(tmp_path / "1.jpg", number)
    (read,) = data.read_pictures([path], (*_PIXELS.shape, 1))
    np.testing.assert_allclose(read[..., 0], _PIXELS / 255, atol=0.02)


def test_damaged_files_and_other_formats_turn_nothing(tmp_path):
    contents = _write(tmp_path / "1.jpg", 6).read_bytes()
    assert orientation.orientation(contents) == 6
    complete = contents.index(bytes([1, 0x12, 0, 3])) + 10
    for end in range(complete):
        assert orientation.orientation(contents[:end]) == 1
    for wrong in (b"", b"\xff\xd8\xff", contents.replace(b"MM", b"XX")):
        assert orientation.orientation(wrong) == 1
    png = tf.io.encode_png(_PIXELS[..., np.newaxis]).numpy()
    assert orientation.orientation(png) == 1


def test_upright_pictures_have_upright_masks(tmp_path, capsys):
    for number in range(5):
        _write(tmp_path / f"cells/images/{number}.jpg", 6)
        mask = np.rot90(_PIXELS > 100, -1).astype(np.uint8)[..., np.newaxis]
        path = tmp_path / f"cells/masks/{number}.png"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(tf.io.encode_png(255 * mask).numpy())
    cells = data.load(tmp_path / "cells")
    assert cells.image_shape == (24, 16, 1)
    images, masks = cells.train.take([0])
    np.testing.assert_array_equal(images[0] > 100 / 255, masks[0] == 1)
    models.unet((None, None, 1), 2, size="small").save(tmp_path / "model.keras")
    given = [str(tmp_path / "model.keras"), str(tmp_path / "cells/images/0.jpg")]
    given += ["--output", str(tmp_path / "found"), "--json", "--overlays"]
    assert main(["predict", *given]) == 0
    (answer,) = json.loads(capsys.readouterr().out)
    for path in (answer["mask"], tmp_path / "found/overlays/0.png"):
        assert tf.io.decode_image(tf.io.read_file(str(path))).shape[:2] == (24, 16)
