# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""`tf-capsops` on matrix_capsnet, by every rule of routing, and efficient_capsnet."""

import json
import pathlib
import shutil

import keras
import noise
import numpy as np
import pytest
import quick
import tensorflow as tf

from tf_capsops.__main__ import main
from tf_capsops.cli import networks
from tf_capsops.losses import SpreadLoss

pytestmark = pytest.mark.usefixtures("eagerly")

_RULES = {
    "em": "EM",
    "vb": "VB",
    "dynamic": "Dynamic",
    "inverted-attention": "InvertedAttention",
    "self-attention": "SelfAttention",
}


def _draw():
    """Writes a small file, noise.npz; returns the arguments of `train` for it."""
    noise.save(".", 6, 4)
    return ["train", "--data", "noise.npz", "--epochs", "1", "--batch-size", "6"]


@pytest.fixture
def images(tmp_path, monkeypatch):
    """The arguments of `train` for a small file, in a directory of its own."""
    monkeypatch.chdir(tmp_path)
    return _draw()


@pytest.fixture(scope="module")
def runs(eagerly, tmp_path_factory):
    """A directory with a run of matrix_capsnet by every rule."""
    folder = tmp_path_factory.mktemp("rules")
    with pytest.MonkeyPatch.context() as patched, quick.undrawn():
        patched.chdir(folder)
        train = [*_draw(), "--model", "matrix_capsnet"]
        for name in _RULES:
            assert main([*train, "--routing", name, "--output", f"runs/{name}"]) == 0
    return folder


@pytest.mark.parametrize("name", _RULES)
def test_every_rule_trains_and_is_evaluated(runs, undrawn, name, monkeypatch, capsys):
    assert list(networks.RULES) == list(_RULES)
    monkeypatch.chdir(runs)
    run = f"runs/{name}"
    config = json.loads(pathlib.Path(run, "config.json").read_text())
    assert (config["model"], config["routing"]) == ("matrix_capsnet", name)
    model = keras.saving.load_model(f"{run}/model.keras")
    routing = model.get_layer("conv_caps_2").routing
    assert type(routing).__name__ == _RULES[name]
    assert getattr(routing, "iterations", 2) == 2
    assert getattr(routing, "gradient", "all") == "all"
    if name == "em":  # `train` has evaluated every network
        assert main(["evaluate", run, "--json"]) == 0
    assert main(["reconstruct", run]) == 0
    assert capsys.readouterr().out.endswith(f"wrote {run}/coefficients.png\n")
    assert pathlib.Path(run, "coefficients.png").exists()


def test_em_routes_with_the_gradient_that_is_asked_for(images, undrawn, capsys):
    em = [*images, "--model", "matrix_capsnet"]
    assert main([*em, "--routing-gradient", "last", "--output", "last"]) == 0
    model = keras.saving.load_model("last/model.keras")
    assert model.get_layer("class_caps").routing.gradient == "last"
    assert main([*em, "--routing", "vb", "--routing-gradient", "last"]) == 2
    assert "vb is not em routing: no --routing-gradient" in capsys.readouterr().err
    assert main([*images, "--routing-gradient", "last"]) == 2
    assert "capsnet has no em routing: no --routing-gradient" in capsys.readouterr().err
    assert not pathlib.Path("runs").exists()


def test_a_network_without_routing_is_not_drawn(images, undrawn, capsys):
    assert main([*images, "--model", "convnet"]) == 0
    assert main(["reconstruct", "--output", "pictures"]) == 2
    said = "the convnet in runs/noise has no decoder to reconstruct images, and no"
    assert said in capsys.readouterr().err
    assert not pathlib.Path("pictures").exists()


@pytest.mark.ci
def test_routing_of_several_networks_is_drawn_side_by_side(runs, images, capsys):
    for name in ("em", "self-attention"):
        drawn = shutil.ignore_patterns("*.png")
        shutil.copytree(runs / "runs" / name, f"runs/{name}", ignore=drawn)
    assert main(["reconstruct", "runs/em", "--beside", "runs/self-attention"]) == 0
    said = "wrote runs/em/coefficients.png\nwrote runs/em/comparison.png\n"
    assert capsys.readouterr().out.endswith(said)
    assert pathlib.Path("runs/em/comparison.png").stat().st_size > 10_000

    assert main(["reconstruct", "runs/em", "--beside", "runs/em"]) == 2
    assert "by their directories, and em is there twice" in capsys.readouterr().err
    pathlib.Path("noise.npz").rename("other.npz")
    images[images.index("noise.npz")] = "other.npz"
    options = ["--model", "efficient_capsnet", "--output", "runs/other"]
    with quick.undrawn():
        assert main([*images, *options]) == 0
    pathlib.Path("noise.npz").symlink_to("other.npz")
    assert main(["reconstruct", "runs/em", "--beside", "runs/other"]) == 2
    said = "runs/other was trained on other and runs/em on noise: name one with --data"
    assert said in capsys.readouterr().err
    data = ["--data", "other.npz"]
    with quick.undrawn():
        assert main(["reconstruct", "runs/em", "--beside", "runs/other", *data]) == 0


def test_em_is_the_default_and_iterates_as_often_as_asked(images, undrawn):
    arguments = ["--model", "matrix_capsnet", "--routing-iterations", "3"]
    assert main([*images, *arguments]) == 0
    model = keras.saving.load_model("runs/noise/model.keras")
    routing = model.get_layer("class_caps").routing
    assert (type(routing).__name__, routing.iterations) == ("EM", 3)
    assert isinstance(model.loss, SpreadLoss)


@pytest.mark.parametrize("name", ["matrix_capsnet", "efficient_capsnet"])
def test_quantizes(runs, images, undrawn, name):
    run = runs / "runs" / "em"
    if name != "matrix_capsnet":
        run = "runs/noise"
        assert main([*images, "--model", name]) == 0
    options = ["--bits", "4", "--steps", "1"]
    assert main(["quantize", str(run), "--data", "noise.npz", *options]) == 0
    assert pathlib.Path("runs/quantize-noise/report.json").is_file()


@pytest.mark.slow
def test_a_killed_run_goes_on_with_its_margin(images, undrawn, monkeypatch):
    """Its second epoch begins with the steps that the first one took."""
    # This would last until the process ends, and keep other tests from XLA.
    monkeypatch.setattr(tf.config.experimental, "enable_op_determinism", lambda: None)
    wanted = [*images, "--model", "matrix_capsnet", "--seed", "3"]
    wanted[wanted.index("--epochs") + 1] = "2"

    def stop(self, epoch, logs=None):
        if epoch == 1:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(keras.callbacks.TensorBoard, "on_epoch_begin", stop)
        assert main(wanted) == 130
    assert main(["train", "--resume", "runs/noise"]) == 0
    model = keras.saving.load_model("runs/noise/model.keras")
    assert int(model.optimizer.iterations) == 2
    assert main([*wanted, "--output", "runs/whole"]) == 0
    whole = keras.saving.load_model("runs/whole/model.keras")
    for one, other in zip(model.get_weights(), whole.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
