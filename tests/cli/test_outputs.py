# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Where commands say that they write, and what they name files of other data."""

import json
import os
import pathlib

import keras
import numpy as np
import pytest

from tf_capsops import layers, models
from tf_capsops.__main__ import main

pytestmark = pytest.mark.usefixtures("eagerly")


@pytest.fixture
def work(tmp_path, monkeypatch):
    """A working directory with a run of own.npz, other.npz and two classes of pictures.

    The run has model.keras and codes.keras.
    """
    monkeypatch.chdir(tmp_path)
    random, labels = np.random.default_rng(1), np.arange(4) % 2
    for name in ("own", "other"):
        images = random.random([4, 8, 8, 1], np.float32)
        np.savez(name, x_train=images, y_train=labels, x_test=images, y_test=labels)
    for number in range(6):
        path = pathlib.Path("pets", ("cat", "dog")[number % 2], f"{number}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        keras.utils.save_img(path, np.full([8, 8, 1], number * 40), scale=False)
    pathlib.Path("run").mkdir()
    _configure(data=str(tmp_path / "own.npz"))
    last = [keras.layers.Flatten(), keras.layers.Dense(2, "softmax")]
    network = [keras.Input([8, 8, 1]), layers.Conv2D(2, 3), *last]
    model = keras.Sequential(network)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy())
    model.save("run/model.keras")
    model.save("run/codes.keras")
    return tmp_path


def _configure(**config):
    pathlib.Path("run/config.json").write_text(json.dumps(config))


def _written(capsys):
    return capsys.readouterr().out.splitlines()[-1].partition("wrote ")[2]


@pytest.mark.parametrize(
    "arguments, names",
    [
        (["run"], "run: confusion.json, confusion.png"),
        (
            ["run/model.keras", "--data", "own.npz"],
            "run: confusion.json, confusion.png",
        ),
        (["run", "--data", "other.npz"], "run: confusion-other.json, confusion-other."),
        (["run/codes.keras"], "run: confusion-codes.json, confusion-codes.png"),
        (
            ["run/codes.keras", "--data", "other.npz"],
            "run: confusion-codes-other.json, confusion-codes-other.png",
        ),
        (
            ["run/codes.keras", "--data", "other.npz", "--output", "new"],
            "new: confusion.json, confusion.png",
        ),
    ],
)
def test_results_of_other_data_and_models_have_names_of_their_own(
    work, undrawn, arguments, names, capsys
):
    assert main(["evaluate", *arguments]) == 0
    written = _written(capsys)
    assert written.startswith(names)
    folder, _, files = written.partition(": ")
    assert all((work / folder / name).is_file() for name in files.split(", "))


def test_attacks_of_other_data_have_names_of_their_own(work, undrawn, capsys):
    options = ["--method", "fgsm", "--epsilon", "0.1", "--data", "other.npz"]
    assert main(["attack", "run", *options]) == 0
    assert _written(capsys) == "run: attack-fgsm-other.json, attack-fgsm-other.png"


def test_folders_that_may_not_be_written_to(work, monkeypatch, capsys):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert main(["evaluate", "run"]) == 0
    said = "run may not be written to: no confusion.json, confusion.png\n"
    assert capsys.readouterr().out.endswith(said)
    assert main(["evaluate", "run", "--output", "new"]) == 2
    printed = capsys.readouterr()
    assert printed.err == "tf-capsops evaluate: error: new may not be written to\n"
    assert printed.out == ""  # before anything is computed


def test_classes_without_names_are_warned_of(work, undrawn, capsys):
    assert main(["evaluate", "run", "--data", "pets"]) == 0
    said = "what its classes are called, and takes cat for class 0, dog for class 1"
    assert said in capsys.readouterr().err
    _configure(classes=["cat", "dog"])
    assert main(["evaluate", "run", "--data", "pets"]) == 0
    assert "warning" not in capsys.readouterr().err


def test_pictures_without_masks_are_refused(work, capsys):
    models.unet((8, 8, 1), 2, size="small").save("segments.keras")
    assert main(["evaluate", "segments.keras", "--data", "pets"]) == 2
    said = "the model reads masks, and pets has none: give a folder with images/"
    assert said in capsys.readouterr().err


def test_train_and_quantize_say_where_they_write(work, undrawn, capsys):
    train = ["train", "--data", "own.npz", "--model", "convnet", "--epochs", "1"]
    for place in ("runs/own\n", "runs/own-2 (runs/own is there already)\n"):
        assert main(train) == 0
        said = capsys.readouterr().out
        assert f"parameters, 1 epoch of 1 batch\nwriting to {place}epoch 1/1" in said
    quantize = ["quantize", "runs/own", "--steps", "1", "--epochs-per-step", "1"]
    for place in ("run-3\n", "run-3-2 (run-3 is there already)\n"):
        assert main([*quantize, "--output", "run-3"]) == 0
        said = capsys.readouterr().out
        assert (
            f"5 bits: 1 step of 1 epoch of 1 batch\nwriting to {place}before:" in said
        )
    assert main(["quantize", "run-3/codes.keras"]) == 2
    said = "run-3/codes.keras holds codes already: give the model.keras that they were"
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "model, least", [("capsnet", 5), ("efficient_capsnet", 7), ("p_capsnet", 7)]
)
def test_pictures_that_are_too_small_name_the_option(work, model, least, capsys):
    options = ["--data", "pets", "--image-size", "2", "--model", model]
    assert main(["train", *options]) == 2
    said = (
        f"small {model} takes no images as small as those of pets (2x2); each side "
        f"must have at least {least} pixels: give a larger --image-size\n"
    )
    assert capsys.readouterr().err == f"tf-capsops train: error: {said}"
