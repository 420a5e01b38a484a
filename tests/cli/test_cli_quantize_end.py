# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""tf-capsops quantize loses no training, and refuses at once what it cannot convert."""

import json

import keras
import numpy as np
import pytest

from tf_capsops import inq
from tf_capsops.__main__ import main
from tf_capsops.cli import callbacks, evaluation, runs
from tf_capsops.inq.kernels import layers_and_kernels

QUANTIZE = ["quantize", "model.keras", "--data", "images.npz", "--bits", "3"]
QUANTIZE += ["--steps", "1", "--epochs-per-step", "1", "--batch-size", "30"]
QUANTIZE += ["--output", "quantized"]


@keras.saving.register_keras_serializable("test_cli_quantize_end")
class Halving(keras.Sequential):
    """A model that inq.convert does not take."""

    def call(self, inputs, training=None, mask=None):
        return super().call(inputs / 2, training=training, mask=mask)


def _with_operators():
    images = keras.Input([5, 6, 1])
    features = keras.layers.Conv2D(4, 3)(images)
    features = keras.ops.relu(features + features)[:, 1:]
    scores = keras.layers.Dense(3)(keras.layers.Flatten()(features))
    return keras.Model(images, scores, name="operators")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with two models and data."""
    folder = tmp_path_factory.mktemp("files")
    keras.utils.set_random_seed(1)
    layers = [keras.Input([5, 6, 1]), keras.layers.Flatten(), keras.layers.Dense(3)]
    for name, model in {"model": _with_operators(), "own": Halving(layers)}.items():
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("sgd", loss, metrics=["accuracy"], run_eagerly=True)
        model.save(folder / f"{name}.keras")
    random = np.random.default_rng(1)
    x = random.integers(0, 256, [2, 30, 5, 6], np.uint8)
    y = np.arange(30) % 3
    arrays = {"x_train": x[0], "y_train": y, "x_test": x[1], "y_test": y}
    np.savez(folder / "images.npz", **arrays)
    return folder


@pytest.fixture
def work(files, tmp_path, monkeypatch):
    """An empty working directory with those files."""
    for path in files.iterdir():
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _assert_kept(folder):
    """The model is quantized, and the history is of its one epoch."""
    for _, kernel in layers_and_kernels(keras.saving.load_model(folder / runs.MODEL)):
        kernel = kernel.numpy()
        np.testing.assert_array_equal(kernel, inq.quantize(kernel, 3))
        assert np.any(kernel)
    history = json.loads((folder / runs.HISTORY).read_text())
    assert len(history["loss"]) == 1


def test_models_with_operators_are_quantized(work, capsys):
    assert main(QUANTIZE) == 0
    _assert_kept(work / "quantized")
    report = json.loads((work / "quantized/report.json").read_text())
    assert [each["becomes"] for each in report["layers"]] == ["InqConv2D", "InqDense"]
    capsys.readouterr()
    evaluated = ["evaluate", "quantized/codes.keras", "--data", "images.npz", "--json"]
    assert main(evaluated) == 0
    wrong = json.loads(capsys.readouterr().out)["wrong"]
    assert wrong == report["wrong_with_codes"] == report["wrong_after"]


def _nth(number, function, error):
    """The function, whose call of that number raises the error."""
    calls = []

    def call(*args, **kwargs):
        calls.append(args)
        if len(calls) == number:
            raise error
        return function(*args, **kwargs)

    return call


# What fails once the network is trained, and at which call: convert has been tried.
FAILURES = {
    "conversion": (inq, "convert", 2, ValueError("no such layer")),
    "report": (callbacks, "write_result", 1, OSError(28, "No space left on device")),
}


@pytest.mark.parametrize("what", FAILURES)
def test_what_was_trained_outlasts_failures(work, monkeypatch, capsys, what):
    owner, name, number, error = FAILURES[what]
    monkeypatch.setattr(owner, name, _nth(number, getattr(owner, name), error))
    assert main(QUANTIZE) == 2
    _assert_kept(work / "quantized")
    printed = capsys.readouterr()
    assert "wrote quantized: model.keras, config.json, history.json\n" in printed.out
    said = "the quantized network is in quantized/model.keras, but converting and "
    said += f"measuring it failed: {error}; `tf-capsops quantize --resume quantized` "
    said += "tries again\n"
    assert printed.err == f"tf-capsops quantize: error: {said}"


def test_ctrl_c_at_the_end(work, monkeypatch, capsys):
    stop = _nth(2, inq.convert, KeyboardInterrupt())
    monkeypatch.setattr(inq, "convert", stop)
    assert main(QUANTIZE) == 130
    _assert_kept(work / "quantized")
    assert "wrote quantized: model.keras, config" in capsys.readouterr().out


def test_an_epoch_that_fails_loses_no_earlier_one(work, monkeypatch, capsys):
    # The accuracy before, at once and after the step, and at its end.
    failing = _nth(4, evaluation.scores, OSError("the disk is gone"))
    monkeypatch.setattr(evaluation, "scores", failing)
    with pytest.raises(OSError, match="the disk is gone"):
        main([*QUANTIZE, "--epochs-per-step", "2"])
    _assert_kept(work / "quantized")
    assert "wrote quantized: model.keras, config" in capsys.readouterr().out


def test_what_cannot_be_converted_is_not_trained(work, capsys):
    assert main([QUANTIZE[0], "own.keras", *QUANTIZE[2:]]) == 2
    said = capsys.readouterr().err
    assert "error: convert: the Halving halving has a call method of its own" in said
    assert said.count("\n") == 1
    assert not (work / "quantized").exists()


def test_the_run_is_locked_before_the_network_is_tested(work, monkeypatch):
    def scores(*_):
        assert runs.is_in_use(work / "quantized")
        raise KeyboardInterrupt

    monkeypatch.setattr(evaluation, "scores", scores)
    assert main(QUANTIZE) == 130
    assert not runs.is_in_use(work / "quantized")
