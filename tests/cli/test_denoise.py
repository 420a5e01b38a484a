# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The denoising example: its filters and networks, and the command on small images."""

import json
import re

import fresh
import keras
import matplotlib.image
import numpy as np
import pytest
import tensorflow as tf

from tf_capsops.__main__ import main
from tf_capsops.cli import denoising
from tf_capsops.models import denoisers

pytestmark = pytest.mark.usefixtures("eagerly")

# The command in a process of its own, as small as the fixture makes it here.
_SMALL_COMMAND = f"""
import tensorflow as tf
from tf_capsops.cli import denoising
tf.config.run_functions_eagerly(True)
whole, denoising._STEPS = denoising.photograph, 2
denoising.photograph = lambda name: whole(name)[200:270, 300:372]
{fresh.COMMAND}"""


@pytest.fixture
def small(tmp_path, monkeypatch):
    """Photographs of 70 x 72 pixels and two batches an epoch, in an empty directory."""
    photograph = denoising.photograph
    monkeypatch.setattr(
        denoising, "photograph", lambda name: photograph(name)[200:270, 300:372]
    )
    monkeypatch.setattr(denoising, "_STEPS", 2)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_denoise_writes_everything(small, capsys):
    assert main(["denoise", "--epochs", "2"]) == 0
    run = small / "runs" / "denoise"
    files = {"denoiser.keras", "config.json", "history.json", "comparison.png"}
    assert {each.name for each in run.iterdir()} == {
        *files,
        "noisy.png",
        "denoised.png",
    }
    config = json.loads((run / "config.json").read_text())
    assert (config["train"], config["test"], config["noise"]) == ("china", "flower", 25)
    history = json.loads((run / "history.json").read_text())
    for network in ("averaging", "plain"):
        assert {len(values) for values in history[network].values()} == {2}
    printed = capsys.readouterr().out
    assert "averaging network: 31,115 parameters, 2 epochs of 2 batches" in printed
    assert f"{history['test_psnr']['bilateral']:.2f} dB" in printed

    # The model and the pictures are those that were measured.
    clean = denoising.photograph("flower")
    model = keras.saving.load_model(run / "denoiser.keras")
    noisy = clean + np.random.default_rng(0).normal(0, 25 / 255, clean.shape)
    result = model.predict(noisy.astype(np.float32)[np.newaxis], verbose=0)[0]
    expected = history["test_psnr"]["averaging network"]
    assert denoising.psnr(clean, result) == pytest.approx(expected, abs=1e-3)
    picture = matplotlib.image.imread(run / "denoised.png")[..., :3]
    np.testing.assert_allclose(picture, np.clip(result, 0, 1), rtol=0, atol=1 / 255)


@pytest.mark.parametrize(
    "text, networks",
    [
        ("epoch 4/40", ["plain"]),
        pytest.param(
            *("averaging network: ", ["plain", "averaging"]), marks=pytest.mark.slow
        ),
    ],
)
def test_ctrl_c_saves_what_there_is_and_ends(tmp_path, text, networks):
    command = [_SMALL_COMMAND, "denoise", "--epochs", "40"]
    printed = fresh.interrupt(fresh.start(*command, cwd=tmp_path), text)
    network = networks[-1]
    note = rf"{network} network .* dB  \(stopped in epoch (\d+) of 40 after \d+ s\)"
    epoch = int(re.search(note, printed)[1])
    run = tmp_path / "runs" / "denoise"
    history = json.loads((run / "history.json").read_text())
    assert list(history) == [*networks, "test_psnr"]
    assert len(history[network].get("loss", [])) == epoch - 1
    assert keras.saving.load_model(run / "denoiser.keras").name == network
    for name in ("config.json", "comparison.png", "noisy.png", "denoised.png"):
        assert (run / name).stat().st_size > 0, name


@pytest.mark.slow
def test_denoise_keeps_older_runs_and_repeats_a_seed(tmp_path):
    command = [_SMALL_COMMAND, "denoise", "--epochs", "1", "--seed", "5"]
    for process in [fresh.start(*command, cwd=tmp_path) for _ in range(2)]:
        assert "PSNR on flower" in fresh.finish(process)
    runs = [tmp_path / "runs" / name for name in ("denoise", "denoise-2")]
    histories = [(run / "history.json").read_text() for run in runs]
    assert histories[0] == histories[1]


def test_denoise_learns_from_the_other_photograph(small, capsys):
    arguments = ["--train", "flower", "--epochs", "1", "--noise", "40"]
    assert main(["denoise", *arguments, "--output", "tried"]) == 0
    config = json.loads((small / "tried" / "config.json").read_text())
    assert (config["test"], config["noise"]) == ("china", 40)
    assert "PSNR on china" in capsys.readouterr().out


@pytest.mark.parametrize("option", [["--noise", "0"], ["--train", "tree"]])
def test_denoise_names_bad_arguments(small, option, capsys):
    assert main(["denoise", *option]) == 2
    assert option[1] in capsys.readouterr().err
    assert not (small / "runs").exists()


def test_networks_are_of_one_size():
    ours, plain = denoisers.averaging_network(), denoisers.plain_network()
    assert ours.count_params() == pytest.approx(plain.count_params(), rel=0.01)


def test_averaging_network_stays_in_the_range_of_its_input():
    keras.utils.set_random_seed(2)
    image = np.random.default_rng(1).random([1, 9, 40, 3], np.float32)
    result = denoisers.averaging_network()(image).numpy()
    inside = result[:, 4:5, 18:22]
    assert result.min() >= 0 and result.max() <= 1
    assert image.min() < inside.min() and inside.max() < image.max()


def test_psnr():
    clean = np.zeros([4, 4, 3], np.float32)
    assert denoising.psnr(clean, clean + 0.1) == pytest.approx(20, abs=1e-5)
    assert denoising.psnr(clean, clean - 3) == 120
    two = tf.stack([clean + 0.1, clean + 0.01])
    result = denoising._psnr(tf.stack([clean, clean]), two)
    np.testing.assert_allclose(result, [20, 40], rtol=1e-5)


def test_bilateral_by_its_definition():
    image = np.random.default_rng(5).random([6, 7, 3])
    result = denoising.bilateral(image, space=1.5, color=0.4, radius=1)
    around = image[2:5, 3:6]
    offsets = np.arange(3) - 1
    distances = offsets[:, np.newaxis] ** 2 + offsets**2
    differences = np.square(around - image[3, 4]).sum(-1)
    weights = np.exp(-distances / (2 * 1.5**2) - differences / (2 * 0.4**2))
    expected = (weights[..., np.newaxis] * around).sum((0, 1)) / weights.sum()
    np.testing.assert_allclose(result[3, 4], expected, rtol=1e-12)
    flat = denoising.bilateral(np.full([5, 5, 3], 0.3), 2.0, 0.3)
    np.testing.assert_allclose(flat, 0.3, rtol=1e-12)


def test_classic_filters_are_tried_at_several_strengths():
    clean = denoising.photograph("flower")[200:260, 300:360]
    noise = np.random.default_rng(6).normal(0, 0.3, clean.shape).astype(np.float32)
    for best in (denoising.best_gaussian, denoising.best_bilateral):
        _, weak = best(clean + 0.1 * noise, clean)
        image, strong = best(clean + noise, clean)
        assert weak != strong
        assert denoising.psnr(clean, image) > denoising.psnr(clean, clean + noise)


def test_noisy_patches_are_squares_of_the_image():
    # Red counts rows, green counts columns, blue is one value.
    ramp = np.zeros([20, 30, 3], np.float32)
    ramp[..., 0] = np.arange(20)[:, np.newaxis] / 100
    ramp[..., 1] = np.arange(30) / 100
    ramp[..., 2] = 0.5
    batches = denoising.noisy_patches(ramp, 8, 64, 0.1, seed=4)
    noisy, clean = (each.numpy() for each in next(iter(batches)))
    assert noisy.shape == clean.shape == (64, 8, 8, 3)
    assert (noisy - clean).std() == pytest.approx(0.1, rel=0.05)
    down, across = (np.diff(clean, axis=axis) for axis in (1, 2))
    # Along each axis either red changes or green, by one contrast for all pixels.
    turned = np.abs(across[:, 0, 0, 0]) > 1e-6
    ways = set()
    for square in range(64):
        red, green = (across, down) if turned[square] else (down, across)
        steps = red[square, 0, 0, 0], green[square, 0, 0, 1]
        np.testing.assert_allclose(red[square, ..., 0], steps[0], atol=1e-6)
        np.testing.assert_allclose(green[square, ..., 1], steps[1], atol=1e-6)
        ways.add((turned[square], steps[0] > 0, steps[1] > 0))
        for step in steps:
            assert 0.002 - 1e-6 < abs(step) < 0.01 + 1e-6
    assert len(ways) == 8
    np.testing.assert_allclose(clean[..., 2].std(axis=(1, 2)), 0, atol=1e-6)
    assert clean[:, 0, 0, 2].std() > 0.05
    repeated = next(iter(denoising.noisy_patches(ramp, 8, 64, 0.1, seed=4)))
    np.testing.assert_array_equal(repeated[0], noisy)
    other = next(iter(denoising.noisy_patches(ramp, 8, 64, 0.1, seed=5)))
    assert not np.array_equal(other[0], noisy)
