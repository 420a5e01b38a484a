# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Folders of pictures: how they are read, trained on, and what is said of bad ones."""

import json
import pathlib
import shutil

import numpy as np
import pytest
import tensorflow as tf

from tf_capsops import data
from tf_capsops.__main__ import main
from tf_capsops.cli import evaluation, figures, networks, pipeline

CLASSES = ("cat", "dog")
# Pictures of 9 rows and 8 columns; a cat's are red and a dog's are green.
_QUICK = ["--model", "convnet", "--epochs", "1", "--batch-size", "8"]


def _pixels(label, number, channels=3, size=(9, 8)):
    pixels = np.zeros([*size, channels], np.uint8)
    pixels[..., label % channels] = 255 - number
    return pixels


def _write(path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    encode = tf.io.encode_png if path.suffix == ".png" else tf.io.encode_jpeg
    tf.io.write_file(str(path), encode(pixels))


def _fill(folder, count=10, **options):
    """Writes so many pictures of each class, half of them as JPEG."""
    for label, name in enumerate(CLASSES):
        for number in range(count):
            suffix = ".JPG" if number % 2 else ".png"
            path = folder / name / f"{number}{suffix}"
            _write(path, _pixels(label, number, **options))
    return folder


@pytest.fixture
def pets(tmp_path, monkeypatch):
    """A folder with a folder for each class, in the working directory."""
    monkeypatch.chdir(tmp_path)
    return _fill(pathlib.Path("pets"))


@pytest.fixture
def halves(tmp_path, monkeypatch):
    """A folder with train/ and test/."""
    monkeypatch.chdir(tmp_path)
    _fill(pathlib.Path("pets/train"))
    _fill(pathlib.Path("pets/test"), 3)
    return pathlib.Path("pets")


def _files(samples):
    return {str(pathlib.Path(path)) for path in samples._files}


def test_images_and_labels_are_those_of_the_files(halves):
    pets = data.load("pets/")
    assert (pets.name, pets.class_names) == ("pets", ["cat", "dog"])
    assert pets.image_shape == (9, 8, 3)
    assert (len(pets.train), len(pets.test)) == (20, 6)
    assert pets.test.labels.tolist() == [0, 0, 0, 1, 1, 1]
    images, labels = pets.test.take([0, 5])
    assert labels.numpy().tolist() == [0, 1]
    expected = np.stack([_pixels(0, 0), _pixels(1, 2)]) / np.float32(255)
    np.testing.assert_array_equal(images, expected)
    (batch,) = pets.train.batches(20)
    assert batch[0].shape == (20, 9, 8, 3) and batch[0].dtype == tf.float32
    np.testing.assert_array_equal(batch[1], pets.train.labels)
    np.testing.assert_array_equal(batch[1], batch[0][:, 4, 4, 1] > 0.5)


def test_a_share_of_each_class_is_for_testing_and_always_the_same(pets):
    for number in range(10, 30):
        _write(pets / "dog" / f"{number}.png", _pixels(1, number))
    loaded = data.load(pets)
    assert np.bincount(loaded.test.labels).tolist() == [2, 6]
    assert np.bincount(loaded.train.labels).tolist() == [8, 24]
    assert not _files(loaded.train) & _files(loaded.test)
    assert _files(data.load(pets).test) == _files(loaded.test)
    assert _files(data.load(pets, seed=1).test) != _files(loaded.test)
    # Names decide, and not where the folder is or what else is in it.
    half = data.load(pets, test_share=0.5)
    assert np.bincount(half.test.labels).tolist() == [5, 15]
    assert _files(half.test) > _files(loaded.test)
    assert half.options["test_share"] == 0.5
    few = data.load(pets, test_share=0.01)
    assert np.bincount(few.test.labels).tolist() == [1, 1]


def test_without_training_all_pictures_are_for_testing(pets):
    loaded = data.load(pets, training=False, class_names=["dog", "cat", "cow"])
    assert (len(loaded.train), len(loaded.test), loaded.num_classes) == (0, 20, 3)
    assert loaded.test.labels.tolist() == [1] * 10 + [0] * 10
    again = data.load(pets, training=False, test_share=0.2)
    assert _files(again.test) == _files(data.load(pets).test)


def test_pictures_are_converted_as_asked(halves):
    white = np.full([6, 4, 2], 255, np.uint8)
    white[:3, :, 0] = 0
    white[..., 1] = 128  # alpha
    _write(halves / "train" / "cat" / "gray.png", white)
    wide = data.load(halves, image_size=(2, 4), color_mode="rgb")
    assert wide.image_shape == (2, 4, 3)
    (index,) = [i for i, path in enumerate(wide.train._files) if "gray" in path]
    (image,), _ = wide.train.take([index])
    # Of three rows each, black above white, smoothed between.
    np.testing.assert_array_equal(image[..., 0], image[..., 2])
    assert np.ptp(image, axis=1).max() < 1e-6
    assert image[0, 0, 0] < 0.2 and image[1, 0, 0] > 0.8
    gray = data.load(halves, image_size=(9, 8), color_mode="grayscale")
    images, _ = gray.test.take([0, 3])
    red, green = images[:, 0, 0, 0].numpy()
    np.testing.assert_allclose([red, green], [0.299, 0.587], atol=1e-6)


def _text(folder):
    (folder / "train" / "cat" / "notes.txt").write_text("no picture")


def _renamed(folder):
    (folder / "train" / "cat" / "notes.png").write_text("no picture")


def _cut(folder):
    for name in ("3.JPG", "4.png"):
        path = folder / "train" / "cat" / name
        path.write_bytes(path.read_bytes()[:-30])


def _empty(folder):
    (folder / "test" / "cow").mkdir()


def _one(folder):
    shutil.rmtree(folder / "train" / "dog")
    shutil.rmtree(folder / "test" / "dog")


def _larger(folder):
    _write(folder / "test" / "dog" / "a.png", _pixels(1, 1, size=(10, 8)))


def _gray(folder):
    _write(folder / "train" / "dog" / "a.png", _pixels(1, 1, channels=1))


def _other(folder):
    _write(folder / "test" / "cow" / "a.png", _pixels(1, 1))


def _loose(folder):
    _write(folder / "train" / "a.png", _pixels(1, 1))


def _nested(folder):
    _write(folder / "train" / "cat" / "more" / "a.png", _pixels(1, 1))


def _no_test(folder):
    shutil.rmtree(folder / "test")


def _bare(folder):
    for part in folder.iterdir():
        shutil.rmtree(part)


_BAD = [
    (_text, "pets/train/cat/notes.txt is no PNG, JPEG, BMP, GIF or WebP picture: take"),
    (_renamed, "pets/train/cat/notes.png cannot be read as a picture: take it out, or"),
    (_cut, "pets/train/cat/3.JPG cannot be read as a picture, and 1 more: take it out"),
    (_empty, "pets/test/cow has no pictures: fill the class or remove it"),
    (_one, "pets has one class, cat: there must be two folders or more, one for each"),
    (
        _larger,
        "pets/test/dog/a.png is 8 x 10 pixels large, and pets/train/cat/0.png is 8 x 9 "
        "pixels large: give --image-size PIXELS to convert all pictures",
    ),
    (
        _gray,
        "pets/train/dog/a.png is gray, and pets/train/cat/0.png has colors: give "
        "--color-mode rgb or grayscale to convert all pictures",
    ),
    (_other, "pets/test/cow is none of the classes that training has: cat, dog"),
    (
        _loose,
        "pets/train/a.png is in no class's folder: put the pictures of",
    ),
    (_nested, "pets/train/cat/more is a folder among the pictures of a class: put the"),
    (
        _no_test,
        "pets has train/ but no test/: add it, or give pets/train itself",
    ),
    (_bare, "pets has no folders: there must be one for each class, with its pictures"),
]


@pytest.mark.parametrize("spoil, text", _BAD, ids=lambda x: getattr(x, "__name__", ""))
def test_bad_folders_are_named_in_one_line(halves, capfd, spoil, text):
    spoil(halves)
    assert main(["train", "--data", "pets"]) == 2
    printed = capfd.readouterr()
    assert printed.err.startswith(f"tf-capsops train: error: {text}")
    assert printed.err.count("\n") == 1 and not printed.out
    assert not pathlib.Path("runs").exists()


def test_pictures_for_testing_alone(halves):
    shutil.rmtree(halves / "train")
    assert len(data.load("pets", training=False).test) == 6
    with pytest.raises(ValueError, match="pets has test/: no --test-share"):
        data.load("pets", training=False, test_share=0.3)
    with pytest.raises(ValueError, match="pets has test/ but no train/: add it, or"):
        data.load("pets")


def test_a_run_is_no_class(pets, capsys):
    assert main(["train", "--data", "pets", *_QUICK, "--output", "pets/run"]) == 2
    text = "pets/run is in pets, whose folders are classes: give another --output"
    assert text in capsys.readouterr().err
    assert not pathlib.Path("pets/run").exists()


@pytest.mark.parametrize(
    "arguments, text",
    [
        (["--test-share", "0.3"], "pets has train/ and test/: no --test-share"),
        (
            ["--data", "digits", "--image-size", "9"],
            "digits is no folder of pictur",
        ),
        (
            ["--image-size", "9", "8", "3"],
            "--image-size takes one number, or",
        ),
        (["--image-size", "0"], "argument --image-size: must be an integer >= 1"),
        (
            ["--data", "multimnist:pets"],
            "multimnist is made of arrays of digi",
        ),
    ],
)
def test_options_that_do_not_suit(halves, capsys, arguments, text):
    assert main(["train", "--data", "pets", *arguments]) == 2
    assert text in capsys.readouterr().err
    assert not pathlib.Path("runs").exists()


@pytest.mark.parametrize(
    "option, text",
    [
        ({"image_size": (8, 0)}, "load: image_size must be"),
        ({"color_mode": "hsv"}, "color_mode must be grayscale or rgb, got 'hsv'"),
        ({"test_share": 1.5}, "test_share must be between 0 and 1, got 1.5"),
    ],
)
def test_options_of_odd_values(pets, option, text):
    with pytest.raises(ValueError, match=text):
        data.load(pets, **option)


def test_a_class_of_one_picture_cannot_be_divided(pets, capsys):
    _write(pets / "cow" / "a.png", _pixels(1, 1))
    assert main(["train", "--data", "pets"]) == 2
    text = "pets/cow has one picture: there must be two or more, one for training and"
    assert text in capsys.readouterr().err


def test_broken_files_are_skipped_and_counted(halves, capfd):
    for spoil in (_text, _renamed, _cut):
        spoil(halves)
    loaded = networks.open_data("pets", skip_broken=True)
    assert np.bincount(loaded.train.labels).tolist() == [8, 10]
    assert capfd.readouterr().err == (
        "warning: skipped 4 files that are no pictures, such as "
        "pets/train/cat/notes.txt\n"
    )
    assert networks.described(loaded)["pictures"]["skipped"] == 4
    for path in (halves / "test" / "dog").iterdir():
        path.write_bytes(b"")
    with pytest.raises(ValueError, match="pets/test/dog has no picture for testing"):
        data.load("pets", skip_broken=True)


def test_hidden_files_are_passed_over(halves):
    for name in (".DS_Store", "Thumbs.db", "desktop.ini"):
        (halves / "train" / "cat" / name).write_text("")
    (halves / "train" / ".cache").mkdir()
    (halves / "README.txt").write_text("about these pictures")
    assert len(data.load(halves).train) == 20


def test_names_travel_with_a_run(eagerly, halves, capsys):
    extra = ["--image-size", "8", "--flip", "--brightness", "0.2", "--contrast", "0.2"]
    extra += ["--erase", "0.2", "--class-weight", "balanced"]
    assert main(["train", "--data", "pets", *_QUICK, *extra]) == 0
    assert "20 images for training, 6 for testing, 2 classes: cat, dog\n" in (
        capsys.readouterr().out
    )
    config = json.loads(pathlib.Path("runs/pets/config.json").read_text())
    assert config["data"] == str(halves.resolve())
    assert config["classes"] == ["cat", "dog"]
    assert config["pictures"] == {
        "image_size": [8, 8],
        "color_mode": "rgb",
        "test_share": None,
        "skip_broken": False,
        "skipped": 0,
    }
    assert config["distortion"] == {
        **{"shift": 0.5, "degrees": 7.0, "zoom": 0.1, "flip": 0.5},
        **{"brightness": 0.2, "contrast": 0.2, "erase": 0.2},
    }
    assert config["class_weight"] == "balanced"
    assert main(["evaluate", "--output", "judged"]) == 0
    printed = capsys.readouterr().out
    assert "pets: 6 test images" in printed and "\n1 dog" in printed
    result = json.loads(pathlib.Path("judged/confusion.json").read_text())
    assert result["class_names"] == ["cat", "dog"]
    assert tf.io.decode_png(tf.io.read_file("judged/confusion.png")).shape[-1] == 4
    # A folder of some of the classes, of another size, all of it for testing.
    shutil.rmtree(halves / "train" / "cat")
    assert main(["evaluate", "--data", "pets/train", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["images"] == 10 and sum(result["confusion"][1]) == 10
    (halves / "train" / "dog").rename(halves / "train" / "cow")
    assert main(["evaluate", "--data", "pets/train"]) == 2
    text = "pets/train/cow is none of the classes that the network knows: cat, dog"
    assert text in capsys.readouterr().err


def test_a_run_is_tested_on_the_pictures_that_it_was_not_trained_on(
    eagerly, pets, capsys
):
    options = ["--test-share", "0.3", "--validation", "0.25"]
    assert main(["train", "--data", "pets", *_QUICK, *options]) == 0
    printed = capsys.readouterr().out
    assert "10 images for training, 4 for validation" in printed
    assert main(["evaluate", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["images"] == 6
    _, dataset, _ = networks.open_model("runs/pets", training=True)
    wanted = data.load(pets.resolve(), test_share=0.3)
    assert _files(dataset.test) == _files(wanted.test)
    held = pipeline.held_out(dataset, 0.25)
    assert _files(held.train) | _files(held.test) == _files(wanted.train)
    assert not _files(held.train) & _files(held.test)
    assert figures.class_names([1, 0], dataset) == ["dog", "cat"]


@pytest.mark.parametrize(
    "entry, text",
    [
        ({"classes": ["cat"]}, "classes must be the names of 2 classes, got ['cat']"),
        ({"classes": {"cat": 0}}, "classes must be the names of 2 classes, got {"),
        ({"pictures": 3}, "pictures must be an object, got 3"),
        (
            {"pictures": {"image_size": [8]}},
            "image_size must be two or three integers, got [",
        ),
        ({"pictures": {"test_share": 2}}, "test_share must be between 0 and 1 or null"),
    ],
    ids=str,
)
def test_configurations_of_odd_types(pets, capsys, entry, text):
    path = pathlib.Path("run")
    path.mkdir()
    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [tf.keras.Input([9, 8, 3]), layers.Flatten(), layers.Dense(2)]
    )
    model.save(path / "model.keras")
    config = {"data": str(pets.resolve()), **entry}
    (path / "config.json").write_text(json.dumps(config))
    assert main(["evaluate", "run"]) == 2
    assert f"run/config.json: {text}" in capsys.readouterr().err


def test_precision_and_recall():
    matrix = np.array([[3, 1, 0], [1, 4, 0], [1, 0, 0]])
    assert evaluation.precision_and_recall(matrix) == {
        "precision": [0.6, 0.8, None],
        "recall": [0.75, 0.8, 0.0],
    }
    assert evaluation.precision_and_recall(np.diag([2, 0]))["recall"] == [1.0, None]
