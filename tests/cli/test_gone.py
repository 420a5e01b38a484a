# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Pictures that go while a command uses them are named."""

import pathlib
import re

import pytest
import tensorflow as tf
from masked import masked_pictures

from tf_capsops import models
from tf_capsops.__main__ import main
from tf_capsops.cli import networks


def _losing(monkeypatch, name):
    """Has a file of each opened data set go."""
    opened = networks.open_data

    def open_data(*args, **options):
        found = opened(*args, **options)
        pathlib.Path(name).unlink()
        return found

    monkeypatch.setattr(networks, "open_data", open_data)


@pytest.mark.parametrize(
    "command, absolute, name, folder",
    [
        ("train", False, "images/1.png", "cells"),
        ("train", True, "masks/1.png", "a {{b}} c: d; e"),
        ("evaluate", True, "images/1.png", "cells"),
        ("evaluate", False, "masks/1.png", "a {{b}} c: d; e"),
    ],
)
def test_a_lost_picture_of_a_mask_is_named(
    command, absolute, name, folder, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    source = masked_pictures(tmp_path / folder if absolute else pathlib.Path(folder))
    file = str(source / name)
    _losing(monkeypatch, file)
    if command == "train":
        given = ["--model", "unet", "--epochs", "1", "--batch-size", "2"]
        then = "go on with --resume"
    else:
        models.unet((8, 16, 1), 2, size="small").save("model.keras")
        given, then = ["model.keras"], "evaluate again"
    assert main([command, *given, "--data", str(source)]) == 2
    said = capsys.readouterr().err
    expected = f"error: a picture is gone: {file}; put it back, and {then}\n"
    assert said.endswith(expected), said


def test_a_lost_picture_of_a_class_is_named(tmp_path, monkeypatch, capsys):
    for label in ("cat", "dog"):
        for number in range(2):
            path = tmp_path / "pets" / label / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(tf.io.encode_png(tf.zeros([8, 8, 1], tf.uint8)).numpy())
    models.convnet((8, 8, 1), 2, kernel_size=3).save(tmp_path / "model.keras")
    _losing(monkeypatch, tmp_path / "pets/dog/1.png")
    given = [str(tmp_path / "model.keras"), "--data", str(tmp_path / "pets")]
    assert main(["evaluate", *given]) == 2
    assert re.search(
        r"a picture is gone: .*pets/dog/1.png; put", capsys.readouterr().err
    )
