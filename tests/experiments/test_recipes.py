# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""`train --recipe` and `train --validation`: what they fix, and what they refuse."""

import json
import pathlib
import shutil

import numpy as np
import pytest
from reports import TESTS, TRAINING, few_digits

from tf_capsops import data
from tf_capsops.__main__ import main, make_parser
from tf_capsops.cli import networks, pipeline, presets, train
from tf_capsops.errors import CommandError
from tf_capsops.experiments import recipes, results

# As the pages and docstrings of the networks count them.
_PARAMETERS = {
    "capsnet-digits": 362_688,
    "efficient_capsnet-digits": 39_216,
    "em-digits": 19_452,
    "capsnet-mnist": 8_227_088,
    "p_capsnet-mnist": 82_336,
    "p_capsnet_tiny-mnist": 3_888,
    "efficient_capsnet-mnist": 162_400,
    "em-mnist": 318_964,
    "em-affine_mnist": 318_964,
    "vb-affine_mnist": 319_260,
    "deepcaps-mnist": 8_506_705,
}
# Names that say which preset is trained, too.
_WITH_PRESET = ("p_capsnet_tiny-mnist",)
# Without those of fashion_mnist, whose networks are those of mnist.
_RECIPES = {n: r for n, r in recipes.RECIPES.items() if r.data != "fashion_mnist"}


@pytest.fixture
def work(tmp_path, monkeypatch):
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def few(eagerly, undrawn, monkeypatch):
    """Few digits, on which nothing takes long."""
    few_digits(monkeypatch)


def _config(run):
    return json.loads((pathlib.Path("runs", run) / "config.json").read_text())


def _refused(arguments, text, capsys):
    assert main(["train", *arguments]) == 2
    errors = capsys.readouterr().err
    assert text in errors and errors.count("\n") == 1
    assert not pathlib.Path("runs").exists()


def _built(name):
    recipe = recipes.find(name)
    known = recipes.DATA[recipe.data]
    settings = train.settings_of_recipe(name)
    return networks.make(settings, known.image_shape, known.classes)


@pytest.mark.parametrize(
    ("name", "margin"), [("em-mnist", 0.3), ("em-digits", 0.9), ("vb-mnist", 0.9)]
)
def test_the_spread_loss_ends_where_the_network_can_follow(name, margin):
    assert networks.loss(train.settings_of_recipe(name), 10).end == margin


@pytest.mark.parametrize("name", recipes.RECIPES)
def test_a_name_says_what_is_trained_on_what(name):
    recipe = recipes.find(name)
    what, data_name = name.split("-")
    assert data_name == recipe.data
    model = recipe.model
    if name in _WITH_PRESET:
        model += f"_{recipe.preset}"
    rounded = f"a{recipe.activation_bits}" if recipe.activation_bits else ""
    quantized = f"inq{recipe.bits}{rounded}"
    assert what == (quantized if recipe.bits else recipe.routing or model)
    if recipe.bits:
        assert recipes.find(recipe.trained).data == recipe.data
    # A result of today is a result of the same recipe when it is read again.
    fixed = train.settings_of_recipe(name)
    assert recipes.changes(json.loads(json.dumps(fixed)), fixed) == []
    assert recipes.changes({**fixed, "epochs": 1}, fixed) == ["epochs"]
    # So is one of before there was a setting, which is None now.
    older = json.loads(json.dumps(fixed).replace('"routing_gradient": null, ', ""))
    assert older != json.loads(json.dumps(fixed))
    assert recipes.changes(older, fixed) == []


@pytest.mark.parametrize("name", [n for n in recipes.RECIPES if n not in _RECIPES])
def test_fashion_mnist_is_trained_on_as_mnist_is(name):
    fixed, other = map(train.settings_of_recipe, (name, name.replace("fashion_", "")))
    flipped = ["distortion"] if name == "deepcaps-fashion_mnist" else []
    assert recipes.changes(fixed, other) == flipped and fixed.keys() == other.keys()
    clothes, digits = (recipes.DATA[n] for n in ("fashion_mnist", "mnist"))
    assert clothes.image_shape == digits.image_shape
    assert clothes.classes == digits.classes


@pytest.mark.parametrize("name", [n for n, r in _RECIPES.items() if not r.bits])
def test_networks_are_of_the_size_that_the_pages_say(name):
    model = _built(name)
    if name in _PARAMETERS:
        assert model.count_params() == _PARAMETERS[name]
    known = recipes.DATA[recipes.find(name).data]
    outputs = model(np.zeros([1, *known.image_shape], np.float32))
    scores = outputs["lengths"] if isinstance(outputs, dict) else outputs
    pixels = known.image_shape[:-1] if networks.segments(model) else ()
    assert scores.shape == (1, *pixels, known.classes)


_OF_PAPERS = ("deepcaps", "segcaps", "unet", "ucaps3d")


@pytest.mark.ci
@pytest.mark.parametrize(
    "name",
    [
        name
        for name, recipe in _RECIPES.items()
        if recipe.data == "cifar10_jpeg" or recipe.model in _OF_PAPERS
    ],
)
def test_a_recipe_trains_a_step(eagerly, name):
    model, known = _built(name), recipes.DATA[recipes.find(name).data]
    networks.compile_for(model, train.settings_of_recipe(name), 10)
    random = np.random.default_rng(0)
    images = random.random([2, *known.image_shape], np.float32)
    pixels = (*known.image_shape[:-1], 1) if networks.segments(model) else ()
    labels = random.integers(known.classes, size=[2, *pixels])
    before = model.get_weights()
    for _ in range(2):  # the first step of the schedule has a rate of zero
        assert np.isfinite(model.train_on_batch(images, labels)).all()
    after = model.get_weights()
    assert any((one != other).any() for one, other in zip(before, after))


def test_photographs_have_one_budget_and_all_networks():
    found = {
        recipe.model: recipe.settings()
        for recipe in recipes.RECIPES.values()
        if recipe.data == "cifar10_jpeg"
    }
    assert {*found} == {*presets.PRESETS} - {*presets.SEGMENTERS}
    each = {(s.epochs, s.batch_size, s.distortion) for s in found.values()}
    assert len(each) == 1


def test_a_recipe_trains_as_it_says(work, few, capsys):
    given = ["train", "--recipe", "efficient_capsnet-digits", "--epochs", "2"]
    assert main(given) == 0
    printed = capsys.readouterr().out
    assert "recipe efficient_capsnet-digits but for epochs" in printed
    config = _config("efficient_capsnet-digits")
    assert (config["recipe"], config["changed"]) == (given[2], ["epochs"])
    assert (config["data"], config["model"]) == ("digits", "efficient_capsnet")
    run = work / "runs" / "efficient_capsnet-digits"
    result = json.loads((run / "result.json").read_text())
    assert (result["part"], result["images"]) == ("test", TESTS)
    assert result["parameters"] == _PARAMETERS["efficient_capsnet-digits"]
    assert result["seconds_per_epoch"] > 0 and result["peak_bytes"]["host"] > 1e8
    assert result["machine"]["cores"] >= 1
    assert main(["evaluate", str(run), "--json"]) == 0
    evaluated = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert evaluated["wrong"] == result["wrong"]
    # A run of other epochs is none of the recipe.
    assert results.finished(work, given[2], 0) is None


@pytest.mark.parametrize(
    "option, value, changed",
    [
        ("--learning-rate", "0.002", ["learning_rate"]),
        ("--batch-size", "64", ["batch_size"]),
        ("--routing", "vb", ["routing"]),
        ("--routing-gradient", "last", ["routing_gradient"]),
        ("--routing-gradient", "all", []),
        ("--mixed-precision", "bfloat16", ["mixed_precision"]),
        ("--learning-rate", "0.003", []),  # what the recipe has
        ("--seed", "3", []),
    ],
)
def test_options_override_and_the_run_says_so(option, value, changed):
    args = make_parser().parse_args(["train", "--recipe", "em-digits", option, value])
    fixed = train.settings_of_recipe("em-digits")
    assert recipes.changes(train.settings(args), fixed) == changed


@pytest.mark.parametrize(
    "arguments, text",
    [
        (["--recipe", "cats"], "--recipe must be one of capsnet-digits, "),
        (
            ["--recipe", "capsnet-digits", "--model", "p_capsnet"],
            "the recipe capsnet-digits has a model of its own: no --model",
        ),
        (
            ["--recipe", "capsnet-digits", "--routing", "em"],
            "capsnet has no choice of routing: no --routing",
        ),
        (
            ["--recipe", "capsnet-cifar10_jpeg"],
            "capsnet-cifar10_jpeg is trained on a folder with train and test in it",
        ),
        (
            ["--recipe", "capsnet-mnist", "--data", "digits"],
            "capsnet-mnist is trained on mnist, not on digits",
        ),
        (
            ["--recipe", "capsnet-digits", "--data", "noise.npz"],
            "capsnet-digits is trained on digits, not on noise.npz",
        ),
        (
            ["--recipe", "capsnet-mnist", "--data", "noise.npz"],
            "trained on mnist, which has images for training: 60000; noise has 12",
        ),
        (
            ["--recipe", "capsnet-mnist", "--data", "small.npz"],
            "which has images of shape (28, 28, 1); small has (8, 8, 1)",
        ),
        (
            ["--recipe", "inq5-mnist", "--epochs", "3"],
            "inq5-mnist quantizes capsnet-mnist: no --epochs",
        ),
        (
            ["--recipe", "capsnet-digits", "--data", "digits:noise.npz"],
            "capsnet-digits is trained on digits, not on digits:noise.npz",
        ),
        (
            ["--recipe", "capsnet-mnist", "--data", "no_folder"],
            "capsnet-mnist is trained on mnist, not on no_folder",
        ),
        (
            ["--data", "multimnist:one.npz", "--validation", "0.25"],
            "multimnist pairs digits of different classes: one must have two or more",
        ),
        (
            ["--validation", "0.0001"],
            "--validation 0.0001 of 1437 images leaves one part empty",
        ),
        (["--validation", "2"], "must be a number between 0 and 1, got '2'"),
        (["--distortion", "1", "-2", "0"], "must be a number >= 0, got '-2'"),
        (
            ["--data", "affine_mnist:small.npz", "--distortion", "1", "0", "0"],
            "affine_mnist distorts its images: no --distortion",
        ),
    ],
)
def test_mistakes(work, capsys, arguments, text):
    for name, size in (("noise", 28), ("small", 8)):
        images = np.zeros([12, size, size], np.uint8)
        part = {"x_train": images, "y_train": np.arange(12) % 10}
        np.savez(f"{name}.npz", **part, x_test=images, y_test=part["y_train"])
    # Of the second class there is one image for training, which is not held out.
    numbered = data.Dataset("numbers", *[images, np.arange(12)] * 2)
    kept = pipeline.held_out(numbered, 0.25).y_train[0]
    labels = (np.arange(12) == kept).astype(int)
    np.savez("one.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    if "must be a number" in text:
        assert main(["train", *arguments]) == 2
        assert text in capsys.readouterr().err
    else:
        _refused(arguments, text, capsys)


def test_fewer_bits_are_quantized_in_more_steps():
    """The last ones are ours, the others those of Zhou et al. (docs/inq.md)."""
    assert recipes.quantization_steps(5) == [0.5, 0.75, 0.875, 1.0]
    four = [0.3, 0.5, 0.8, 0.9, 0.95, 0.975, 0.99, 1.0]
    three = [0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 0.95, 0.975, 0.99, 1.0]
    assert recipes.quantization_steps(4) == four
    assert recipes.quantization_steps(3) == three
    two = [*three[:5], 0.85, *three[5:]]
    assert recipes.quantization_steps(2) == two


def test_the_validation_part_is_training_images_only():
    digits = data.load("digits")
    held = pipeline.held_out(digits, 0.25)
    assert (len(held.x_train), len(held.x_test)) == (1078, 359)
    both = np.concatenate([held.x_train, held.x_test])
    assert sorted(map(bytes, both)) == sorted(map(bytes, digits.x_train))
    again = pipeline.held_out(digits, 0.25)
    np.testing.assert_array_equal(held.x_test, again.x_test)
    np.testing.assert_array_equal(held.y_test, again.y_test)


def test_the_validation_part_of_generated_images_is_made_of_training_images():
    pairs = data.load("multimnist:digits")
    held = pipeline.held_out(pairs, 0.25)
    assert (len(held.train), len(held.test)) == (1078, 359)
    base = pipeline.held_out(data.load("digits"), 0.25)
    np.testing.assert_array_equal(held.test.labels, base.y_test)


@pytest.mark.parametrize(
    "given, wanted",
    [
        (None, "multimnist"),
        ("multimnist", "multimnist"),
        ("mnist.npz", "multimnist:mnist.npz"),
        ("multimnist:mnist.npz", "multimnist:mnist.npz"),
    ],
)
def test_a_file_is_what_generated_images_are_made_of(given, wanted):
    assert recipes.source("capsnet-multimnist", given) == wanted


def test_a_folder_holds_the_data_of_a_recipe(work):
    folder = work / "idx"
    folder.mkdir()
    assert recipes.source("capsnet-mnist", str(folder)) == str(folder)
    made = recipes.source("capsnet-affine_mnist", str(folder))
    assert made == f"affine_mnist:{folder}"
    # Names stay names.
    (work / "fashion_mnist").mkdir()
    with pytest.raises(CommandError, match="not on fashion_mnist"):
        recipes.source("capsnet-mnist", "fashion_mnist")


def test_a_plain_network_has_as_many_parameters():
    plain, ours = (_built(f"{n}-affine_mnist") for n in ("convnet", "capsnet"))
    assert abs(plain.count_params() / ours.count_params() - 1) < 0.001


def test_a_run_with_validation_never_sees_the_test_images(work, few, capsys):
    held = round(0.25 * TRAINING)
    parts = f"{TRAINING - held} images for training, {held} for validation"
    given = ["--model", "p_capsnet", "--epochs", "2", "--validation", "0.25"]
    given += ["--seed", "5", "--nondeterministic"]
    assert main(["train", *given]) == 0
    printed = capsys.readouterr().out
    assert parts in printed
    assert "validation_accuracy" in printed and "test_accuracy" not in printed
    config = _config("digits")
    assert config["validation"] == 0.25
    assert (config["seed"], config["deterministic"]) == (5, False)
    history = json.loads(pathlib.Path("runs/digits/history.json").read_text())
    result = json.loads(pathlib.Path("runs/digits/result.json").read_text())
    assert (result["part"], result["images"]) == ("validation", held)
    accuracy = history["val_accuracy"][-1]
    np.testing.assert_allclose(accuracy, 1 - result["wrong"] / held, rtol=1e-6)
    # Nor does it when it goes on.
    pathlib.Path("runs/digits/result.json").unlink()
    shutil.copy("runs/digits/model.keras", "runs/digits/checkpoint-1.keras")
    assert main(["train", "--resume", "runs/digits"]) == 0
    assert "validation accuracy" in capsys.readouterr().out
    result = json.loads(pathlib.Path("runs/digits/result.json").read_text())
    assert (result["part"], result["images"]) == ("validation", held)
    # Nor does a quantization of it.
    options = ["--steps", "1", "--epochs-per-step", "1", "--output", "runs/quantized"]
    assert main(["quantize", "runs/digits", *options]) == 0
    printed = capsys.readouterr().out
    assert parts in printed
    assert "after: validation accuracy" in printed and "test" not in printed
    result = json.loads(pathlib.Path("runs/quantized/result.json").read_text())
    assert (result["part"], result["images"]) == ("validation", held)
    assert _config("quantized")["validation"] == 0.25


def test_distortions_may_be_chosen(work, few):
    given = ["--recipe", "p_capsnet-digits", "--epochs", "1"]
    given += ["--distortion", "1", "5", "0.2", "--output", "runs/distorted"]
    assert main(["train", *given]) == 0
    config = _config("distorted")
    assert config["distortion"] == {"shift": 1.0, "degrees": 5.0, "zoom": 0.2}
    assert config["changed"] == ["epochs", "distortion"]
