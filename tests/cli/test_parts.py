# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""`tf-capsops reconstruct --routing`: coefficients of parts, on an image's pixels."""

import json
import pathlib

import keras
import numpy as np
import pytest
import small

from tf_capsops import models, routing
from tf_capsops.__main__ import main
from tf_capsops.cli import figures, parts

pytestmark = pytest.mark.usefixtures("eagerly")

_NETWORKS = {
    "capsnet": lambda: small.capsnet((9, 9, 1)),
    "em": lambda: models.matrix_capsnet(
        (9, 9, 1),
        3,
        filters=4,
        kernel_size=3,
        strides=2,
        primary_capsules=2,
        capsules=(3,),
        capsule_kernel_sizes=(2,),
        capsule_strides=(2,),
        routing=routing.EM(2),
    ),
}


def _classifier(name):
    keras.utils.set_random_seed(0)
    return _NETWORKS[name]()


def _segmenter(classes=3):
    keras.utils.set_random_seed(0)
    return models.segcaps((16, 8, 1), classes, size="small")


def _random(*shape):
    return np.random.default_rng(1).random(shape, np.float32)


@pytest.mark.parametrize("name", _NETWORKS)
def test_a_field_is_all_that_changes_a_primary_capsule(name):
    """Each pixel is changed; the capsules that notice are those that see it."""
    model, image = _classifier(name), _random(1, 9, 9, 1)
    if name == "capsnet":
        conv, primary, _ = model.encoder.layers
        size = [len(each) for each in model.primary_centers]

        def capsules(images):
            return np.reshape(primary(conv(images)), [len(images), *size, -1])
    else:
        first = next(layer for layer in model.layers if hasattr(layer, "routing"))
        part = keras.Model(model.inputs[0], first.input[0])

        def capsules(images):
            found = part(images)
            return np.reshape(found, [*found.shape[:3], -1])

    changed = np.tile(image, (81, 1, 1, 1))
    changed.reshape(81, 81)[np.arange(81), np.arange(81)] += 1
    noticed = (abs(capsules(changed) - capsules(image)) > 1e-5).any(axis=-1)
    seen = np.zeros([*noticed.shape[1:], 9, 9], bool)
    for row, y in enumerate(model.primary_centers[0]):
        for column, x in enumerate(model.primary_centers[1]):
            high, wide = ((size - 1) / 2 for size in model.primary_field)
            inside = np.abs(np.arange(9) - y) <= high, np.abs(np.arange(9) - x) <= wide
            seen[row, column] = np.outer(*inside)
    found = np.moveaxis(noticed.reshape(9, 9, *noticed.shape[1:]), (0, 1), (2, 3))
    assert not (found & ~seen).any()  # relu hides some
    assert (found & seen).sum() > 0.5 * seen.sum()


def test_a_pixel_has_the_mean_of_the_capsules_that_see_it():
    shares = _random(2, 3, 1, 4) + 0.1
    shares /= shares.sum(axis=-1, keepdims=True)
    shares[1, 2] = 0  # in no window
    centers, field, shape = (
        (np.array([1.0, 3.0]), np.array([1.5, 3.5, 5.5])),
        (3, 4),
        (6, 9),
    )
    found = parts.to_pixels(shares, centers, field, shape)
    for y in range(6):
        for x in range(9):
            seeing = [
                shares[row, column]
                for row, middle in enumerate(centers[0])
                for column, center in enumerate(centers[1])
                if abs(y - middle) <= 1
                and abs(x - center) <= 1.5
                and (row, column) != (1, 2)
            ]
            if not seeing:
                assert np.isnan(found[y, x]).all()
                continue
            np.testing.assert_allclose(found[y, x], np.mean(seeing, axis=0), rtol=1e-6)


def test_coefficients_of_segcaps_are_those_that_its_output_follows_from():
    model, images = _segmenter(), _random(2, 16, 8, 1)
    found = model.routing_coefficients(images).numpy()
    assert found.shape[:3] == (2, 16, 8) and found.shape[-1] == 3
    assert found.min() >= 0 and found.std() > 0
    np.testing.assert_allclose(found.sum(axis=-1), 1, rtol=1e-6)
    layer = model.network.get_layer("class_caps")
    capsules = keras.Model(model.network.input, layer.input)(images).numpy()
    kernel, bias = (each.numpy().astype(np.float64) for each in layer.weights)
    votes = np.einsum("nyxik,kjd->nyxijd", capsules, kernel[0, 0])
    sums = np.einsum("nyxij,nyxijd->nyxjd", found, votes) + bias
    squares = np.square(sums).sum(axis=-1)
    lengths = squares / (1 + squares)  # but for the epsilon of the squash
    np.testing.assert_allclose(model.predict(images, verbose=0), lengths, atol=1e-5)


def test_one_class_has_no_coefficients():
    with pytest.raises(ValueError, match="segcaps: all capsules are routed to the one"):
        _segmenter(1).routing_coefficients(_random(1, 16, 8, 1))


@pytest.fixture
def work(tmp_path, monkeypatch):
    """A folder with runs, each of the images that it takes."""
    monkeypatch.chdir(tmp_path)
    networks = {name: _classifier(name) for name in _NETWORKS}
    networks |= {"segcaps": _segmenter(), "alone": _segmenter(1)}
    for name, model in networks.items():
        folder, masks = tmp_path / "runs" / name, name not in _NETWORKS
        images = _random(6, *((16, 8, 1) if masks else (9, 9, 1)))
        labels = np.arange(6) % 3
        if masks:
            labels = (images[..., 0] * (1 + (name != "alone"))).round().astype(np.int64)
        folder.mkdir(parents=True)
        model.save(folder / "model.keras")
        arrays = {f"x_{part}": images for part in ("train", "test")}
        np.savez(folder / "data.npz", **arrays, y_train=labels, y_test=labels)
        config = json.dumps({"data": f"runs/{name}/data.npz"})
        (folder / "config.json").write_text(config)
    return tmp_path


@pytest.mark.parametrize("name", [*_NETWORKS, "segcaps"])
def test_parts_are_drawn(work, capsys, monkeypatch, name):
    drawn, names = [], figures.class_names
    monkeypatch.setattr(
        figures,
        "class_names",
        lambda chosen, _: drawn.extend(chosen) or names(chosen, _),
    )
    assert main(["reconstruct", f"runs/{name}", "--routing", "4"]) == 0
    assert set(drawn) == ({1, 2} if name == "segcaps" else {0, 1, 2})
    assert capsys.readouterr().out == f"wrote runs/{name}/routing.png\n"
    assert pathlib.Path("runs", name, "routing.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    "arguments, text",
    [
        (["runs/em", "--routing", "6"], "one of 6 test images from 0 on, got 6"),
        (["runs/em", "--routing", "--beside", "runs/em"], "no --beside"),
        (["runs/alone", "--routing"], "has no routing to draw"),
        (["runs/segcaps"], "a network that segments"),
    ],
)
def test_mistakes(work, capsys, arguments, text):
    assert main(["reconstruct", *arguments]) == 2
    assert text in capsys.readouterr().err
