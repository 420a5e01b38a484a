# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""`tf-capsops attack`, and images that it changes, beside what theory says of them."""

import json
import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_capsops import inq, losses, models, routing
from tf_capsops.__main__ import main
from tf_capsops.cli import attacks

pytestmark = pytest.mark.usefixtures("eagerly")

_CAPSNET = {"filters": 8, "kernel_size": 3, "primary_channels": 2, "primary_dim": 4}
_CAPSNET |= {"primary_kernel_size": 3, "decoder_units": (16,)}
_MATRIX = {"filters": 4, "kernel_size": 3, "strides": 1, "primary_capsules": 2}
_MATRIX |= {"capsules": (3, 3), "capsule_kernel_sizes": (3, 2)}
_EFFICIENT = {"filters": (4, 8), "kernel_sizes": (3, 3), "strides": (1, 1)}
_CROSSENTROPY = keras.losses.SparseCategoricalCrossentropy
_MARGIN, _SPREAD = losses.MarginLoss, lambda: losses.SpreadLoss(10)
# Every classifier, and the loss that `train` compiles it with.
_NETWORKS = {
    "capsnet": (models.capsnet, _CAPSNET, _MARGIN),
    "deepcaps": (models.deepcaps, {"size": "small"}, _MARGIN),
    "efficient_capsnet": (models.efficient_capsnet, _EFFICIENT, _MARGIN),
    "em": (models.matrix_capsnet, {**_MATRIX, "routing": routing.EM(2)}, _SPREAD),
    "vb": (models.matrix_capsnet, {**_MATRIX, "routing": routing.VB(2)}, _SPREAD),
    "p_capsnet": (
        models.p_capsnet,
        {"kernel_sizes": (3, 3, 3), "strides": (1, 1, 1)},
        _MARGIN,
    ),
    "convnet": (
        models.convnet,
        {"filters": (4,), "kernel_size": 3, "units": (8,)},
        _CROSSENTROPY,
    ),
}


def _network(name):
    keras.utils.set_random_seed(0)
    build, options, loss = _NETWORKS[name]
    model = build((8, 8, 1), 3, **options)
    model.compile("adam", loss())
    return model


def _images(count=6, classes=3):
    random = np.random.default_rng(1)
    images = random.uniform(0.1, 0.9, [count, 8, 8, 1]).astype(np.float32)
    return tf.constant(images), tf.constant(np.arange(count) % classes)


def _linear(loss):
    """A network whose gradient is known: softmax of a product with `weights`."""
    model = keras.Sequential(
        [
            keras.Input([8, 8, 1]),
            keras.layers.Flatten(),
            keras.layers.Dense(3, "softmax", use_bias=False, name="scores"),
        ]
    )
    weights = np.random.default_rng(2).normal(size=[64, 3]) / 10
    model.layers[-1].set_weights([weights])
    model.compile("adam", loss)
    return model, weights


@pytest.mark.parametrize("loss", ["own", "difference"])
@pytest.mark.parametrize("name", _NETWORKS)
def test_every_classifier_has_a_gradient_along_which_its_loss_rises(name, loss):
    model, (images, labels) = _network(name), _images()
    gradient = attacks.gradient_of(model, loss)
    found = gradient(images, labels).numpy()
    assert found.shape == images.shape and found.any(axis=(1, 2, 3)).all()
    if name == "deepcaps":  # untrained: in float32, all images have the same scores
        return
    changed = attacks.fgsm(gradient, images, labels, 0.01)
    scores = [attacks.scores_of(model(each)).numpy() for each in (images, changed)]
    if loss == "difference":
        own = np.eye(3, dtype=bool)[labels]
        before, after = (np.where(own, -9, s).max(1) - s[own] for s in scores)
        assert (after > before).mean() > 0.8
    else:
        compiled = model.loss["lengths"] if name == "capsnet" else model.loss
        before, after = (float(compiled(labels, each)) for each in scores)
        assert after > before


@pytest.mark.parametrize(
    "loss",
    [
        _CROSSENTROPY(),
        "categorical_crossentropy",
        "sparse",
        [_CROSSENTROPY()],
        {"scores": "categorical_crossentropy"},
    ],
    ids=["object", "name", "sparse", "list", "dict"],
)
def test_of_a_linear_network_both_methods_find_the_farthest_image(loss):
    loss = "sparse_categorical_crossentropy" if loss == "sparse" else loss
    (model, weights), (images, labels) = _linear(loss), _images()
    gradient = attacks.gradient_of(model, "own")
    logits = images.numpy().reshape(6, 64).astype(np.float64) @ weights
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    # Of cross entropy: the weights, times what the softmax has too much.
    exact = ((shares - np.eye(3)[labels]) @ weights.T).reshape(images.shape)
    for epsilon in (0.01, 0.3):
        wanted = np.clip(images + epsilon * np.sign(exact), 0, 1)
        changed = attacks.fgsm(gradient, images, labels, epsilon)
        np.testing.assert_allclose(changed, wanted, atol=1e-6)
    changed = attacks.pgd(gradient, images, labels, 0.01, 5, 0.005, (0, 0))
    wanted = np.clip(images + 0.01 * np.sign(exact), 0, 1)
    # Where the gradient changes its sign within epsilon, the way differs.
    assert np.isclose(changed, wanted, atol=1e-6).mean() > 0.95


def test_the_difference_is_that_of_the_two_highest_scores():
    (model, _), (images, labels) = _linear("mse"), _images()
    found = attacks.gradient_of(model, "difference")(images, labels)
    with tf.GradientTape() as tape:
        tape.watch(images)
        scores = tf.unstack(model(images), axis=1)
        each = [
            tf.maximum(scores[(label + 1) % 3][n], scores[(label + 2) % 3][n])
            - scores[label][n]
            for n, label in enumerate(labels.numpy())
        ]
        total = tf.add_n(each)
    np.testing.assert_allclose(found, tape.gradient(total, images), atol=1e-7)


@pytest.mark.parametrize("size", [0.01, 1.0])
def test_images_stay_within_epsilon_and_their_range(size):
    model, (images, labels) = _network("capsnet"), _images()
    images = np.round(images * 2).astype(np.float32) / 2  # some at the edges
    gradient, images = attacks.gradient_of(model, "difference"), tf.constant(images)
    several = [
        attacks.pgd(gradient, images, labels, 0.1, 3, size, seed).numpy()
        for seed in ((0, 0), (0, 0), (0, 1))
    ]
    several.append(attacks.fgsm(gradient, images, labels, 0.1).numpy())
    for each in several:
        assert each.min() >= 0 and each.max() <= 1
        assert abs(each - images.numpy()).max() <= 0.1 + 1e-6
    np.testing.assert_array_equal(*several[:2])
    assert (several[0] != several[2]).any() or size == 1.0


def test_gradients_pass_all_iterations_of_em():
    images, labels = _images()
    keras.utils.set_random_seed(0)
    model, found = _network("em"), []
    layers = [layer for layer in model.layers if hasattr(layer, "routing")]
    for gradient in ("all", "last"):
        for layer in layers:
            layer.routing.gradient = gradient
        with tf.GradientTape() as tape:
            tape.watch(images)
            total = losses.SpreadLoss(10)(tf.one_hot(labels, 3), model(images))
        found.append(tape.gradient(total, images).numpy())
    assert (found[0] != found[1]).any()
    own = attacks.gradient_of(model, "own")(images, labels)
    np.testing.assert_array_equal(own, found[0])


@pytest.mark.parametrize("attacked", [[], [2.5], [1, 2, 2, 3, 9], [0, 0, 0]])
def test_the_area_counts_pairs_in_the_right_order(attacked):
    clean = np.array([0.5, 1, 2, 2, 3, 4, 1.5])
    found = attacks.detection(clean, np.array(attacked, float))
    if not attacked:
        assert found is None
        return
    pairs = [np.sign(a - c) / 2 + 0.5 for a in attacked for c in clean]
    np.testing.assert_allclose(found["area"], np.mean(pairs), rtol=1e-12)
    for name in ("false_alarms", "found"):
        assert (found[name][0], found[name][-1]) == (0, 1)
        assert found[name] == sorted(found[name])
    # One alarm in seven is more than a twentieth.
    assert found["undetected"] == np.mean(np.array(attacked) <= 4)


@pytest.fixture
def work(tmp_path, monkeypatch):
    """A folder with three networks and images of their classes."""
    monkeypatch.chdir(tmp_path)
    images, labels = (each.numpy() for each in _images(7))
    parts = {f"x_{part}": images for part in ("train", "test")}
    np.savez("noise.npz", **parts, y_train=labels, y_test=labels)
    for name in ("capsnet", "convnet"):
        pathlib.Path("runs", name).mkdir(parents=True)
        _network(name).save(f"runs/{name}/model.keras")
        config = json.dumps({"data": "noise.npz"})
        pathlib.Path("runs", name, "config.json").write_text(config)
    return tmp_path


def _attack(run, *arguments):
    few = ["--epsilon", "0.3", "0.05", "--images", "5", "--batch-size", "3"]
    return main(["attack", f"runs/{run}", *few, *arguments])


def test_a_run_is_attacked(work, capsys):
    options = ["--method", "pgd", "--steps", "2", "--detect"]
    assert _attack("capsnet", *options) == 0
    assert "epsilon   accuracy     fooled" in capsys.readouterr().out
    result = json.loads(pathlib.Path("runs/capsnet/attack-pgd.json").read_text())
    assert result["epsilon"] == [0.0, 0.05, 0.3] and result["images"] == 5
    np.testing.assert_allclose(result["step_size"], [0, 0.0625, 0.375])
    right = [1 - wrong / 5 for wrong in result["wrong"]]
    np.testing.assert_allclose(result["accuracy"], right)
    assert result["accuracy"][0] >= result["accuracy"][2]
    assert result["detection"][0] is None and result["fooled"][0] == 0
    assert pathlib.Path("runs/capsnet/attack-pgd.png").stat().st_size > 10_000


def test_images_are_made_against_another_run(work, undrawn, capsys):
    options = ["--method", "fgsm", "--loss", "difference", "--json"]
    assert _attack("capsnet", "--from", "runs/convnet", *options) == 0
    transferred = json.loads(capsys.readouterr().out)
    assert pathlib.Path(
        "runs/capsnet/attack-fgsm-difference-from-convnet.json"
    ).is_file()
    assert _attack("convnet", *options) == 0
    own = json.loads(capsys.readouterr().out)
    assert own["accuracy"] == transferred["accuracy_of_source"]
    assert transferred["from"] == "runs/convnet" and own["from"] is None


@pytest.mark.parametrize(
    "run, arguments, text",
    [
        ("convnet", ["--detect"], "reconstructs no images: no --detect"),
        ("convnet", ["--method", "fgsm", "--steps", "3"], "fgsm takes one step"),
        ("convnet", ["--from", "runs/none"], "no model at runs/none"),
        ("convnet", ["--epsilon", "2"], "must be a number between 0 and 1, got '2'"),
        (
            "convnet",
            ["--from", "runs/other"],
            "(9, 9, 1) and runs/convnet of (8, 8, 1)",
        ),
    ],
)
def test_mistakes(work, capsys, run, arguments, text):
    pathlib.Path("runs/other").mkdir()
    build, options, _ = _NETWORKS["convnet"]
    build((9, 9, 1), 3, **options).save("runs/other/model.keras")
    labels, images = np.arange(3), np.zeros([3, 9, 9, 1], np.float32)
    parts = {"x_train": images, "x_test": images, "y_train": labels, "y_test": labels}
    np.savez("runs/other/noise.npz", **parts)
    config = json.dumps({"data": "runs/other/noise.npz"})
    pathlib.Path("runs/other/config.json").write_text(config)
    assert _attack(run, *arguments) == 2
    assert text in capsys.readouterr().err


def test_the_reconstructions_of_codes_detect(work, undrawn, capsys):
    with_codes = inq.convert(keras.saving.load_model("runs/capsnet/model.keras"), 5)
    with_codes.save("runs/capsnet/codes.keras")
    options = ["--loss", "difference", "--method", "fgsm", "--detect", "--json"]
    assert _attack("capsnet/codes.keras", *options) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["detection"]) == 3
    assert pathlib.Path("runs/capsnet/attack-fgsm-difference-codes.json").is_file()


def test_a_network_without_a_loss_is_attacked_by_the_difference(work, undrawn, capsys):
    model = keras.saving.load_model("runs/convnet/model.keras", compile=False)
    model.save("runs/convnet/model.keras")
    assert _attack("convnet", "--method", "fgsm") == 2
    assert "has no loss to follow: give --loss difference" in capsys.readouterr().err
    assert _attack("convnet", "--method", "fgsm", "--loss", "difference") == 0
