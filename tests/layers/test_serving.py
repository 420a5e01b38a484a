# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The service of docs/serving.md answers requests with our ops, over HTTP."""

import concurrent.futures
import json
import re
import urllib.error
import urllib.request

import fresh
import numpy as np
import pytest

from tf_capsops import kernels, models

_SERVER = """
import sys
import uvicorn
uvicorn.run("serve:app", port=0)
"""


def _page():
    return (fresh.ROOT / "docs" / "serving.md").read_text()


@pytest.fixture(scope="module")
def model():
    return models.capsnet(
        *((9, 8, 1), 10),
        filters=4,
        kernel_size=3,
        primary_channels=2,
        primary_kernel_size=3,
        decoder_units=(8,),
    )


@pytest.fixture(scope="module")
def address(model, tmp_path_factory):
    """Returns the URL of the model in a service that runs while there are tests."""
    folder = tmp_path_factory.mktemp("service")
    code = re.search(r"^```python\n(.*?)^```$", _page(), re.DOTALL | re.MULTILINE)[1]
    (folder / "serve.py").write_text(code)
    model.inference_model().export(folder / "capsnet", verbose=False)
    server = fresh.start(_SERVER, cwd=folder, MODEL=str(folder / "capsnet"))
    for line in server.stderr:
        if found := re.search(r"running on (http://\S+)", line):
            break
    else:
        pytest.fail(f"The service ended: {server.communicate()}")
    yield f"{found[1]}/v1/models/capsnet"
    server.terminate()
    server.communicate()


def _asked(address, body=None):
    with urllib.request.urlopen(address, body) as response:
        return json.load(response)


def _predictions(address, images):
    body = json.dumps({"instances": images.tolist()}).encode()
    return _asked(f"{address}:predict", body)["predictions"]


def test_predictions_are_the_models(model, address):
    images = np.random.default_rng(0).random((5, 9, 8, 1), np.float32)
    found = _predictions(address, images)
    for name, expected in model(images).items():
        outputs = [each[name] for each in found]
        np.testing.assert_allclose(outputs, expected, rtol=0, atol=1e-6)
    with kernels.recorded() as calls:
        model(images)
    assert "CapsuleRouting" in str(calls)


def test_requests_at_the_same_time(model, address):
    batches = np.random.default_rng(1).random((8, 3, 9, 8, 1), np.float32)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        found = [*pool.map(lambda images: _predictions(address, images), batches)]
    for images, predictions in zip(batches, found, strict=True):
        lengths = [each["lengths"] for each in predictions]
        np.testing.assert_allclose(lengths, model(images)["lengths"], rtol=0, atol=1e-6)


def test_the_input_is_described(address):
    assert _asked(address) == {"inputs": {"images": [None, 9, 8, 1]}}


@pytest.mark.parametrize(
    "body, text",
    [
        (b'{"instances": [[1, 2]]}', "instances must be (None, 9, 8, 1), got (1, 2)"),
        (b'{"instances": [[1], [1, 2]]}', "inhomogeneous"),
        (b'{"instances": "digit"}', "could not convert"),
        (b'{"images": []}', "instances"),
        (b"[1, 2]", "must be integers"),
        (b"{", "Expecting"),
    ],
)
def test_bad_requests_are_told_why(address, body, text):
    with pytest.raises(urllib.error.HTTPError) as caught:
        _asked(f"{address}:predict", body)
    assert caught.value.code == 400
    assert text in json.load(caught.value)["error"]


def test_the_rule_for_tensorflow_serving_has_all_sources():
    """All that make no kernels for GPUs and XLA, nor those of other papers."""
    sources = (fresh.ROOT / "cc").rglob("*.cc")
    places = {str(path.parent.relative_to(fresh.ROOT)) for path in sources}
    named = set(re.findall(r'"(cc/[\w/]*)/\*\.cc"', _page()))
    assert named == places - {"cc/studies", "cc/xla"}
