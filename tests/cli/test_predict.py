# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""`tf-capsops predict`: classes and scores of pictures, and what is said of others."""

import json
import pathlib
import re
import shlex

import fresh
import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_capsops import data, inq, layers
from tf_capsops.__main__ import main
from tf_capsops.data import bitmaps

# Scores are the means of the channels.
_NAMES = ["red", "green", "blue"]


def _write(path, color, size=(6, 5)):
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    tf.io.write_file(str(path), tf.io.encode_png(np.full([*size, len(color)], color)))


def _save(path, shape, *rest):
    layer = keras.layers.GlobalAveragePooling2D()
    keras.Sequential([keras.Input(shape), *rest, layer]).save(path)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run's directory, and pictures of one color each, in the working directory."""
    monkeypatch.chdir(tmp_path)
    folder = pathlib.Path("run")
    folder.mkdir()
    _save(folder / "model.keras", [4, 4, 3])
    (folder / "config.json").write_text(json.dumps({"classes": _NAMES}))
    _write("many/green.png", np.array([51, 204, 0], np.uint8))
    _write("many/more/blue.PNG", np.array([0, 102, 255], np.uint8))
    _write("gray.png", np.array([51], np.uint8))
    pathlib.Path("many/notes.txt").write_text("no picture")
    return "run"


def test_links_in_a_circle_are_left_out(run, capsys):
    pathlib.Path("many/more/back").symlink_to("..", target_is_directory=True)
    assert main(["predict", run, "many"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_scores_that_are_no_numbers(run, capsys):
    _save("run/model.keras", [4, 4, 3], keras.layers.Rescaling(np.nan))
    assert main(["predict", "--json", run, "gray.png"]) == 2
    assert "network's scores are NaN" in capsys.readouterr().err


def test_a_line_for_each_picture(run, capsys):
    assert main(["predict", run, "many/green.png", "gray.png"]) == 0
    printed = capsys.readouterr()
    assert printed.out == "many/green.png: green 0.8000\ngray.png: red 0.2000\n"
    assert not printed.err


def test_folders_and_several_classes(run, capsys):
    assert main(["predict", run, "many", "--top", "2"]) == 0
    assert capsys.readouterr().out == (
        "many/green.png: green 0.8000, red 0.2000\n"
        "many/more/blue.PNG: blue 1.0000, green 0.4000\n"
    )
    assert main(["predict", run, "gray.png", "--top", "9"]) == 0
    assert capsys.readouterr().out.count("0.2000") == 3


def test_json(run, capsys):
    assert main(["predict", run, "many", "--json", "--top", "2"]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert first == {
        "file": "many/green.png",
        "class": "green",
        "score": pytest.approx(0.8),
        "top": [
            {"class": "green", "score": pytest.approx(0.8)},
            {"class": "red", "score": pytest.approx(0.2)},
        ],
    }
    assert second["class"] == "blue"


def test_a_model_alone_numbers_its_classes(run, capsys):
    _save("alone.keras", [None, None, 3])
    assert main(["predict", "alone.keras", "many"]) == 0
    assert capsys.readouterr().out == (
        "many/green.png: 1 0.8000\nmany/more/blue.PNG: 2 1.0000\n"
    )


def test_quantized_codes(run, capsys):
    model = keras.Sequential(
        [keras.Input([4, 4, 3]), layers.Conv2D(3, 1), keras.layers.Flatten()]
    )
    layer = model.layers[0]
    layer.kernel.assign(inq.quantize(np.eye(3)[None, None], 5))
    model = keras.Sequential(
        [keras.Input([4, 4, 3]), layer, keras.layers.GlobalAveragePooling2D()]
    )
    inq.convert(model, 5).save("run/codes.keras")
    assert main(["predict", "run/codes.keras", "many/green.png"]) == 0
    assert capsys.readouterr().out == "many/green.png: green 0.8000\n"


def _bitmap(colors, row):
    """Returns a BMP file of 4 x 4 pixels with a palette, which has these equal rows."""
    palette = b"".join(bytes([*color, 0]) for color in colors)
    sizes = [54 + len(palette) + 16, 0, 54 + len(palette), 40, 4, 4]
    head = b"BM" + b"".join(each.to_bytes(4, "little") for each in sizes)
    head += b"\1\0\10\0" + bytes(16) + len(colors).to_bytes(4, "little") + bytes(4)
    return head + palette + 4 * bytes(row)


_REDS = {
    "webp": "524946461c000000574542505650384c0f0000002f03c000000710fd8ffe0722a2ff0100",
    "gif": "47494638376104000400810000ff00000000000000000000002c00000000040004000008090"
    "001081c48b0208080003b",
}


def test_training_and_predict_read_the_same_formats(run, capsys):
    red, gray = pathlib.Path("kinds/red"), pathlib.Path("kinds/gray")
    for folder in (red, gray):
        folder.mkdir(parents=True)
    for suffix, content in _REDS.items():
        (red / f"1.{suffix}").write_bytes(bytes.fromhex(content))
    for name in ("1.bmp", "2.BMP"):
        grays = [[each] * 3 for each in range(256)]
        (gray / name).write_bytes(_bitmap(grays, [51] * 4))
    assert main(["predict", run, "kinds"]) == 0
    assert capsys.readouterr().out == (
        "kinds/gray/1.bmp: red 0.2000\nkinds/gray/2.BMP: red 0.2000\n"
        "kinds/red/1.gif: red 1.0000\nkinds/red/1.webp: red 1.0000\n"
    )
    kinds = data.load("kinds", color_mode="rgb", test_share=0.5)
    parts = kinds.train, kinds.test
    images = np.concatenate([part.take([0, 1])[0] for part in parts])
    colors = sorted(images.mean(axis=(1, 2)).tolist())
    np.testing.assert_allclose(colors, [[0.2] * 3] * 2 + [[1, 0, 0]] * 2, atol=1e-6)


def test_palettes_that_would_be_ignored_are_refused(run, capsys):
    for folder, name in (("a", "1.bmp"), ("a", "2.bmp"), ("b", "1.bmp")):
        path = pathlib.Path("palettes", folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(_bitmap([[0, 0, 255], [255, 0, 0]], [0, 1, 0, 1]))
    assert main(["predict", run, "palettes/a/1.bmp"]) == 2
    said = capsys.readouterr().err
    assert "a/1.bmp is a BMP picture with a palette: make it PNG" in said
    with pytest.raises(ValueError, match=r"a/1.bmp cannot be read as a picture, and 2"):
        data.load("palettes", training=False)


def test_animated_webp_pictures_are_refused(run, capsys):
    """TensorFlow would crash."""
    start = (
        b"RIFF" + (200).to_bytes(4, "little") + b"WEBPVP8X" + bytes([10, 0, 0, 0, 2])
    )
    pathlib.Path("moving.webp").write_bytes(start + bytes(200))
    assert main(["predict", run, "moving.webp"]) == 2
    assert "moving.webp is no picture that can be read" in capsys.readouterr().err
    assert bool(bitmaps.is_animated_webp(start))
    assert not bitmaps.is_animated_webp(start[:-1] + b"\x10")
    assert not bitmaps.is_animated_webp(bytes.fromhex(_REDS["webp"]))


def test_others_are_answered_beside_files_that_cannot_be_read(run, capfd):
    pathlib.Path("cut.png").write_bytes(pathlib.Path("gray.png").read_bytes()[:-20])
    pathlib.Path("empty").mkdir()
    given = ["many/green.png", "cut.png", "none.png", "empty", "many/notes.txt"]
    assert main(["predict", run, *given, "gray.png"]) == 2
    printed = capfd.readouterr()
    assert printed.out == "many/green.png: green 0.8000\ngray.png: red 0.2000\n"
    assert printed.err.splitlines() == [
        f"tf-capsops predict: error: {text}"
        for text in (
            "cut.png is no picture that can be read",
            "there is no file none.png",
            "empty has no PNG, JPEG, BMP, GIF or WebP pictures",
            "many/notes.txt is no picture that can be read",
        )
    ]
    assert main(["predict", run, "cut.png", "--json"]) == 2
    assert json.loads(capfd.readouterr().out) == []


def test_models_that_take_no_pictures(run, capsys):
    _save("four.keras", [4, 4, 4])
    assert main(["predict", "four.keras", "gray.png"]) == 2
    text = "four.keras takes images of 4 channels, and pictures have 1 or 3"
    assert text in capsys.readouterr().err
    assert main(["predict", "elsewhere", "gray.png"]) == 2
    assert "no model at elsewhere" in capsys.readouterr().err
    assert main(["predict", run]) == 2
    assert "required: FILE|FOLDER" in capsys.readouterr().err


@pytest.mark.slow
def test_the_page_runs_as_it_stands(tmp_path, monkeypatch, capsys):
    """docs/my_pictures.md: Python that draws, commands, and Python that predicts."""
    monkeypatch.chdir(tmp_path)
    page = (fresh.ROOT / "docs/my_pictures.md").read_text()
    draw, *rest = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    commands, *_ = re.findall(r"^```\n(tf-capsops .*?)^```$", page, re.DOTALL | re.M)
    exec(draw, {})
    for command in commands.splitlines():
        program, *arguments = shlex.split(command)
        assert program == "tf-capsops" and main(arguments) == 0
    printed = capsys.readouterr().out
    assert "test accuracy 100.00%" in printed
    assert "shapes/circle/7.png: circle 0." in printed
    # In a process that has imported nothing of the command line.
    assert "circle" in fresh.run("".join(rest), cwd=tmp_path).splitlines()
