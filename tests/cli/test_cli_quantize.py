# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""tf-capsops quantize: on runs and on other models, and what it says about mistakes."""

import functools
import json
import re

import fresh
import keras
import numpy as np
import pytest
import quick
import tensorflow as tf

import tf_capsops
from tf_capsops import data, inq
from tf_capsops.__main__ import main
from tf_capsops.inq.kernels import layers_and_kernels

pytestmark = pytest.mark.usefixtures("eagerly")


@pytest.fixture(scope="module")
def runs(eagerly, tmp_path_factory):
    """A function of capsnet or p_capsnet that returns a directory with two runs.

    One has the name of the network, and the other is that one quantized to 4 bits.
    """
    folder = tmp_path_factory.mktemp("runs")
    digits, arrays = data.load("digits"), {}
    for part, count in (("train", 50), ("test", 60)):
        arrays[f"x_{part}"] = getattr(digits, f"x_{part}")[:count]
        arrays[f"y_{part}"] = getattr(digits, f"y_{part}")[:count]
    np.savez(folder / "digits.npz", **arrays)
    train = ["train", "--data", str(folder / "digits.npz"), "--batch-size", "50"]

    @functools.cache
    def quantized(name):
        run = str(folder / name)
        steps = ["0.5", "1"] if name == "capsnet" else ["1"]
        with quick.undrawn():
            options = ["--model", name, "--epochs", "1", "--output", run]
            assert main([*train, *options]) == 0
            options = ["--steps", *steps, "--output", str(folder / f"quantized-{name}")]
            assert main(["quantize", run, "--bits", "4", *options]) == 0
        return folder

    return quantized


def _evaluate(path, capsys):
    capsys.readouterr()
    assert main(["evaluate", str(path), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


every_network = pytest.mark.parametrize(
    "name", [pytest.param("capsnet", marks=pytest.mark.slow), "p_capsnet"]
)


@every_network
def test_writes_a_run_whose_weights_are_quantized(runs, capsys, name):
    runs = runs(name)
    run = runs / f"quantized-{name}"
    files = {"model.keras", "codes.keras", "config.json", "report.json"}
    files |= {"history.json", "result.json"}
    assert {path.name for path in run.iterdir()} == files
    report = json.loads((run / "report.json").read_text())
    model = keras.saving.load_model(run / "model.keras")
    kernels = [variable.numpy() for _, variable in layers_and_kernels(model)]
    for kernel in kernels:
        np.testing.assert_array_equal(kernel, inq.quantize(kernel, 4))
    weights = sum(kernel.size for kernel in kernels)
    assert report["weights"] == weights
    assert report["bytes_of_weights"] == {"float32": 4 * weights, "packed": weights / 2}
    fractions = [step["fraction"] for step in report["steps"]]
    assert fractions == ([1] if name == "p_capsnet" else [0.5, 1])
    assert _evaluate(runs / name, capsys)["wrong"] == report["wrong_before"]
    wrong = _evaluate(run, capsys)["wrong"]
    assert wrong == report["wrong_after"] == report["steps"][-1]["wrong_after_training"]
    with_codes = _evaluate(run / "codes.keras", capsys)
    assert with_codes["wrong"] == report["wrong_with_codes"]
    files, memory = report["bytes_of_file"], report["bytes_in_memory"]
    assert files["codes"] == (run / "codes.keras").stat().st_size
    assert files["codes"] < 0.5 * files["float"]
    saved = keras.saving.load_model(run / "codes.keras").weights
    assert memory["codes"] == sum(each.numpy().nbytes for each in saved)
    assert memory["codes"] < weights + 0.1 * memory["float"]


def test_all_layers_of_capsules_hold_codes(runs):
    report = json.loads(
        (runs("p_capsnet") / "quantized-p_capsnet" / "report.json").read_text()
    )
    found = {(each["becomes"], each["why_not"]) for each in report["layers"]}
    assert found == {("CapsuleConv2D", None)}
    assert sum(each["weights"] for each in report["layers"]) == report["weights"]


@every_network
def test_losses_are_those_of_the_model(runs, name):
    runs = runs(name)
    first, second = (
        keras.saving.load_model(runs / run / "model.keras")
        for run in (name, f"quantized-{name}")
    )
    configs = [model.get_compile_config() for model in (first, second)]
    for key in ("loss", "loss_weights", "metrics"):
        assert configs[0][key] == configs[1][key]
    arguments = json.loads((runs / name / "config.json").read_text())
    ours = json.loads((runs / f"quantized-{name}" / "config.json").read_text())
    for key in ("data", "batch_size", "learning_rate", "distortion"):
        assert ours[key] == arguments[key]


def _classifier(path, compiled=True):
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input([5, 6, 1]),
            keras.layers.Conv2D(4, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(3),
        ],
        name="classifier",
    )
    if compiled:
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("adam", loss, metrics=["accuracy"])
    model.save(path)


def _size(path):
    return f"{path.stat().st_size:,}"


def _without_optimizer(run):
    """Saves a run's model beside it, without what it was compiled with."""
    path = run.with_name("bare.keras")
    keras.saving.load_model(run / "model.keras", compile=False).save(path)
    return path


def _data(path):
    random = np.random.default_rng(1)
    images = random.integers(0, 256, [2, 30, 5, 6], np.uint8)
    labels = np.arange(30) % 3
    np.savez(path, x_train=images[0], y_train=labels, x_test=images[1], y_test=labels)


def test_epochs_are_those_of_the_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    _data("images.npz")
    run = tmp_path / "runs/short"
    run.mkdir(parents=True)
    _classifier(run / "model.keras")
    config = {"data": "images.npz", "batch_size": 10, "steps_per_epoch": 2}
    (run / "config.json").write_text(json.dumps(config))
    options = ["--steps", "1", "--bits", "3", "--epochs-per-step", "1"]
    assert main(["quantize", "runs/short", *options]) == 0
    assert "1 step of 1 epoch of 2 batches\n" in capsys.readouterr().out


def test_takes_any_classifier_and_prints_every_step(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    _classifier("model.keras")
    _data("images.npz")
    options = ["--data", "images.npz", "--steps", "0.5", "1", "--bits", "3"]
    options += ["--epochs-per-step", "2", "--batch-size", "10"]
    for _ in range(2):
        assert main(["quantize", "model.keras", *options]) == 0
    assert (tmp_path / "runs/quantize-images-2/model.keras").is_file()
    run = tmp_path / "runs/quantize-images"
    report = json.loads((run / "report.json").read_text())
    printed = capsys.readouterr().out
    for number, step in enumerate(report["steps"], start=1):
        accuracy = f"{1 - step['wrong'] / 30:.2%} ({step['wrong']} wrong)"
        fixed = f"{step['fraction']:.1%} of the weights quantized"
        assert f"step {number} of 2, {fixed}: {accuracy}\n" in printed
    for line in (
        "classifier to 3 bits: 2 steps of 2 epochs of 3 batches\n",
        f"before: test accuracy {1 - report['wrong_before'] / 30:.2%}",
        f"after: test accuracy {1 - report['wrong_after'] / 30:.2%}",
        "epoch 4/4  train_accuracy",
        "180 quantized weights: 720 bytes as float32, 68 packed (3 bits each)\n",
        f"model.keras: {_size(run / 'model.keras')} bytes with the optimizer's state, "
        f"{_size(_without_optimizer(run))} without it\n"
        f"codes.keras: {_size(run / 'codes.keras')} bytes without an optimizer, with",
        f"all weights in memory: {180 + 2 * 8 + 4 * 7} bytes with codes, 748 without\n",
    ):
        assert line in printed
    # The layers' bytes are 36 weights and 4 biases, and 144 and 3.
    layers = [(each["bits"], each["bytes_after"]) for each in report["layers"]]
    assert layers == [(3, 14 + 4 + 16), (3, 54 + 4 + 12)]
    assert re.search(r"in all +748 +104\n", printed)
    assert "not quantized" not in printed
    converted = keras.saving.load_model(run / "codes.keras")
    first, _, last = converted.layers
    assert type(first) is tf_capsops.layers.InqConv2D and first.bits == 3
    assert type(last) is tf_capsops.layers.InqDense and not converted.compiled


def test_per_channel(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    _classifier("model.keras")
    _data("images.npz")
    options = ["--data", "images.npz", "--steps", "1", "--bits", "3", "--per-channel"]
    assert main(["quantize", "model.keras", *options]) == 0
    run = tmp_path / "runs/quantize-images"
    config = json.loads((run / "config.json").read_text())
    assert config["per_channel"] and config["recipe"] is None
    first, _, last = keras.saving.load_model(run / "codes.keras").layers
    for layer in (first, last):
        assert layer.bits == 3 and layer.per_channel
        assert layer.top_exponent.shape == layer.bias.shape
    report = json.loads((run / "report.json").read_text())
    assert report["wrong_with_codes"] == report["wrong_after"]


def test_activation_bits(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    _classifier("model.keras")
    _data("images.npz")
    options = ["--data", "images.npz", "--steps", "1", "--activation-bits", "3"]
    assert main(["quantize", "model.keras", *options]) == 0
    printed = capsys.readouterr().out
    assert "classifier to 5 bits, activations to 3: 1 step of" in printed
    run = tmp_path / "runs/quantize-images"
    config, report, result = (
        json.loads((run / f"{name}.json").read_text())
        for name in ("config", "report", "result")
    )
    assert config["activation_bits"] == report["activation_bits"] == 3
    assert config["recipe"] is None
    assert [each["activation_bits"] for each in report["layers"]] == [3, 3]
    converted = keras.saving.load_model(run / "codes.keras")
    kinds = [type(each).__name__ for each in converted.layers]
    assert kinds == ["FakeQuant", "InqConv2D", "Flatten", "FakeQuant", "InqDense"]
    assert {converted.layers[each].bits for each in (0, 3)} == {3}
    wrong = report["wrong_with_codes"]
    accuracy = f"{1 - wrong / 30:.2%} ({wrong} wrong)"
    assert f"with codes, 5 bits, activations to 3: {accuracy}\n" in printed
    # The training simulated what the model with codes computes.
    assert wrong == report["steps"][-1]["wrong_after_training"]
    for path, name in ((run, "wrong_after"), (run / "codes.keras", "wrong_with_codes")):
        given = [str(path), "--data", "images.npz", "--json"]
        capsys.readouterr()
        assert main(["evaluate", *given]) == 0
        assert json.loads(capsys.readouterr().out)["wrong"] == report[name]
    assert (result["wrong"], result["wrong_with_codes"]) == (
        report["wrong_after"],
        wrong,
    )


def test_routing_bits(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input([5, 6, 1]),
            tf_capsops.layers.PrimaryCaps(2, 4, 3),
            tf_capsops.layers.DigitCaps(3, 4, name="digits"),
            tf_capsops.layers.Length(),
        ],
        name="small",
    )
    model.compile("adam", tf_capsops.losses.MarginLoss())
    model.save("model.keras")
    _data("images.npz")
    options = ["--data", "images.npz", "--steps", "1", "--activation-bits", "8"]
    options += ["--routing-bits", "3"]
    assert main(["quantize", "model.keras", *options]) == 0
    printed = capsys.readouterr().out
    assert "small to 5 bits, activations to 8, routing to 3: 1 step of" in printed
    run = tmp_path / "runs/quantize-images"
    config, report = (
        json.loads((run / f"{name}.json").read_text()) for name in ("config", "report")
    )
    assert config["routing_bits"] == report["routing_bits"] == 3
    assert [each["routing_bits"] for each in report["layers"]] == [None, 3]
    converted = keras.saving.load_model(run / "codes.keras")
    (digits,) = inq.routing.routed(converted)
    assert (digits.name, digits.bits, digits.routing_bits) == ("digits", 5, 3)
    assert digits.routing_ranges.numpy()[-1, 0, 1] != 6
    wrong = report["wrong_with_codes"]
    accuracy = f"{1 - wrong / 30:.2%} ({wrong} wrong)"
    assert (
        f"with codes, 5 bits, activations to 8, routing to 3: {accuracy}\n" in printed
    )
    given = [str(run / "codes.keras"), "--data", "images.npz", "--json"]
    assert main(["evaluate", *given]) == 0
    assert json.loads(capsys.readouterr().out)["wrong"] == wrong


def test_routing_bits_of_a_model_without_routing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    _classifier("model.keras")
    _data("images.npz")
    command = ["quantize", "model.keras", "--data", "images.npz", "--routing-bits", "4"]
    assert main(command) == 2
    said = "quantize: error: --routing-bits: no layer of the model routes capsules\n"
    assert said in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_ctrl_c_saves_what_there_is_and_ends(tmp_path):
    _classifier(tmp_path / "model.keras")
    _data(tmp_path / "images.npz")
    options = ["--data", "images.npz", "--steps", "0.5", "1", "--bits", "3"]
    options += ["--epochs-per-step", "200", "--batch-size", "10"]
    command = [fresh.COMMAND, "quantize", "model.keras", *options]
    printed = fresh.interrupt(fresh.start(*command, cwd=tmp_path), "epoch 20/")
    said = r"stopped in epoch (\d+) of 400 after \d+ s, with 50.0% of the weights "
    said += "quantized; `tf-capsops quantize --resume runs/quantize-images` goes on\n"
    epoch = int(re.search(said, printed)[1])
    run = tmp_path / "runs/quantize-images"
    (checkpoint,) = run.glob("checkpoint-*.keras")
    files = {"model.keras", "config.json", "history.json", checkpoint.name}
    files.add(checkpoint.with_suffix(".npz").name)
    assert {each.name for each in run.iterdir()} == files
    history = json.loads((run / "history.json").read_text())
    assert len(history["loss"]) == epoch - 1 >= 20
    kernels = layers_and_kernels(keras.saving.load_model(run / "model.keras"))
    for _, kernel in kernels:
        mantissas = np.abs(np.frexp(kernel.numpy())[0])
        assert 0.5 <= np.isin(mantissas, [0, 0.5]).mean() < 1


@pytest.mark.parametrize(
    "options, seed, deterministic",
    [
        ([], 0, False),
        (["--seed", "3"], 3, True),
        (["--seed", "3", "--nondeterministic"], 3, False),
    ],
)
def test_a_seed_selects_deterministic_kernels(
    tmp_path, monkeypatch, options, seed, deterministic
):
    monkeypatch.chdir(tmp_path)
    _classifier("model.keras")
    _data("images.npz")
    selected = []
    monkeypatch.setattr(
        tf.config.experimental, "enable_op_determinism", lambda: selected.append(True)
    )
    given = ["--data", "images.npz", "--steps", "1", "--epochs-per-step", "1"]
    assert main(["quantize", "model.keras", *given, *options]) == 0
    config = json.loads((tmp_path / "runs/quantize-images/config.json").read_text())
    assert (config["seed"], config["deterministic"]) == (seed, deterministic)
    assert selected == [True] * deterministic


@pytest.mark.parametrize(
    "options, text",
    [
        (["--bits", "9"], "argument --bits: invalid choice: 9"),
        (["--activation-bits", "9"], "argument --activation-bits: invalid choice: 9"),
        (["--routing-bits", "1"], "argument --routing-bits: invalid choice: 1"),
        (["--activation-bits", "x"], "argument --activation-bits: invalid int value"),
        (["--steps", "0.5", "0.9"], "--steps must end with 1, got 0.9"),
        (["--steps", "0.5", "0.2", "1"], "error: --steps must be fractions that rise"),
        (["--steps", "2", "1"], "--steps must be fractions that rise, got 2 1\n"),
        (["--epochs-per-step", "0"], "must be an integer >= 1, got '0'"),
    ],
)
def test_mistakes_are_named(tmp_path, monkeypatch, capsys, options, text):
    monkeypatch.chdir(tmp_path)
    _classifier("model.keras")
    _data("images.npz")
    command = ["quantize", "model.keras", "--data", "images.npz", *options]
    assert main(command) == 2
    assert text in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_a_model_without_a_loss_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    _classifier("model.keras", compiled=False)
    _data("images.npz")
    assert main(["quantize", "model.keras", "--data", "images.npz"]) == 2
    assert "was saved without its loss: compile it" in capsys.readouterr().err
