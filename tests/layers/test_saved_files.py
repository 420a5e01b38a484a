# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Files that earlier releases have written load, give what they gave, and train on."""

import pathlib
import zipfile

import fixtures
import fresh
import keras
import numpy as np
import pytest
import tensorflow as tf
from fixtures import converted_networks, networks

_RELEASES = {"b1f56db": networks, "9103560": converted_networks}
_BUILDS = {
    f"{release}/{name}": build
    for release, module in _RELEASES.items()
    for name, build in module.NETWORKS.items()
}

every_network = pytest.mark.parametrize("name", _BUILDS)

# Loads SavedModels in a process that imports the package and nothing else of ours.
_LOAD = """
import pathlib
import sys
import tf_capsops
import numpy as np
import tensorflow as tf
tf.config.experimental.enable_tensor_float_32_execution(False)
root, results = pathlib.Path(sys.argv[1]), {}
def keep(name, outputs):
    for number, output in enumerate(tf.nest.flatten(outputs)):
        results[f"{name}_{number}"] = output
for name in sys.argv[3:]:
    inputs = np.load(root / name / "arrays.npz")["inputs"]
    model = tf.saved_model.load(root / name / "exported")
    keep(f"{name}_exported", model.serve(inputs))
    model = tf.saved_model.load(root / name / "saved")
    keep(f"{name}_saved", model.signatures["serving_default"](tf.constant(inputs)))
operators = tf.saved_model.load(root / "operators")
keep("operators", operators.results(tf.constant(0.7)))
np.savez(sys.argv[2], **results)
"""


@pytest.fixture(scope="module")
def releases(tmp_path_factory):
    """The directory of the files that releases have written, in one of each."""
    folder = tmp_path_factory.mktemp("releases")
    for name in _RELEASES:
        archive = pathlib.Path(fixtures.__file__).with_name(f"{name}.zip")
        with zipfile.ZipFile(archive) as file:
            file.extractall(folder / name)
    return folder


@pytest.fixture(scope="module")
def release(releases):
    """The directory of the files of the release that has saved SavedModels."""
    return releases / "b1f56db"


@pytest.fixture(scope="module")
def served(release):
    """Returns the outputs of the SavedModels in a fresh process."""
    results = release / "served.npz"
    fresh.run(_LOAD, release, results, *networks.NETWORKS)
    return dict(np.load(results))


def _arrays(folder, name):
    file = np.load(folder / "arrays.npz")
    return [file[key] for key in file if key.startswith(name)]


def _assert_close(outputs, expected):
    outputs = keras.tree.flatten(outputs)
    assert len(outputs) == len(expected) > 0
    for output, each in zip(outputs, expected):
        # Sums may cancel, and devices add in another order.
        atol = 1e-6 * np.abs(each).max(initial=0)
        np.testing.assert_allclose(output, each, rtol=1e-4, atol=atol)


def _assert_is_as_saved(model, folder):
    """Compares what a model gives, before and after one more step of training."""
    (inputs,) = _arrays(folder, "inputs")
    outputs = model(inputs)
    _assert_close(outputs, _arrays(folder, "outputs"))
    targets = _arrays(folder, "targets")
    if model.loss == "mse":
        targets = keras.tree.pack_sequence_as(outputs, targets)
    else:
        (targets,) = targets
    model.run_eagerly = True  # nothing is traced
    model.train_on_batch(inputs, targets)
    _assert_close(model(inputs), _arrays(folder, "trained"))


@every_network
def test_keras_file(releases, name):
    folder = releases / name
    _assert_is_as_saved(keras.saving.load_model(folder / "model.keras"), folder)


def _load_weights(model, folder):
    model.load_weights(folder / "model.weights.h5")


def _restore_checkpoint(model, folder):
    checkpoint = tf.train.Checkpoint(model=model)
    checkpoint.read(str(folder / "checkpoint")).assert_consumed()


@every_network
@pytest.mark.parametrize("load", [_load_weights, _restore_checkpoint])
def test_weights(releases, name, load):
    folder = releases / name
    model = _BUILDS[name]()
    model.optimizer.build(model.trainable_variables)
    load(model, folder)
    _assert_is_as_saved(model, folder)


def test_a_list_of_weights(releases):
    folder = releases / "9103560/kinds"
    model = converted_networks.kinds()
    model.set_weights(_arrays(folder, "weights"))
    _assert_close(model(*_arrays(folder, "inputs")), _arrays(folder, "outputs"))


@pytest.mark.parametrize("name", networks.NETWORKS)
@pytest.mark.parametrize("kind", ["exported", "saved"])
def test_saved_model(release, served, name, kind):
    prefix = f"{name}_{kind}_"
    outputs = [served[key] for key in served if key.startswith(prefix)]
    _assert_close(outputs, _arrays(release / name, "outputs"))


def test_operators(release, served):
    file = np.load(release / "operators.npz")
    expected = [file[name] for name in sorted(file)]
    outputs = [served[key] for key in served if key.startswith("operators_")]
    _assert_close(outputs, expected)
