# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The command line: each command on a small run, and what it says about mistakes."""

import json
import shutil

import fresh
import keras
import matplotlib.image
import numpy as np
import pytest
import quick
import small

import tf_capsops
from tf_capsops import data
from tf_capsops.__main__ import main
from tf_capsops.cli import figures
from tf_capsops.cli.evaluation import confusion_matrix

_FILES = {
    "model.keras",
    "config.json",
    "history.json",
    "result.json",
    "curves.png",
    "reconstructions.png",
    "tensorboard",
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A directory with runs/digits in it, of two epochs."""
    folder = tmp_path_factory.mktemp("work")
    output = folder / "runs" / "digits"
    assert main(["train", "--epochs", "2", "--output", str(output)]) == 0
    return folder


@pytest.fixture
def work(trained, tmp_path, monkeypatch):
    """A copy of the trained directory, as the working directory."""
    shutil.copytree(trained / "runs", tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_train_writes_everything(work, capsys):
    run = work / "runs" / "digits"
    assert {path.name for path in run.iterdir()} == _FILES
    config = json.loads((run / "config.json").read_text())
    assert config["data"] == "digits"
    assert (config["preset"], config["epochs"], config["seed"]) == ("small", 2, 0)
    history = json.loads((run / "history.json").read_text())
    assert {len(values) for values in history.values()} == {2}
    assert history["loss"][1] < history["loss"][0]
    assert list(run.glob("tensorboard/*/events*"))
    for name in ("curves.png", "reconstructions.png"):
        assert matplotlib.image.imread(run / name).std() > 0.05


def test_evaluate_prints_what_training_reported(work, capsys):
    assert main(["evaluate", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    history = json.loads((work / "runs/digits/history.json").read_text())
    accuracy = history["val_lengths_accuracy"][-1]
    assert result["accuracy"] == pytest.approx(accuracy, abs=1e-6)
    confusion = np.array(result["confusion"])
    assert confusion.sum() == result["images"] == 360
    assert 360 - np.trace(confusion) == result["wrong"]
    assert main(["evaluate", "runs/digits/model.keras", "--data", "digits"]) == 0
    printed = capsys.readouterr().out
    assert f"accuracy {result['accuracy']:.2%}" in printed
    assert "confusion matrix" in printed


def test_confusion_matrix():
    counts = confusion_matrix(np.array([0, 1, 1, 2]), np.array([0, 1, 2, 2]), 3)
    np.testing.assert_array_equal(counts, [[1, 0, 0], [0, 1, 1], [0, 0, 1]])


@pytest.mark.ci
def test_reconstruct_overwrites_nothing(work, capsys):
    run = work / "runs" / "digits"
    before = (run / "reconstructions.png").read_bytes()
    with quick.eager():
        assert main(["reconstruct", "runs/digits", "--images", "1"]) == 0
    assert (run / "reconstructions.png").read_bytes() == before
    printed = capsys.readouterr().out
    for name in ("reconstructions-2.png", "perturbations.png", "coefficients.png"):
        assert matplotlib.image.imread(run / name).std() > 0.05
        assert f"wrote runs/digits/{name}\n" in printed
    files = {path.name for path in run.iterdir()}
    assert main(["reconstruct", "runs/digits"]) == 0
    printed = capsys.readouterr().out
    for name in ("reconstructions.png", "perturbations.png", "coefficients.png"):
        assert f"runs/digits/{name} is there already\n" in printed
    assert {path.name for path in run.iterdir()} == files
    with quick.eager(), quick.undrawn():
        assert main(["reconstruct", "--images", "1", "--output", "pictures"]) == 0
    assert (work / "pictures" / "coefficients.png").exists()


@pytest.mark.slow
def test_train_keeps_older_runs_and_repeats_a_seed(tmp_path):
    command = "from tf_capsops.__main__ import main; import sys; main(sys.argv[1:])"
    arguments = ["train", "--epochs", "1", "--seed", "5", "--routing-iterations", "2"]
    processes = [fresh.start(command, *arguments, cwd=tmp_path) for _ in range(2)]
    printed = [fresh.finish(process) for process in processes]
    assert "test accuracy" in printed[0]
    runs = [tmp_path / "runs" / name for name in ("digits", "digits-2")]
    histories = [(run / "history.json").read_text() for run in runs]
    assert histories[0] == histories[1]


def test_train_on_a_file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(1)
    np.savez(
        "colors.npz",
        x_train=random.integers(0, 256, [12, 9, 10, 3], np.uint8),
        y_train=np.arange(12) % 2,
        x_test=random.integers(0, 256, [4, 9, 10, 3], np.uint8),
        y_test=np.arange(4) % 2,
    )
    options = ["--epochs", "1", "--batch-size", "5", "--learning-rate", "0.01"]
    with quick.eager(), quick.undrawn():
        assert main(["train", "--data", "colors.npz", *options]) == 0
    config = json.loads((tmp_path / "runs/colors/config.json").read_text())
    assert config["data"] == str(tmp_path / "colors.npz")
    monkeypatch.chdir("/")
    with quick.eager(), quick.undrawn():
        assert main(["evaluate", str(tmp_path / "runs/colors")]) == 0
        assert main(["reconstruct", str(tmp_path / "runs/colors")]) == 0
    assert "coefficients.png" in capsys.readouterr().out


def _shown(coefficients, folder, monkeypatch, classes=3):
    """Returns what `figures.coefficients` shows of a network with such coefficients.

    Returns the arrays of its pictures, and the color scales they were shown with.
    """
    model = small.capsnet((9, 9, 1), classes, primary_channels=3)
    monkeypatch.setattr(model, "routing_coefficients", lambda images: coefficients)
    images, labels = (
        np.random.default_rng(0).random([2, 9, 9, 1]),
        np.arange(2) % classes,
    )
    dataset = data.Dataset("noise", images, labels, images, labels)
    shown = []
    monkeypatch.setattr(
        figures,
        "_shade",
        lambda axes, values, scale, **_: shown.append((values, scale)),
    )
    with quick.undrawn():
        figures.coefficients(model, dataset, folder / "coefficients.png")
    lengths = model.predict(images, verbose=0)["lengths"]
    return np.argsort(-lengths, axis=1), shown


def test_coefficients_of_the_predicted_and_the_second_class(tmp_path, monkeypatch):
    random = np.random.default_rng(4)
    coefficients = random.dirichlet(np.ones(3), [2, 3, 3, 3])
    ranked, shown = _shown(coefficients, tmp_path, monkeypatch)
    assert len(shown) == 2 * 3
    for sample in range(2):
        first, second = (coefficients[sample, ..., j] for j in ranked[sample, :2])
        means, *blocks = (values for values, _ in shown[3 * sample :][:3])
        np.testing.assert_array_equal(means, first.mean(axis=-1))
        for block, values in zip(blocks, (first, second), strict=True):
            # Three types in two rows of two, of which the last is empty.
            assert block.shape == (6, 6)
            np.testing.assert_array_equal(block[0::2, 0::2], values[..., 0])
            np.testing.assert_array_equal(block[0::2, 1::2], values[..., 1])
            np.testing.assert_array_equal(block[1::2, 0::2], values[..., 2])
            assert np.isnan(block[1::2, 1::2]).all()
    for _, scale in shown:
        # White is what routing begins with; more is red, less is blue.
        assert scale.norm(1 / 3) == pytest.approx(0.5)
        (more, _, less, _), (fewer, _, further, _) = scale.to_rgba([0.5, 0.2])
        assert more > less and fewer < further
        assert scale.norm(0.0) == 0  # not left out


@pytest.mark.parametrize("classes", [1, 2])
def test_coefficients_of_few_classes(tmp_path, monkeypatch, classes):
    uniform = np.full([2, 3, 3, 3, classes], 1 / classes)
    _, shown = _shown(uniform, tmp_path, monkeypatch, classes)
    assert len(shown) == 2 * (1 + classes)
    assert (tmp_path / "coefficients.png").exists()


def test_p_capsnet_is_trained_and_evaluated_and_has_no_decoder(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    options = ["--epochs", "2", "--batch-size", "360"]
    with quick.eager():
        assert main(["train", "--model", "p_capsnet", *options]) == 0
    assert "small p_capsnet: 67,488 parameters" in capsys.readouterr().out
    run = tmp_path / "runs" / "digits"
    assert {path.name for path in run.iterdir()} == _FILES - {"reconstructions.png"}
    assert json.loads((run / "config.json").read_text())["model"] == "p_capsnet"
    assert matplotlib.image.imread(run / "curves.png").std() > 0.05
    history = json.loads((run / "history.json").read_text())
    assert main(["evaluate", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["accuracy"] == pytest.approx(history["val_accuracy"][-1], abs=1e-6)
    assert "reconstruction_rmse" not in result
    assert main(["evaluate"]) == 0
    assert "reconstruction" not in capsys.readouterr().out
    assert main(["reconstruct"]) == 2
    errors = capsys.readouterr().err
    assert "the p_capsnet in runs/digits has no decoder" in errors


def _saved(path, *layers):
    keras.Sequential([keras.Input([8, 8, 1]), *layers]).save(path)


def test_evaluate_takes_any_classifier_of_images(work, capsys):
    _saved("dense.keras", keras.layers.Flatten(), keras.layers.Dense(10))
    assert main(["evaluate", "dense.keras", "--data", "digits", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["images"] == 360


def test_other_models_are_named(work, capsys):
    _saved("conv.keras", keras.layers.Conv2D(10, 3))
    for command in ("evaluate", "reconstruct"):
        assert main([command, "conv.keras", "--data", "digits"]) == 2
        errors = capsys.readouterr().err
        assert "conv.keras holds a Sequential that does not classify images" in errors
    assert not list(work.glob("*.png"))


@pytest.mark.parametrize(
    "arguments, text",
    [
        (["train", "--data", "nowhere"], "no data at 'nowhere'"),
        (["train", "--epochs", "0"], "--epochs: must be an integer >= 1, got '0'"),
        (["train", "--learning-rate", "nan"], "must be a number > 0, got 'nan'"),
        (
            ["train", "--seed", "-1"],
            "--seed: must be an integer from 0 to 2147483647, got '-1'",
        ),
        (["train", "--preset", "huge"], "invalid choice: 'huge'"),
        (
            ["train", "--preset", "sabour"],
            "sabour capsnet takes no images as small as those of digits (8x8); each "
            "side must have at least 17 pixels\n",
        ),
        (
            ["train", "--model", "p_capsnet", "--preset", "sabour"],
            "p_capsnet has the presets chen, compact, large, small, tiny, not sabour",
        ),
        (
            ["train", "--model", "p_capsnet", "--routing-iterations", "2"],
            "p_capsnet has no routing that iterates: no --routing-iterations",
        ),
        (
            ["train", "--model", "efficient_capsnet", "--routing", "em"],
            "efficient_capsnet has no choice of routing: no --routing",
        ),
        (
            [
                *("train", "--model", "matrix_capsnet", "--routing", "self-attention"),
                *("--routing-iterations", "2"),
            ],
            "self-attention does not iterate: no --routing-iterations",
        ),
        (
            ["train", "--model", "matrix_capsnet", "--reconstruction-weight", "1"],
            "matrix_capsnet has no reconstructions: no --reconstruction-weight",
        ),
        (["train", "--output", "notes.txt/run"], "cannot make notes.txt/run"),
        (["evaluate"], "no run in"),
        (["evaluate", "nowhere"], "no model at nowhere: give a run's directory"),
        (["evaluate", "notes.txt", "--data", "digits"], "notes.txt"),
        (["evaluate", "notes.txt"], "notes.txt is not a .keras file: give a run's"),
        (["reconstruct", "nowhere"], "no model at nowhere"),
        (["dance"], "invalid choice: 'dance'"),
        (["trian"], "did you mean train?"),
        (["--versoin"], "unrecognized arguments: --versoin; did you mean --version?"),
        (
            ["train", "--modle", "capsnet"],
            "train: error: unrecognized arguments: --modle capsnet; did you mean "
            "--model?",
        ),
        (["train", "--epoch-size=3"], "unrecognized arguments: --epoch-size=3"),
        (["train", "--model", "capsent"], "did you mean capsnet?"),
        (
            ["train", "--recipe", "capsnet-mnits"],
            "--recipe: there is no recipe 'capsnet-mnits'; did you mean capsnet-mnist?",
        ),
        (["train", "--resume", "nowhere"], "takes a run's directory: nowhere is not"),
        (["report", "nope"], "report: error: RECIPE must be one of capsnet-digits, p_"),
        (["bench", "--op", "CapsuleRoutng"], "did you mean CapsuleRouting?"),
        (["bench", "--outptu", "x"], "--outptu x; did you mean --output?"),
        (["bench", "--against", "no.json"], "read no.json: No such file or directory"),
        (["bench", "--output", "notes.txt"], "make the directory notes.txt: File exi"),
    ],
)
def test_mistakes_end_in_one_line(tmp_path, monkeypatch, capsys, arguments, text):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("no model")
    assert main(arguments) == 2
    errors = capsys.readouterr().err
    assert text in errors
    assert "Traceback" not in errors
    first, *others = errors.splitlines()
    assert first.startswith("tf-capsops") and "error: " in first
    assert len(others) <= 1  # where all options are
    assert not (tmp_path / "runs").exists()


def test_data_must_fit_the_model(work, capsys):
    images = np.zeros([2, 9, 9], np.uint8)
    labels = np.array([0, 1])
    np.savez("nines.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    assert main(["evaluate", "--data", "nines.npz"]) == 2
    assert "(8, 8, 1), but those of nines have (9, 9, 1)" in capsys.readouterr().err
    images, labels = images[:, :8, :8], np.array([0, 10])
    np.savez("more.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    assert main(["evaluate", "--data", "more.npz"]) == 2
    assert "10 classes, but more has 11" in capsys.readouterr().err


def test_without_the_library_nothing_is_written(tmp_path):
    command = (
        "from tf_capsops.__main__ import main; import sys; sys.exit(main(['train']))"
    )
    process = fresh.start(command, cwd=tmp_path, TF_CAPSOPS_LIBRARY="/no/such.so")
    _, errors = process.communicate()
    assert process.returncode == 2
    assert "tf-capsops train: error: " in errors and "/no/such.so" in errors
    assert not list(tmp_path.iterdir())


def test_info_as_a_program():
    """As by `python -m tf_capsops`, which test_console starts itself."""
    command = "import runpy; runpy.run_module('tf_capsops', run_name='__main__')"
    printed = fresh.run(command, "info")
    for part in (tf_capsops.__version__, tf_capsops.library_path(), "CPU:0", "CUDA"):
        assert part in printed


def test_info_without_a_library_prints_what_it_can(monkeypatch, capsys):
    monkeypatch.setenv("TF_CAPSOPS_LIBRARY", "/no/such.so")
    tf_capsops._library.load.cache_clear()
    assert main(["info"]) == 1
    printed = capsys.readouterr()
    assert "TensorFlow  2." in printed.out and "CPU:0" in printed.out
    assert "/no/such.so" in printed.err
    monkeypatch.undo()
    assert main(["info"]) == 0


def test_help_and_version(capsys):
    assert main([]) == 0
    printed = capsys.readouterr().out
    for command in ("train", "evaluate", "reconstruct", "bench", "info"):
        assert command in printed
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == tf_capsops.__version__
