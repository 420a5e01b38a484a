# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The commands on networks that leave the size of their images open."""

import json

import keras
import numpy as np
import pytest

from tf_capsops import layers, models
from tf_capsops.__main__ import main
from tf_capsops.cli import figures, image_sizes
from tf_capsops.routing import Dynamic

pytestmark = pytest.mark.usefixtures("eagerly")


def _compiled(model):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, metrics=["accuracy"], run_eagerly=True)
    return model


def _network(shape):
    """A convolutional network whose weights are the same for every shape."""
    images = keras.Input(shape)
    features = keras.layers.Conv2D(4, 3, activation="relu", name="first")(images)
    features = keras.layers.Conv2D(4, 2, name="second")(features)
    pooled = keras.layers.GlobalMaxPooling2D()(features)
    return _compiled(keras.Model(images, keras.layers.Dense(3)(pooled)))


def _capsules(shape):
    """Capsules over images that a layer makes 6 x 6."""
    images = keras.Input(shape)
    resized = keras.layers.Resizing(6, 6)(images)
    features = keras.layers.Conv2D(2, 3)(resized)
    pair = layers.PoseCaps(2, (2, 2))(features)
    _, scores = layers.ClassCaps(3, routing=Dynamic(), pose_shape=(2, 2))(pair)
    return _compiled(models.CapsuleClassifier(images, scores))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with networks of a fixed and of any size, of equal weights, and data."""
    folder = tmp_path_factory.mktemp("files")
    for name, build in {"network": _network, "capsules": _capsules}.items():
        fixed, free = build((6, 6, 1)), build((None, None, 1))
        free.set_weights(fixed.get_weights())
        fixed.save(folder / f"{name}.keras")
        free.save(folder / f"any-{name}.keras")
    random = np.random.default_rng(1)
    labels = np.arange(12) % 3
    for name, shape in {
        "6": (6, 6),
        "9": (9, 7),
        "3": (3, 3),
        "rgb": (6, 6, 3),
    }.items():
        x = random.integers(0, 256, [2, 12, *shape], np.uint8)
        arrays = {"x_train": x[0], "y_train": labels, "x_test": x[1], "y_test": labels}
        np.savez(folder / f"images-{name}.npz", **arrays)
    return folder


@pytest.fixture
def work(files, tmp_path, monkeypatch):
    """An empty working directory with those files."""
    for path in files.iterdir():
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _evaluated(model, data, capsys):
    assert main(["evaluate", model, "--data", data, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("name", ["network", "capsules"])
def test_evaluate_finds_what_it_finds_with_a_fixed_size(work, capsys, name):
    found = _evaluated(f"any-{name}.keras", "images-6.npz", capsys)
    assert found == _evaluated(f"{name}.keras", "images-6.npz", capsys)


def test_evaluate_on_images_of_another_size(work, capsys):
    arrays = np.load("images-9.npz")
    model = keras.saving.load_model("any-network.keras")
    scores = model.predict(arrays["x_test"][..., np.newaxis] / 255.0, verbose=0)
    found = _evaluated("any-network.keras", "images-9.npz", capsys)
    assert found["wrong"] == np.count_nonzero(scores.argmax(1) != arrays["y_test"])


def test_reconstruct_draws_the_same_routing(work, monkeypatch):
    shares = []

    def draw(model, dataset, path):
        shares.append(model.routing_coefficients(dataset.x_test))
        path.write_bytes(b"")

    monkeypatch.setattr(figures, "coefficients", draw)
    for name in ("capsules", "any-capsules"):
        command = ["reconstruct", f"{name}.keras", "--data", "images-6.npz"]
        assert main([*command, "--output", name]) == 0
    assert shares[0].shape == (12, 4, 4, 2, 3)
    np.testing.assert_array_equal(*shares)


def test_reconstruct_says_what_a_network_without_routing_lacks(work, capsys):
    command = ["reconstruct", "any-network.keras", "--data", "images-9.npz"]
    assert main(command) == 2
    assert "no decoder to reconstruct images, and no routing" in capsys.readouterr().err


def test_quantize_keeps_the_size_open(work, capsys):
    command = ["quantize", "any-network.keras", "--data", "images-9.npz"]
    options = ["--steps", "1", "--epochs-per-step", "1", "--output", "quantized"]
    assert main([*command, *options]) == 0
    report = json.loads((work / "quantized/report.json").read_text())
    capsys.readouterr()
    for name in ("model", "codes"):
        path = f"quantized/{name}.keras"
        assert keras.saving.load_model(path).input_shape == (None, None, None, 1)
        found = _evaluated(path, "images-9.npz", capsys)
        assert found["wrong"] == report["wrong_after"] == report["wrong_with_codes"]


@pytest.mark.parametrize(
    "data, text",
    [
        ("rgb", "images of shape (None, None, 1), but those of images-rgb have (6, 6"),
        (
            "3",
            "the model takes no images as small as those of images-3 (3x3); each side "
            "must have at least 4 pixels\n",
        ),
    ],
)
def test_images_that_do_not_fit_are_named(work, capsys, data, text):
    assert main(["evaluate", "any-network.keras", "--data", f"images-{data}.npz"]) == 2
    said = capsys.readouterr().err
    assert text in said and said.count("\n") == 1


def test_predict_says_which_pictures_are_too_small(work, capsys):
    for size in (3, 6):
        keras.utils.save_img(f"{size}.png", np.ones([size, size, 1]))
    assert main(["predict", "any-network.keras", "3.png", "6.png"]) == 2
    said = capsys.readouterr()
    assert said.out.startswith("6.png: ")
    assert said.err == (
        "tf-capsops predict: error: the model takes no images as small as 3.png (3x3); "
        "each side must have at least 4 pixels\n"
    )


def test_images_that_are_too_large():
    model = keras.Sequential([keras.Input([None, None, 1]), keras.layers.Reshape([9])])
    said = image_sizes.refusal(model, "mine", (4, 4, 1))
    assert said == "the model takes no images of shape (4, 4, 1), as mine"
