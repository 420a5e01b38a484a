# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Commands that take a DeepCaps, which decodes but has no routing coefficients."""

import json

import numpy as np
import pytest
import tensorflow as tf

from tf_capsops.__main__ import main
from tf_capsops.models import deepcaps

pytestmark = pytest.mark.usefixtures("eagerly")


@pytest.fixture
def file(tmp_path):
    model = deepcaps((8, 8, 1), 10, size="small")
    model.compile()
    model.save(tmp_path / "model.keras")
    return str(tmp_path / "model.keras")


def test_a_deepcaps_is_trained(tmp_path, capsys):
    options = ["--model", "deepcaps", "--epochs", "1", "--batch-size", "250"]
    run = tmp_path / "run"
    assert main(["train", *options, "--output", str(run)]) == 0
    config = json.loads((run / "config.json").read_text())
    assert (config["model"], config["preset"]) == ("deepcaps", "small")
    assert config["network"] == {"size": "small", "routing_iterations": 3}
    assert (run / "reconstructions.png").exists()
    assert main(["train", "--model", "deepcaps", "--routing", "em"]) == 2
    assert "deepcaps has no choice of routing" in capsys.readouterr().err


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
