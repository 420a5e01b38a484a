# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Commands that take a DeepCaps, which decodes but has no routing coefficients."""

import json

import numpy as np
import pytest
import tensorflow as tf

from tf_capsops.__main__ import main
from tf_capsops.models import deepcaps


@pytest.fixture
def file(tmp_path):
    model = deepcaps((8, 8, 1), 10, size="small")
    model.compile()
    model.save(tmp_path / "model.keras")
    return str(tmp_path / "model.keras")


def test_commands_take_a_deepcaps(file, tmp_path, capsys):
    assert main(["evaluate", file, "--data", "digits", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["images"] == 360 and found["reconstruction_rmse"] > 0
    picture = tmp_path / "zero.png"
    png = tf.io.encode_png(np.zeros([8, 8, 1], np.uint8))
    picture.write_bytes(png.numpy())
    assert main(["predict", file, str(picture), "--json"]) == 0
    (answer,) = json.loads(capsys.readouterr().out)
    assert 0 <= answer["score"] < 1
    output = tmp_path / "drawn"
    options = ["--data", "digits", "--images", "2", "--output", str(output)]
    assert main(["reconstruct", file, *options]) == 0
    written = sorted(path.name for path in output.iterdir())
    assert written == ["perturbations.png", "reconstructions.png"]
    assert main(["reconstruct", file, *options, "--beside", file]) == 2
    assert "has no routing to draw" in capsys.readouterr().err
