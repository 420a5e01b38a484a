# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The service of docs/serving.md answers requests with our ops, over HTTP."""

import concurrent.futures
import json
import re
import urllib.error
import urllib.request

import fresh
import keras
import numpy as np
import pytest
import small
import tensorflow as tf

from tf_capsops import kernels

_SERVER = """
import os
import uvicorn
os.dup2(1, 2)  # uvicorn names its address on stderr
uvicorn.run("serve:app", port=0, app_dir=".")
"""


def _page():
    return (fresh.ROOT / "docs" / "serving.md").read_text()


@pytest.fixture(scope="module")
def model():
    return small.capsnet((9, 8, 1), 10)


@pytest.fixture(scope="module")
def address(model, tmp_path_factory):
    """Returns the URL of the model in a service that runs while there are tests."""
    folder = tmp_path_factory.mktemp("service")
    code = re.search(r"^```python\n(.*?)^```$", _page(), re.DOTALL | re.MULTILINE)[1]
    (folder / "serve.py").write_text(code)
    model.inference_model().export(folder / "capsnet", verbose=False)
    server = fresh.start(_SERVER, cwd=folder, MODEL=str(folder / "capsnet"))
    for line in server.stdout:
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


def _refused(address, body=None, **headers):
    """Returns the status and the text of an answer that is an error."""
    request = urllib.request.Request(address, body, headers)
    with pytest.raises(urllib.error.HTTPError) as caught:
        _asked(request)
    return caught.value.code, json.load(caught.value)["error"]


def _with(pixel):
    """An image as JSON, whose last pixel is this text."""
    image = np.full([1, 9, 8, 1], 0.5).tolist()
    image[0][-1][-1] = ["last"]
    return json.dumps({"instances": image}).replace('"last"', pixel).encode()


def test_an_image_with_a_last_pixel(address):
    for pixel in ("0", "1", "0.25", "-3.0", "1e-300"):
        assert len(_asked(f"{address}:predict", _with(pixel))["predictions"]) == 1


_FORM = 'the body must be JSON, {"instances": [image, ...]}, of images of one shape'
_SHAPE = "instances must be (None, 9, 8, 1), got "
_NUMBERS = "instances must be numbers, got "
_FINITE = "instances must be finite numbers"
_SCALE = "if they are pixels from 0 to 255, divide by 255"


@pytest.mark.parametrize(
    "body, text",
    [
        (b"", f"{_FORM}: Expecting value: line 1 column 1 (char 0)"),
        (b"{", f"{_FORM}: Expecting property name"),
        (b"\xff\xfe\xfd", f"{_FORM}: 'utf-16"),
        (b'{"instances": "\xff"}', f"{_FORM}: 'utf-8' codec can't decode byte 0xff"),
        (b'{"instances": 1' + 5000 * b"0" + b"}", f"{_FORM}: Exceeds the limit"),
        (b'{"instances": [[1], [1, 2]]}', "inhomogeneous shape"),
        (b'{"instances": ' + b"[" * 100 + b"]" * 100 + b"}", f"{_FORM}: setting"),
        *((each, f"{_FORM}$") for each in (b"{}", b"[]", b"[1, 2]", b"5", b"null")),
        *((each, f"{_FORM}$") for each in (b'"instances"', b'{"images": []}')),
        (b"[" * 100_000, f"{_FORM}$"),
        (b'{"instances": ' + b"[" * 100_000, f"{_FORM}$"),
        (b'{"instances": []}', f"{_SHAPE}(0,)"),
        (b'{"instances": [[1, 2]]}', f"{_SHAPE}(1, 2)"),
        (b'{"instances": 5}', f"{_SHAPE}()"),
        (b'{"instances": "digit"}', f"{_SHAPE}()"),
        (b'{"instances": {"a": 1}}', f"{_SHAPE}()"),
        (_with("null"), f"{_NUMBERS}object"),
        (_with('"0.5"'), f"{_NUMBERS}<U"),
        (_with("{}"), f"{_NUMBERS}object"),
        (_with("1" + 400 * "0"), f"{_NUMBERS}object"),
        (_with("true").replace(b"0.5", b"true"), f"{_NUMBERS}bool"),
        *((_with(each), _FINITE) for each in ("NaN", "Infinity", "-Infinity")),
        *((_with(each), _FINITE) for each in ("1e999", "1e300")),
        (_with("255"), f"got 255: {_SCALE}"),
        (_with("255.0"), f"got 255: {_SCALE}"),
        (_with("255").replace(b"0.5", b"1"), f"got 255: {_SCALE}"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_bad_requests_are_told_why(address, body, text):
    code, error = _refused(f"{address}:predict", body)
    assert code == 400
    assert text in f"{error}$"


def test_large_requests_are_refused(address):
    code, error = _refused(f"{address}:predict", b" " * (8 << 20) + _with("1"))
    assert (code, error) == (413, "the body must have at most 8388608 bytes")


def test_other_methods_and_places(address):
    assert _refused(f"{address}:predict") == (405, "Method Not Allowed")
    assert _refused(address, b"{}") == (405, "Method Not Allowed")
    assert _refused(f"{address}s") == (404, "Not Found")


def test_scores_alone_are_exported_without_the_decoder(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (fresh.ROOT / "docs" / "layers.md").read_text()
    code = re.search(r"^network = .*?(?=^```$)", page, re.DOTALL | re.MULTILINE)[0]
    exec(code, {"keras": keras, "again": model})
    images = np.random.default_rng(2).random((2, 9, 8, 1), np.float32)
    expected = model(images)
    both = tf.saved_model.load("exported")
    alone = tf.saved_model.load("exported_scores")
    for found in (both.serve(images)["lengths"], alone.serve(images)):
        np.testing.assert_allclose(found, expected["lengths"], rtol=0, atol=1e-6)
    weights = sorted(tuple(each.shape) for each in alone.variables)
    kept = [*model.encoder.variables, *model.length.variables]
    assert weights == sorted(tuple(each.shape) for each in kept)
    assert len(both.variables) == len(weights) + len(model.decoder.variables)


def test_the_rule_for_tensorflow_serving_has_all_sources():
    """All that make no kernels for GPUs and XLA, nor those of other papers."""
    sources = (fresh.ROOT / "cc").rglob("*.cc")
    places = {str(path.parent.relative_to(fresh.ROOT)) for path in sources}
    named = set(re.findall(r'"(cc/[\w/]*)/\*\.cc"', _page()))
    assert named == places - {"cc/studies", "cc/xla"}
