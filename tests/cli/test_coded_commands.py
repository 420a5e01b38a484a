# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Commands on a capsnet that holds codes: what they say of it and of its numbers."""

import json

import keras
import matplotlib.image
import numpy as np
import pytest
import quick
import small

from tf_capsops import data, inq
from tf_capsops.__main__ import main
from tf_capsops.inq.kernels import layers_and_kernels


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A directory with `float.keras`, `codes.keras` and a picture, `3.png`."""
    folder = tmp_path_factory.mktemp("coded")
    keras.utils.set_random_seed(1)
    model = small.capsnet(classes=10, filters=8, decoder_units=(16,))
    for _, kernel in layers_and_kernels(model):
        kernel.assign(inq.quantize(kernel, 5))
    model.save(folder / "float.keras")
    inq.convert(model, 5, all_kinds=True).save(folder / "codes.keras")
    image = data.load("digits").x_test[3]
    keras.utils.save_img(folder / "3.png", 255 * image, scale=False)
    return folder


def _printed(capsys, *arguments):
    capsys.readouterr()
    with quick.eager():
        assert main([*map(str, arguments)]) == 0
    return json.loads(capsys.readouterr().out)


def test_evaluate_and_predict(folder, capsys):
    found = [
        _printed(capsys, "evaluate", folder / name, "--data", "digits", "--json")
        for name in ("float.keras", "codes.keras")
    ]
    assert found[0]["confusion"] == found[1]["confusion"]
    found = [
        _printed(capsys, "predict", folder / name, folder / "3.png", "--json")
        for name in ("float.keras", "codes.keras")
    ]
    tops = [[(each["class"], each["score"]) for each in one["top"]] for (one,) in found]
    (names, scores), (coded_names, coded_scores) = (
        zip(*top, strict=True) for top in tops
    )
    assert names == coded_names
    # Some processors' kernels add in another order with codes.
    assert scores == pytest.approx(coded_scores, rel=1e-5)


def test_reconstruct(folder, tmp_path, capsys):
    pictures = {}
    for name in ("float", "codes"):
        command = ["reconstruct", folder / f"{name}.keras", "--data", "digits"]
        command += ["--images", "2", "--output", tmp_path / name]
        with quick.eager():
            assert main([*map(str, command)]) == 0
        pictures[name] = matplotlib.image.imread(
            tmp_path / name / "reconstructions.png"
        )
    np.testing.assert_allclose(pictures["codes"], pictures["float"], atol=0.01)
    assert [each.name for each in (tmp_path / "codes").iterdir()] == [
        "reconstructions.png"
    ]
