# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The Python of each page runs as it stands, block after block in one session."""

import re

import fresh
import h5py
import keras
import numpy as np
import pytest
from reference import capsule_routing

import tf_capsops

_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_PAGES = [fresh.ROOT / "README.md", *sorted((fresh.ROOT / "docs").rglob("*.md"))]
_CODE = {
    str(page.relative_to(fresh.ROOT)): code
    for page in _PAGES
    if (code := "\n".join(_BLOCK.findall(page.read_text())))
}
# What a page may use without having made it.
_READER = """
import keras, numpy as np, tensorflow as tf, tf_capsops
images = np.random.default_rng(0).uniform(size=(8, 28, 28, 1))
labels = keras.utils.to_categorical(np.arange(8), 10)
model = tf_capsops.models.p_capsnet((28, 28, 1), 10)
model.compile("adam", tf_capsops.losses.MarginLoss(), metrics=["accuracy"])
"""
_OF_CAPSNET_KERAS = "docs/migrating.md"
_ELSEWHERE = {_OF_CAPSNET_KERAS, "docs/serving.md"}  # tests/layers/test_serving.py


@pytest.mark.slow
def test_blocks_run_as_they_stand(tmp_path):
    # One process, since importing TensorFlow takes longer than most pages.
    pages = {page: _CODE[page] for page in _CODE.keys() - _ELSEWHERE}
    assert len(pages) > 5
    fresh.run(
        f"for page, code in {pages!r}.items():\n"
        f"    exec(compile({_READER!r} + code, page, 'exec'), {{}})",
        cwd=tmp_path,
    )


def _arrays(rng):
    """Returns weights as CapsNet-Keras has them, by layer."""
    units = 160, 512, 1024, 784
    dense = [(units[i], units[i + 1]) for i in range(3)]
    shapes = {
        "conv1": [(9, 9, 1, 256), (256,)],
        "primarycap_conv2d": [(9, 9, 256, 256), (256,)],
        "digitcaps": [(10, 1152, 16, 8)],
        "decoder": [shape for pair in dense for shape in (pair, pair[1:])],
    }
    return {
        layer: [
            rng.normal(0, 0.1 if layer == "digitcaps" else 0.02, shape)
            for shape in each
        ]
        for layer, each in shapes.items()
    }


def test_weights_of_capsnet_keras_give_its_results(tmp_path):
    arrays = _arrays(np.random.default_rng(0))
    with h5py.File(tmp_path / "trained_model.h5", "w") as file:
        for layer, weights in arrays.items():
            group = file.create_group(layer)
            names = [f"{layer}/{i}:0" for i in range(len(weights))]
            group.attrs["weight_names"] = names
            for name, value in zip(names, weights):
                group[name] = value.astype(np.float32)
    fresh.run(_READER + _CODE[_OF_CAPSNET_KERAS], cwd=tmp_path)
    model = keras.saving.load_model(tmp_path / "capsnet.keras")
    images = np.random.default_rng(1).uniform(size=(2, 28, 28, 1))
    outputs = model.predict(images, verbose=0)

    conv, bias = arrays["conv1"]
    features = np.maximum(keras.ops.conv(images, conv).numpy() + bias, 0)
    conv, bias = arrays["primarycap_conv2d"]
    vectors = keras.ops.conv(features, conv, 2).numpy() + bias
    capsules = tf_capsops.squash(vectors.reshape(2, 1152, 8)).numpy()
    ours = arrays["digitcaps"][0].transpose(1, 0, 2, 3)
    digits = capsule_routing.forward(capsules, ours, np.zeros([1152, 10]), 3)
    lengths = np.linalg.norm(digits, axis=-1)
    np.testing.assert_allclose(outputs["lengths"], lengths, rtol=1e-4)
    chosen = np.where(lengths[..., None] == lengths.max(1)[:, None, None], digits, 0)
    signal = chosen.reshape(2, 160)
    for layer, activation in enumerate(
        (keras.ops.relu, keras.ops.relu, keras.ops.sigmoid)
    ):
        kernel, bias = arrays["decoder"][2 * layer : 2 * layer + 2]
        signal = activation(signal @ kernel + bias).numpy()
    np.testing.assert_allclose(
        outputs["reconstruction"].reshape(2, 784), signal, rtol=1e-4
    )
