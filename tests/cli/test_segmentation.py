# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Masks of classes, from files and folders, and the commands that read them."""

import argparse
import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from masked import masked_pictures

from tf_capsops import data, models
from tf_capsops.__main__ import main
from tf_capsops.cli import evaluation, networks, train

_RANDOM = np.random.default_rng(5)


def _arrays(shape=(6, 8, 16), classes=3):
    """Images whose brightness is their class, as the arrays of a file."""
    drawn = {}
    for part in ("train", "test"):
        masks = np.resize(np.arange(classes, dtype=np.uint8), shape)
        for mask in masks:
            _RANDOM.shuffle(mask.reshape(-1))
        drawn |= {f"x_{part}": masks * 80 + 5, f"y_{part}": masks}
    return drawn


def _saved(folder, **arrays):
    np.savez(folder / "blobs.npz", **arrays)
    return folder / "blobs.npz"


def test_a_file_may_have_masks_or_volumes(tmp_path):
    for shape in ((6, 8, 16), (6, 8, 8, 16)):
        arrays = _arrays(shape)
        expected = arrays["x_test"][..., None] / np.float32(255)
        forms = [
            arrays,
            {n: x[..., None] if n[0] == "y" else x for n, x in arrays.items()},
            {n: x[..., None] if n[0] == "x" else x for n, x in arrays.items()},
            {n: x[..., None] for n, x in arrays.items()},
        ]
        for form in forms:
            loaded = data.load(_saved(tmp_path, **form))
            assert loaded.has_masks and loaded.num_classes == 3
            assert loaded.image_shape == (*shape[1:], 1)
            images, masks = loaded.test.take([4, 1])
            np.testing.assert_array_equal(images, expected[[4, 1]])
            assert masks.dtype == tf.int32
            np.testing.assert_array_equal(masks[..., 0], arrays["y_test"][[4, 1]])
    held = loaded.held_out(np.arange(4), np.arange(4, 6))
    np.testing.assert_array_equal(held.y_test[..., 0], arrays["y_train"][4:])


@pytest.mark.parametrize(
    "changes, text",
    [
        ({"y_test": np.zeros([6, 8, 15], int)}, "y_test must be masks of the size of"),
        ({"y_train": np.zeros([6, 8, 16])}, "y_train must be integers, got float64"),
        ({"y_train": np.full([6, 8, 16], -1)}, "y_train must be class numbers from 0"),
        ({"y_test": np.full([6, 8, 16], 4)}, "labels that y_train has not: [4]"),
        (
            {"x_test": np.zeros([6, 2, 8, 16, 1])},
            "volumes [N, D, H, W, C] of the masks",
        ),
        ({"y_test": np.zeros([5, 8, 16], int)}, "y_test must be masks of the size of"),
    ],
)
def test_bad_masks_are_named(tmp_path, changes, text):
    with pytest.raises(ValueError) as error:
        data.load(_saved(tmp_path, **{**_arrays(), **changes}))
    assert text in str(error.value)


def test_overlaps_are_those_of_pixels():
    matrix = np.array([[50, 10, 0], [5, 35, 0], [0, 0, 0]])
    found = evaluation.overlaps(matrix)
    assert found["dice"] == [100 / 115, 70 / 85, None]
    assert found["iou"] == [50 / 65, 35 / 50, None]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of a folder of pictures, whose grays a few weights tell apart."""
    folder = tmp_path_factory.mktemp("segmentation")
    cells = masked_pictures(folder / "cells", 10)
    options = ["--epochs", "15", "--batch-size", "2", "--validation", "0.25"]
    options += ["--learning-rate", "0.01"]
    output = ["--model", "unet", "--output", str(folder / "run")]
    assert main(["train", "--data", str(cells), *options, *output]) == 0
    return folder


def test_a_run_is_evaluated(trained, capsys):
    run = trained / "run"
    result = json.loads((run / "result.json").read_text())
    history = json.loads((run / "history.json").read_text())
    assert result["dice"] == history["val_dice"][-1]
    assert result["pixel_accuracy"] == history["val_accuracy"][-1]
    assert main(["evaluate", str(run), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == json.loads((run / "segmentation.json").read_text())
    assert found["class_names"] == ["0", "255"]
    assert np.sum(found["confusion"]) == found["images"] * 8 * 16
    assert found["mean_dice"] > 0.9  # two grays
    assert main(["evaluate", str(run)]) == 0
    said = capsys.readouterr().out
    assert "class      pixels    Dice     IoU" in said and "segmentation.json" in said


def test_masks_are_predicted_as_those_for_training(trained, tmp_path, capsys):
    pictures = sorted((trained / "cells/images").iterdir())[:2]
    output = tmp_path / "found"
    given = [str(trained / "run"), *map(str, pictures)]
    assert main(["predict", *given, "--json", "--output", str(output)]) == 0
    answers = json.loads(capsys.readouterr().out)
    assert [each["file"] for each in answers] == [str(path) for path in pictures]
    for answer, picture in zip(answers, pictures):
        assert answer["mask"] == str(output / picture.name)
        mask = tf.io.decode_png(tf.io.read_file(answer["mask"])).numpy()
        wanted = trained / "cells/masks" / picture.name
        wanted = tf.io.decode_png(tf.io.read_file(str(wanted))).numpy()
        assert mask.shape == wanted.shape and set(np.unique(mask)) <= {0, 255}
        assert np.mean(mask == wanted) > 0.9
        assert answer["classes"]["255"] == np.mean(mask == 255)
    # A mask has its picture's size, whatever the network's.
    larger = tmp_path / "larger.png"
    larger.write_bytes(tf.io.encode_png(np.zeros([20, 30, 3], np.uint8)).numpy())
    assert main(["predict", str(trained / "run"), str(larger)]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"{larger} -> {trained / 'run/masks/larger.png'}: ")
    mask = tf.io.read_file(str(trained / "run/masks/larger.png"))
    assert tf.io.decode_png(mask).shape == (20, 30, 1)


def test_masks_replace_no_picture_and_no_other_mask(trained, tmp_path, capsys):
    run, source = str(trained / "run"), trained / "cells/images/0.png"
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
        (folder / "0.png").write_bytes(source.read_bytes())
    given = ["predict", run, *map(str, folders)]
    assert main([*given, "--output", str(folders[0])]) == 2
    assert "a/0.png is one of the pictures, and a mask would" in capsys.readouterr().err
    assert (folders[0] / "0.png").read_bytes() == source.read_bytes()
    # Masks in a folder that is read are no pictures.
    output = folders[1] / "masks"
    given += ["--tile", "64"]  # with which masks are written one by one
    assert main([*given, "--json", "--output", str(output)]) == 0
    answers = json.loads(capsys.readouterr().out)
    names = [str(output / name) for name in ("0.png", "0-2.png")]
    assert [each["mask"] for each in answers] == names


@pytest.mark.parametrize("images", ["cells/images", "cells/images/0.png"])
@pytest.mark.parametrize("output", [None, "cells/masks", "cells/images/../masks"])
def test_predictions_replace_no_true_masks(images, output, tmp_path, capsys):
    cells = masked_pictures(tmp_path / "cells", 1)
    before = (cells / "masks/0.png").read_bytes()
    models.unet((8, 16, 1), 2, size="small").save(cells / "model.keras")
    given = ["predict", str(cells / "model.keras"), str(tmp_path / images)]
    options = ["--output", str(tmp_path / output)] if output else []
    assert main([*given, *options]) == 2
    said = capsys.readouterr().err
    assert "masks has the masks of the pictures in" in said
    assert "give another --output" in said
    assert (cells / "masks/0.png").read_bytes() == before


def test_masks_have_at_most_256_classes(tmp_path, capsys):
    cells = masked_pictures(tmp_path / "cells", 1)
    for classes, status in ((256, 0), (257, 2)):
        file = str(tmp_path / f"{classes}.keras")
        models.unet((8, 16, 1), classes, size="small").save(file)
        assert main(["predict", file, str(cells / "images")]) == status
    assert "257 classes do not fit into a mask of 8 bits" in capsys.readouterr().err


def test_a_network_of_one_class_reads_an_object(tmp_path, capsys):
    cells = masked_pictures(tmp_path / "cells", 10)
    model = models.unet((8, 16, 1), 1, size="small")
    model.compile(keras.optimizers.Adam(0.01), loss="binary_crossentropy")
    images, masks = data.load(cells).train.take(range(8))
    model.fit(images, masks, epochs=60, verbose=0)
    model.save(tmp_path / "model.keras")
    file, output = str(tmp_path / "model.keras"), str(tmp_path / "found")
    assert main(["evaluate", file, "--data", str(cells), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["class_names"] == ["0", "255"] and found["mean_dice"] > 0.9
    picture = str(cells / "images/0.png")
    assert main(["predict", file, picture, "--json", "--output", output]) == 0
    (answer,) = json.loads(capsys.readouterr().out)
    mask = tf.io.decode_png(tf.io.read_file(answer["mask"])).numpy()
    wanted = tf.io.decode_png(tf.io.read_file(str(cells / "masks/0.png"))).numpy()
    assert set(np.unique(mask)) == {0, 255} and np.mean(mask == wanted) > 0.9
    assert answer["classes"]["255"] == np.mean(mask == 255)


def test_a_preset_of_networks_for_masks_waits_for_the_data():
    parser = argparse.ArgumentParser()
    train.add_arguments(parser)
    given = ["--data", "segmented_mnist:digits", "--preset", "paper"]
    train.check(parser.parse_args(given))
    train.check(parser.parse_args([*given, "--model", "segcaps", "--flip"]))


def _digits(folder):
    """Writes a file of 40 and 20 digits, as many of each class."""
    digits, arrays = data.load("digits"), {}
    for part, count in (("train", 4), ("test", 2)):
        labels = getattr(digits, f"y_{part}")
        chosen = [np.flatnonzero(labels == number)[:count] for number in range(10)]
        for name in (f"x_{part}", f"y_{part}"):
            arrays[name] = getattr(digits, name)[np.ravel(chosen)]
    np.savez(folder / "few.npz", **arrays)
    return folder / "few.npz"


@pytest.mark.parametrize(
    "kind, model, shape, given",
    [
        (
            *("segmented_mnist", "segcaps", (24, 16, 1)),
            ["--image-size", "24", "16", "--steps-per-epoch", "2"],
        ),
        pytest.param(
            *("moving_mnist", "ucaps3d", (16, 16, 16, 1), []), marks=pytest.mark.slow
        ),
    ],
)
def test_generated_masks_train_and_resume(kind, model, shape, given, tmp_path):
    run, data_name = str(tmp_path / "run"), f"{kind}:{_digits(tmp_path)}"
    options = [*given, "--epochs", "1", "--batch-size", "10", "--validation", "0.5"]
    options += ["--class-weight", "balanced"]
    assert main(["train", "--data", data_name, *options, "--output", run]) == 0
    config = json.loads((tmp_path / "run/config.json").read_text())
    assert (config["model"], config["preset"]) == (model, "compact")
    network = keras.saving.load_model(tmp_path / "run/model.keras")
    assert network.image_shape == shape and network.num_classes == 11
    # Both commands name classes alike.
    names = ["background", *map(str, range(10))]
    assert networks.class_names(network, tmp_path / "run", 11) == names
    assert config["classes"] == names
    (tmp_path / "run/model.keras").rename(tmp_path / "run/checkpoint-1.keras")
    config["epochs"] = 2
    (tmp_path / "run/config.json").write_text(json.dumps(config))
    assert main(["train", "--resume", run]) == 0
    history = json.loads((tmp_path / "run/history.json").read_text())
    assert len(history["dice"]) == 2 and len(history["loss"]) == 2
    assert main(["evaluate", run]) == 0


@pytest.mark.parametrize(
    "arguments, text",
    [
        (["train", "--model", "capsnet"], "has masks: give --model segcaps or unet\n"),
        (
            ["train", "--model", "segcaps", "--preset", "chen"],
            "large, paper, small, not",
        ),
        (
            ["train", "--model", "ucaps3d"],
            "ucaps3d reads volumes, and blobs has images: give --model segcaps or unet",
        ),
        (
            ["train", "--model", "unet", "--reconstruction-weight", "1"],
            "no reconstruct",
        ),
    ],
)
def test_mistakes_are_named(tmp_path, arguments, text, capsys):
    file = _saved(tmp_path, **_arrays())
    assert main([*arguments, "--data", str(file)]) == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize("options", [[], ["--image-size", "12", "20"]])
def test_sizes_that_do_not_fit_name_the_option(tmp_path, options, capsys):
    cells = masked_pictures(tmp_path / "cells", 10, size=(9, 16))
    assert main(["train", "--data", str(cells), *options]) == 2
    said = capsys.readouterr().err
    assert "multiples of 8, got (" in said and "give --image-size, multiples" in said


def test_other_data_and_commands_are_refused(trained, tmp_path, capsys):
    run = str(trained / "run")
    for arguments, text in (
        (
            ["train", "--data", "digits", "--model", "unet"],
            "digits has a class for each",
        ),
        (["evaluate", run, "--data", "digits"], "reads masks, and digits has none: gi"),
        (["quantize", run], "segments, which train, evaluate, predict and reconstruct"),
        (["quantize", run], "take; tf_capsops.inq quantizes it in Python"),
        (["reconstruct", run], "evaluate, predict and reconstruct --routing take"),
        (["predict", run, str(tmp_path), "--top", "2"], "for each pixel: no --top"),
    ):
        assert main(arguments) == 2
        assert text in capsys.readouterr().err
