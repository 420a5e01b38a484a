# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Full disks, trainings that fail, and names that matplotlib would read otherwise."""

import json
import pathlib
import types

import numpy as np
import pytest
from matplotlib import font_manager

from tf_capsops.__main__ import main
from tf_capsops.cli import callbacks, canvas, figures, runs, training
from tf_capsops.errors import CommandError

_QUICK = ["--model", "convnet", "--epochs", "2", "--batch-size", "8", "--jit", "off"]


@pytest.fixture
def images(tmp_path, monkeypatch):
    """A file of three classes, in the working directory."""
    monkeypatch.chdir(tmp_path)
    random, labels = np.random.default_rng(0), np.arange(24) % 3
    pixels = random.integers(0, 256, (24, 12, 12, 1), np.uint8)
    arrays = {"x_train": pixels, "y_train": labels, "x_test": pixels, "y_test": labels}
    np.savez("images.npz", **arrays)
    return "images.npz"


def _no_space(*_):
    raise OSError(28, "No space left on device")


def test_training_goes_on_without_checkpoints(images, monkeypatch, capsys):
    save, saved = callbacks.save_whole, []

    def save_once(model, directory, name):
        if saved:
            _no_space()
        saved.append(name)
        save(model, directory, name)

    monkeypatch.setattr(callbacks, "_PAUSE", 0)
    monkeypatch.setattr(callbacks, "save_whole", save_once)
    assert main(["train", "--data", images, *_QUICK, "--output", "my run"]) == 2
    said = capsys.readouterr().err
    assert "no checkpoint after epoch 2: [Errno 28] No space left" in said
    assert "cannot write to my run: No space left on device; once that is" in said
    assert "`tf-capsops train --resume 'my run'` goes on" in said
    monkeypatch.setattr(callbacks, "save_whole", save)
    assert main(["train", "--resume", "my run"]) == 0
    assert "my run: on from epoch 1 of 2" in capsys.readouterr().out


def test_a_model_that_cannot_be_written_leaves_nothing(tmp_path):
    model = types.SimpleNamespace(save=lambda path: (path.write_text(""), _no_space()))
    with pytest.raises(OSError, match="No space"):
        callbacks.save_whole(model, tmp_path, runs.MODEL)
    assert not [*tmp_path.iterdir()]


def test_a_run_is_whole_without_a_picture(images, monkeypatch, capsys):
    monkeypatch.setattr(training.plots, "curves", _no_space)
    assert main(["train", "--data", images, *_QUICK]) == 0
    said = capsys.readouterr().out
    assert "warning: cannot write a picture: No space left on device" in said
    assert (
        "wrote runs/images: model.keras, config.json, history.json, result.json" in said
    )


def test_a_failed_training_is_called_so(images, capsys):
    assert main(["train", "--data", images, *_QUICK, "--learning-rate", "1e38"]) == 0
    said = "warning: the loss has not been finite since epoch 1: train again with"
    assert said in capsys.readouterr().out
    assert main(["evaluate"]) == 2
    assert (
        "the network's scores are NaN: if its training diverged"
        in capsys.readouterr().err
    )


def test_a_loss_that_recovers_is_no_failure():
    assert training._failure([1.0, np.inf, 0.5]) == []
    assert "since epoch 3" in training._failure([1.0, 0.5, np.nan, np.inf])[0]


def test_images_of_one_class(images, capsys):
    arrays = dict(np.load(images))
    arrays["y_train"] *= 0
    arrays["y_test"] *= 0
    np.savez("one.npz", **arrays)
    assert main(["train", "--data", "one.npz", *_QUICK]) == 2
    assert "y_train has one class, 0: there must be two" in capsys.readouterr().err


def test_runs_of_other_classes_are_not_compared():
    one, other = (
        types.SimpleNamespace(name="pets", class_names=names)
        for names in (["ant", "bee"], ["cat", "dog"])
    )
    runs.check_same(one, "a", one, "b")
    with pytest.raises(CommandError, match="b and a were trained on different classes"):
        runs.check_same(one, "a", other, "b")


def test_names_are_no_formulas(tmp_path):
    names = ["$5 off", r"a_$b$", "$$"]
    dataset = types.SimpleNamespace(class_names=names, objects=1)
    shown = figures.class_names([0, 1, 2], dataset)
    figure = canvas.figure(2, 2)
    figure.suptitle(" ".join(shown))
    canvas.save(figure, tmp_path / "names.png")
    assert shown == [canvas.literal(name) for name in names]


def test_letters_that_the_font_lacks(tmp_path, monkeypatch, recwarn):
    every, pictures = font_manager.fontManager.ttflist, []
    for names in ([], ["STIXGeneral"], ["Last Resort High-Efficiency"]):
        fonts = [font for font in every if font.name in names]
        monkeypatch.setattr(font_manager.fontManager, "ttflist", fonts)
        figure = canvas.figure(2, 2)
        title = figure.suptitle("\u1d81, \u65e5")
        canvas.save(figure, tmp_path / "letters.png")
        pictures.append((tmp_path / "letters.png").read_bytes())
        assert title.get_fontfamily()[1:] == [name for name in names if "STIX" in name]
    assert pictures[0] == pictures[2] != pictures[1]
    assert not recwarn.list


def test_a_command_to_go_on_with_is_one_word(images, capsys):
    folder = pathlib.Path("my run")
    folder.mkdir()
    (folder / runs.CONFIG).write_text(json.dumps({"model": "convnet"}))
    assert main(["evaluate", "my run"]) == 2
    assert "train --resume 'my run'" in capsys.readouterr().err
