# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""A recipe of masks is trained, reported and released by its Dice coefficient."""

import dataclasses
import json
import pathlib

import numpy as np
import pytest
from reports import TESTS, TRAINING, few_digits, results_of

from tf_capsops import models
from tf_capsops.__main__ import main
from tf_capsops.experiments import recipes, report

_NAME = "unet-segmented_mnist"


@pytest.mark.ci
def test_a_recipe_of_masks_is_reported(eagerly, undrawn, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    few_digits(monkeypatch)
    known = recipes.DATA["segmented_mnist"]
    few = {"image_shape": (16, 16, 1), "training": TRAINING, "tests": TESTS}
    few = dataclasses.replace(known, **few)
    monkeypatch.setitem(recipes.DATA, "segmented_mnist", few)
    changes = {"epochs": 1, "batch_size": 50}
    quick = dataclasses.replace(recipes.RECIPES[_NAME], changes=changes)
    monkeypatch.setitem(recipes.RECIPES, _NAME, quick)
    given = ["--data", "segmented_mnist:digits", "--seed", "1", "--nondeterministic"]
    assert main(["train", "--recipe", _NAME, *given]) == 0
    capsys.readouterr()
    read = ["report", _NAME, "--read-only", "--release", "released"]
    assert main([*read, "--seeds", "1"]) == 0

    result = json.loads(pathlib.Path(f"runs/{_NAME}/result.json").read_text())
    shown = f"Dice {result['dice']:.4f}"
    assert f"{_NAME}  {shown} (1)" in capsys.readouterr().out
    (run,) = results_of()["recipes"][_NAME]["runs"]
    assert run["dice"] == result["dice"] and "wrong" not in run
    assert run["wrong_by_epoch"] == [round((1 - result["dice"]) * TESTS)]
    card = pathlib.Path(f"released/{_NAME}.md").read_text()
    assert f"| test | {shown} |" in card and "images wrong" not in card
    model = models.load_pretrained(_NAME, "released")
    images = np.zeros([1, 16, 16, 1], np.float32)
    assert model.predict(images, verbose=0).shape == (1, 16, 16, 11)


def test_a_folder_has_to_be_there_to_train_on_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe = recipes.find("convnet-cifar10_jpeg")
    assert not report._has_data(recipe, {})
    assert report._has_data(recipe, {"cifar10_jpeg": "somewhere"})
    (tmp_path / "cifar10_jpeg").mkdir()
    assert report._has_data(recipe, {})
    assert report._has_data(recipes.find("capsnet-mnist"), {})
    assert recipes.source("convnet-cifar10_jpeg", None) == "cifar10_jpeg"
    assert recipes.source("convnet-cifar10_jpeg", str(tmp_path)) == str(tmp_path)
