# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The commands on data sets that are generated."""

import json
import types

import keras
import matplotlib.image
import numpy as np
import pytest

from tf_capsops import data
from tf_capsops.__main__ import main
from tf_capsops.cli import canvas, figures, train
from tf_capsops.cli.evaluation import multi_hot

pytestmark = pytest.mark.usefixtures("eagerly")


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """A file of 24 and 12 images of 10 x 10 pixels: lying, standing and slanting."""
    random = np.random.default_rng(1)
    labels = {"y_train": np.arange(24) % 3, "y_test": np.arange(12) % 3}
    images = {}
    for name, classes in labels.items():
        each = random.integers(0, 30, [len(classes), 10, 10], np.uint8)
        each[classes == 0, 4:6] = 255
        each[classes == 1, :, 4:6] = 255
        each[classes == 2] |= np.diag(np.full(10, 255, np.uint8))
        images[name.replace("y", "x")] = each
    path = tmp_path_factory.mktemp("digits") / "lines.npz"
    np.savez(path, **labels, **images)
    return path


def test_affine_images_are_trained_and_evaluated(digits, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(digits.parent)
    run = tmp_path / "run"
    options = ["--epochs", "1", "--batch-size", "12", "--output", str(run)]
    assert main(["train", "--data", "affine_mnist:lines.npz", *options]) == 0
    assert "affine_mnist: 24 images for training, 12 for" in capsys.readouterr().out
    config = json.loads((run / "config.json").read_text())
    assert config["data"] == f"affine_mnist:{digits}"
    assert set(config["distortion"].values()) == {0}
    history = json.loads((run / "history.json").read_text())
    monkeypatch.chdir("/")
    assert main(["evaluate", str(run), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["images"] == 12
    assert result["accuracy"] == pytest.approx(history["val_lengths_accuracy"][-1])
    assert 0 < result["reconstruction_rmse"] < 1
    assert matplotlib.image.imread(run / "reconstructions.png").std() > 0.03


@pytest.fixture(scope="module")
def pairs(eagerly, digits):
    """A directory with a run on pairs in it, of 6 epochs."""
    run = digits.parent / "pairs"
    options = ["--epochs", "6", "--batch-size", "10", "--learning-rate", "0.02"]
    options += ["--output", str(run), "--reconstruction-weight", "0.01"]
    assert main(["train", "--data", f"multimnist:{digits}", *options]) == 0
    return run


def test_pairs_are_trained_and_evaluated(pairs, capsys):
    config = json.loads((pairs / "config.json").read_text())
    assert config["data"].startswith("multimnist:")
    assert config["network"]["objects"] == 2
    history = json.loads((pairs / "history.json").read_text())
    assert history["loss"][-1] < 0.8 * history["loss"][0]
    assert main(["evaluate", str(pairs), "--json", "--batch-size", "5"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["images"] == 12
    accuracy = history["val_lengths_accuracy"][-1]
    assert result["accuracy"] == pytest.approx(accuracy) == 1 - result["wrong"] / 12
    shown, found = np.array(result["classes"]).T
    assert shown.sum() == 24 and np.all(found <= shown)
    assert result["wrong"] <= 24 - found.sum() <= 2 * result["wrong"]
    assert 0 < result["reconstruction_rmse"] < 1
    assert main(["evaluate", str(pairs)]) == 0
    printed = capsys.readouterr().out
    assert "class  images  found" in printed
    assert f"    2{shown[2]:8}{found[2]:7}\n" in printed


def test_pairs_are_drawn(pairs, tmp_path, capsys):
    assert main(["reconstruct", str(pairs), "--output", str(tmp_path)]) == 0
    assert capsys.readouterr().out.count("wrote") == 3
    picture = matplotlib.image.imread(pairs / "reconstructions.png")
    drawn = matplotlib.image.imread(tmp_path / "reconstructions.png")
    np.testing.assert_array_equal(drawn, picture)
    for name in ("reconstructions.png", "perturbations.png", "coefficients.png"):
        assert matplotlib.image.imread(tmp_path / name).std() > 0.03


class _Perfect:
    """Reads the test pairs without a mistake, and reconstructs them as they are."""

    objects = 2

    def __init__(self, dataset):
        _, self._targets = dataset.test.take(np.arange(len(dataset.test)))

    def predict_on_batch(self, images):
        return {"lengths": self._targets["lengths"].numpy()}

    def __call__(self, inputs):
        return {"reconstruction": self._targets["reconstruction"]}


def test_the_picture_has_each_digit_in_its_color(digits, tmp_path):
    dataset = data.load(f"multimnist:{digits}")
    path = tmp_path / "picture.png"
    figures.reconstructions(_Perfect(dataset), dataset, path, count=12)
    pixels = matplotlib.image.imread(path)[..., :3].reshape(-1, 3)
    paper = canvas.INK(0.0)[:3]
    for color in figures._COLORS * paper:
        assert np.sum(np.abs(pixels - color).max(axis=1) < 1 / 255) > 100


def test_pictures_have_right_and_wrong_pairs(digits, pairs, monkeypatch):
    model = keras.saving.load_model(pairs / "model.keras")
    dataset = data.load(f"multimnist:{digits}")
    images, targets = dataset.test.take(np.arange(12))
    shown = targets["lengths"].numpy()
    lengths = shown.copy()
    lengths[[3, 7]] = [[1, 0.5, 0], [0, 1, 0.5]]
    lengths[3] = 1.5 - shown[3] + 0.1 * np.arange(3)
    monkeypatch.setattr(model, "predict_on_batch", lambda _: {"lengths": lengths})
    read = multi_hot(lengths, 2)
    wrong = np.flatnonzero(np.any(read != shown, axis=1))
    assert 3 in wrong
    chosen = figures._chosen_pairs(model, dataset, 8)
    drawn, labels, decoded, marked = chosen
    few = min(len(wrong), 2)
    assert len(drawn) == 8 + few and marked.sum() == 2 * few
    np.testing.assert_array_equal(labels[~marked], decoded[~marked])
    first, second = 8 - few, 9 - few
    for place in (first, second):
        np.testing.assert_array_equal(drawn[place], images[wrong[0]])
        np.testing.assert_array_equal(labels[place], shown[wrong[0]])
    np.testing.assert_array_equal(decoded[first], shown[wrong[0]])
    np.testing.assert_array_equal(decoded[second], read[wrong[0]])


def test_two_digits_lie_on_each_other_in_their_colors():
    pairs = np.zeros([1, 2, 1, 4, 1], np.float32)
    pairs[0, 0, 0, [0, 1]] = pairs[0, 1, 0, [1, 2]] = 1
    first, both, second, none = figures._overlaid(pairs)[0, 0]
    np.testing.assert_allclose([first, second], figures._COLORS * none, rtol=1e-6)
    assert none.min() > 0.9
    assert np.all(both <= np.minimum(first, second))


@pytest.mark.parametrize(
    "command, text",
    [
        (["train", "--model", "p_capsnet"], "p_capsnet reads one class from an image"),
        (["train", "--model", "matrix_capsnet"], "give --model capsnet"),
        (["quantize", "PAIRS"], "quantize takes no models that read 2 classes"),
        (["evaluate", "dense.keras"], "the model reads 1 of the classes from an image"),
    ],
)
def test_what_does_not_take_pairs_says_so(
    digits, pairs, tmp_path, monkeypatch, capsys, command, text
):
    monkeypatch.chdir(tmp_path)
    layers = [keras.layers.Flatten(), keras.layers.Dense(3)]
    keras.Sequential([keras.Input([18, 18, 1]), *layers]).save("dense.keras")
    command = [str(pairs) if word == "PAIRS" else word for word in command]
    assert main([*command, "--data", f"multimnist:{digits}"]) == 2
    assert text in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_the_recipe_of_pairs_trains_what_their_data_set_asks_for():
    args = types.SimpleNamespace(recipe="capsnet-multimnist", model=None, preset=None)
    fixed = train.settings_of_recipe(args.recipe)
    assert fixed["network"]["objects"] == 2
    assert train.settings(args, data.load("multimnist:digits")) == fixed


def test_pairs_need_as_many_classes_as_their_model_knows(
    digits, pairs, tmp_path, monkeypatch, capsys
):
    with np.load(digits) as file:
        arrays = dict(file)
    for part in ("train", "test"):
        few = arrays[f"y_{part}"] < 2
        for name in (f"x_{part}", f"y_{part}"):
            arrays[name] = arrays[name][few]
    np.savez(tmp_path / "few.npz", **arrays)
    monkeypatch.chdir(tmp_path)
    for command in ("evaluate", "reconstruct"):
        assert main([command, str(pairs), "--data", "multimnist:few.npz"]) == 2
        said = "reads 2 of 3 classes from an image, and multimnist must have as many"
        assert said in capsys.readouterr().err


def test_pairs_need_a_model_of_pairs_and_lines_one_of_lines(digits, pairs, capsys):
    assert main(["evaluate", str(pairs), "--data", f"affine_mnist:{digits}"]) == 2
    assert "(18, 18, 1), but those of affine_mnist" in capsys.readouterr().err
