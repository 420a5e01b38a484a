# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""A trace of a training step names our ops, and tools/trace_picture.py draws it."""

import fresh
import pytest

from tools import trace_picture

_TRACE = """
import keras, sys
import numpy as np
from tf_capsops import models
model = models.capsnet((8, 8, 1), 3, filters=4, kernel_size=3, primary_kernel_size=3)
model.compile(jit_compile=False)
trace = keras.callbacks.TensorBoard(sys.argv[1], profile_batch=(3, 5))
images, labels = np.ones([12, 8, 8, 1], np.float32), np.zeros(12)
model.fit(images, labels, batch_size=2, callbacks=[trace], verbose=0)
"""


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    """A folder with the trace of three training steps on the CPU."""
    folder = tmp_path_factory.mktemp("logs")
    fresh.run(_TRACE, folder, CUDA_VISIBLE_DEVICES="-1")
    return folder


@pytest.mark.ci
def test_ops_have_the_names_of_their_layers(logs):
    events = trace_picture.step(trace_picture.read(logs), "RoutingWithSums")
    names = {event.type: event.name for event in events}
    assert "/digit_caps" in names["CapsuleRoutingWithSums"]
    assert "gradient_tape/" in names["CapsuleRoutingGrad"]
    for op in ("CapsuleRoutingWithSums", "CapsuleRoutingGrad"):
        assert sum(event.type == op for event in events) == 1


def test_a_step_is_drawn(logs, tmp_path):
    picture = tmp_path / "trace.png"
    assert trace_picture.main([str(logs), "--output", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_mistakes(logs, tmp_path, capsys):
    assert trace_picture.main([str(tmp_path)]) == 1
    assert f"no trace in {tmp_path}" in capsys.readouterr().err
    assert trace_picture.main([str(logs), "--marker", "nothing"]) == 1
    assert "0 events match 'nothing'" in capsys.readouterr().err
