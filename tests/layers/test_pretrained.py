# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""models.load_pretrained: from a folder and from a server, and what it refuses."""

import functools
import hashlib
import http.server
import json
import threading

import numpy as np
import pytest

from tf_capsops import data, models
from tf_capsops.models.pretrained import SHIPPED

_IMAGES = np.linspace(0, 1, 128, dtype=np.float32).reshape(2, 8, 8, 1)


@pytest.fixture(scope="module")
def network():
    return models.p_capsnet((8, 8, 1), 3, (2,), (3,), (2,), pose_shape=(2, 2))


@pytest.fixture
def folder(network, tmp_path):
    """A release of one network."""
    network.save(tmp_path / "tiny.keras")
    checksum = hashlib.sha256((tmp_path / "tiny.keras").read_bytes()).hexdigest()
    (tmp_path / "manifest.json").write_text(json.dumps({"tiny": {"sha256": checksum}}))
    return tmp_path


@pytest.fixture
def url(folder, tmp_path_factory, monkeypatch):
    """Where a server of this machine serves that folder; Keras' cache is empty."""
    monkeypatch.setenv("KERAS_HOME", str(tmp_path_factory.mktemp("keras")))

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *arguments):
            pass

    handler = functools.partial(Quiet, directory=folder)
    with http.server.ThreadingHTTPServer(("localhost", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://localhost:{server.server_port}"
        server.shutdown()


def _assert_same(model, network):
    np.testing.assert_array_equal(model(_IMAGES), network(_IMAGES))


def test_from_a_folder_and_from_the_one_of_the_environment(
    folder, network, monkeypatch
):
    _assert_same(models.load_pretrained("tiny", folder), network)
    monkeypatch.setenv("TF_CAPSOPS_PRETRAINED", str(folder))
    _assert_same(models.load_pretrained("tiny"), network)


def test_the_network_of_the_package_reads_digits_at_once(monkeypatch):
    monkeypatch.delenv("TF_CAPSOPS_PRETRAINED", raising=False)
    card = json.loads((SHIPPED / "p_capsnet-digits.json").read_text())
    assert card["command"] == "tf-capsops train --recipe p_capsnet-digits --seed 0"
    assert (SHIPPED / "p_capsnet-digits.keras").stat().st_size == card["bytes"]
    assert sum(file.stat().st_size for file in SHIPPED.iterdir()) < 200_000
    model, digits = models.load_pretrained("p_capsnet-digits"), data.load("digits")
    labels = model.predict(digits.x_test, verbose=0).argmax(axis=1)
    assert len(labels) == card["images"]
    assert (labels != digits.y_test).sum() == card["wrong"] <= 2


def test_from_a_server_again_when_it_has_another_file(url, folder, network):
    _assert_same(models.load_pretrained("tiny", url), network)
    other = models.p_capsnet((8, 8, 1), 3, (2,), (3,), (2,), pose_shape=(2, 2))
    other.save(folder / "tiny.keras")
    checksum = hashlib.sha256((folder / "tiny.keras").read_bytes()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps({"tiny": {"sha256": checksum}}))
    _assert_same(models.load_pretrained("tiny", url), other)


def test_another_checksum_is_named_from_both(url, folder):
    content = (folder / "tiny.keras").read_bytes() + b"!"
    (folder / "tiny.keras").write_bytes(content)
    found = hashlib.sha256(content).hexdigest()
    for source in (url, folder):
        with pytest.raises(ValueError, match=f"has the SHA-256 checksum {found}, but"):
            models.load_pretrained("tiny", source)


def test_what_is_not_there(url, folder, tmp_path_factory, monkeypatch):
    monkeypatch.delenv("TF_CAPSOPS_PRETRAINED", raising=False)
    text = "give a folder or URL as source.* has p_capsnet-digits, not 'tiny'"
    with pytest.raises(ValueError, match=text):
        models.load_pretrained("tiny")
    empty = tmp_path_factory.mktemp("empty")
    for source in (f"{url}/nowhere", empty):
        with pytest.raises(ValueError, match=r"no manifest\.json in "):
            models.load_pretrained("tiny", source)
    (folder / "tiny.keras").unlink()
    for source in (url, folder):
        with pytest.raises(ValueError, match="has tiny, not 'large'"):
            models.load_pretrained("large", source)
        with pytest.raises(ValueError, match=r"tiny\.keras"):
            models.load_pretrained("tiny", source)


@pytest.mark.parametrize(
    "content", ["", "[]", '{"tiny": {}}', '{"tiny": {"sha256": 5}}']
)
def test_a_manifest_that_is_none(folder, content):
    (folder / "manifest.json").write_text(content)
    with pytest.raises(ValueError, match=r"no manifest\.json in "):
        models.load_pretrained("tiny", folder)
