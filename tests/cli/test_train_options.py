# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""How `train` executes: precision, XLA, and several steps at a time."""

import json
import os
import pathlib
import warnings

import fresh
import keras
import noise
import numpy as np
import pytest
import quick

from tf_capsops.__main__ import main
from tf_capsops.cli import callbacks, networks
from tf_capsops.errors import CommandError


@pytest.fixture
def images(tmp_path, monkeypatch):
    """The arguments of `train` for a small file, in a directory of its own."""
    monkeypatch.chdir(tmp_path)
    noise.save(".", 22, 8)
    return ["train", "--data", "noise.npz", "--epochs", "2", "--batch-size", "4"]


def _result(name="noise"):
    run = pathlib.Path("runs", name)
    return [json.loads((run / f"{n}.json").read_text()) for n in ("config", "history")]


def _standardize(file, other, factor=4, less=2):
    """Writes the images of one file, of other values, to another."""
    with np.load(file) as arrays:
        changed = {
            name: factor * x - less if x.ndim == 4 else x for name, x in arrays.items()
        }
    np.savez(other, **changed)


@pytest.mark.ci
@pytest.mark.parametrize("model", ["capsnet", "p_capsnet"])
@pytest.mark.parametrize(
    "dtype", ["float16", pytest.param("bfloat16", marks=pytest.mark.slow)]
)
def test_mixed_precision(images, undrawn, model, dtype, capsys):
    policy = keras.config.dtype_policy()
    assert main([*images, "--model", model, "--mixed-precision", dtype]) == 0
    assert f"2 epochs of 6 batches, {dtype}" in capsys.readouterr().out
    config, history = _result()
    assert config["mixed_precision"] == dtype
    assert np.isfinite(history["loss"]).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = keras.saving.load_model("runs/noise/model.keras")
    used = {layer.compute_dtype for layer in loaded.layers}
    assert used == {"float32", dtype}
    assert {weight.dtype for weight in loaded.trainable_weights} == {"float32"}
    scaled = isinstance(loaded.optimizer, keras.optimizers.LossScaleOptimizer)
    assert scaled == (dtype == "float16")
    assert keras.config.dtype_policy() == policy
    with quick.eager():
        assert main(["evaluate"]) == 0
        assert main(["reconstruct"]) == (0 if model == "capsnet" else 2)


@pytest.mark.parametrize("model", ["capsnet", "p_capsnet"])
def test_standardized_images(images, undrawn, model, capsys):
    os.rename("noise.npz", "unit.npz")
    _standardize("unit.npz", "noise.npz")
    with warnings.catch_warnings(record=True) as caught, quick.eager():
        warnings.simplefilter("always")
        assert main([*images, "--model", model]) == 0
        assert main(["evaluate"]) == 0
    drawn = [each for each in caught if "draws values from 0 to 1" in str(each.message)]
    assert bool(drawn) == (model == "capsnet")
    assert "warning" not in capsys.readouterr().err
    with quick.eager():
        assert main(["evaluate", "--data", "unit.npz"]) == 0
    said = "was trained on standardized images, and unit has images from 0 to 1\n"
    assert capsys.readouterr().err == f"warning: runs/noise/model.keras {said}"
    for arguments in (["attack", "runs/noise"], [*images, "--contrast", "0.2"]):
        assert main(arguments) == 2
        text = "keeps images in 0 to 1, which those of noise exceed"
        assert text in capsys.readouterr().err
    keras.utils.save_img("picture.png", np.ones([8, 8, 1]))
    assert main(["predict", "runs/noise", "picture.png"]) == 0
    assert "was trained on standardized images, and" in capsys.readouterr().err


def test_a_network_of_images_from_0_to_1_is_evaluated_on_others(
    images, undrawn, capsys
):
    with quick.eager():
        assert main([*images, "--model", "convnet"]) == 0
        _standardize("noise.npz", "other.npz")
        assert main(["evaluate", "--data", "other.npz"]) == 0
        said = "was trained on images from 0 to 1, and other has standardized images\n"
        assert capsys.readouterr().err == f"warning: runs/noise/model.keras {said}"
        # Rounding is no reason to warn, nor is a network of unknown training.
        _standardize("noise.npz", "rounded.npz", 1.0005, 0)
        assert main(["evaluate", "--data", "rounded.npz"]) == 0
        os.rename("runs/noise/model.keras", "model.keras")
        assert main(["evaluate", "model.keras", "--data", "other.npz"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_several_steps_at_a_time_are_the_same_training(images, capsys):
    for steps in ("1", "4", "100"):
        assert main([*images, "--steps-per-execution", steps]) == 0
    printed = capsys.readouterr().out
    assert ", 4 at a time" in printed and ", 6 at a time" in printed
    plain, history = _result()
    assert plain["steps_per_execution"] == 1
    for name, steps in (("noise-2", 4), ("noise-3", 6)):
        config, other = _result(name)
        assert config["steps_per_execution"] == steps
        for key, values in history.items():
            np.testing.assert_allclose(other[key], values, rtol=1e-3)
        loaded = keras.saving.load_model(f"runs/{name}/model.keras")
        assert loaded.steps_per_execution == 1


def test_xla_is_used_as_asked():
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    for jit in ("on", "off"):
        networks.use_xla(model, jit, None)
        assert model.jit_compile == (jit == "on")
    model.layers[0].supports_jit = False
    with warnings.catch_warnings(), pytest.raises(CommandError, match="no --jit on"):
        warnings.simplefilter("error")
        networks.use_xla(model, "on", None)


def test_determinism_and_xla_exclude_each_other(images):
    command = (
        "from tf_capsops.__main__ import main; import sys; sys.exit(main(sys.argv[1:]))"
    )
    process = fresh.start(command, *images, "--seed", "1", "--jit", "on")
    _, errors = process.communicate()
    assert process.returncode == 2
    assert "where --seed makes it deterministic: no --jit on" in errors
    assert "Traceback" not in errors and not pathlib.Path("runs").exists()


class _Seen(keras.callbacks.Callback):
    """Keeps how far a progress bar was after every execution."""

    def __init__(self, bar):
        super().__init__()
        self._bar = bar
        self.steps = []

    def on_train_batch_end(self, batch, logs=None):
        self.steps.append(self._bar.seen)


def test_the_bar_ends_where_the_epoch_ends(capsys):
    verbose, (bar,) = callbacks.progress(epochs=1, steps=103, interactive=True)
    model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
    model.compile("sgd", "mse", steps_per_execution=50)
    seen, ones = _Seen(bar), np.ones([103, 1])
    model.fit(ones, ones, batch_size=1, verbose=verbose, callbacks=[bar, seen])
    assert seen.steps == [50, 100, 103]
    assert "103/103" in capsys.readouterr().out
