# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Weights of other capsule code, taken along as docs/migrating.md has it."""

import fresh
import h5py
import keras
import numpy as np
import other_networks
import pytest
import tensorflow as tf
from reference import capsule_routing, squash

import tf_capsops

_IMAGES = np.random.default_rng(1).uniform(size=(2, 28, 28, 1))
_CAPSULES = np.random.default_rng(4).normal(0, 0.3, (2, 1152, 8))
_SEGCAPS, _DEEPCAPS = (
    other_networks.segcaps_weights(),
    other_networks.deepcaps_weights(),
)


def _write_h5(path, groups):
    """Writes weights, by layer, as `save_weights` of Keras 2 does."""
    with h5py.File(path, "w") as file:
        for layer, weights in groups.items():
            group = file.create_group(layer)
            names = [f"{layer}/{i}:0" for i in range(len(weights))]
            group.attrs["weight_names"] = names
            for name, value in zip(names, weights):
                group[name] = value.astype(np.float32)


def _write_checkpoint(path, variables):
    """Writes variables by name, as TensorFlow 1 does."""
    tf.raw_ops.SaveV2(
        prefix=str(path),
        tensor_names=list(variables),
        shape_and_slices=[""] * len(variables),
        tensors=[value.astype(np.float32) for value in variables.values()],
    )


def _capsnet_keras():
    """Returns weights as CapsNet-Keras has them, by layer."""
    rng = np.random.default_rng(0)
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


def _paper():
    """Returns the variables of van de Wolfshaar's `digit_caps`, without custom op."""
    rng = np.random.default_rng(3)
    return {
        "DigitCaps/weights": rng.normal(0, 0.1, (1152, 160, 8)),
        "DigitCaps/logits": rng.normal(0, 1, (1, 1152, 10)),
    }


def _efficient_capsnet():
    """Returns weights as EscVM's Efficient-CapsNet has them, in the file's order."""
    rng = np.random.default_rng(2)
    trained, statistics = [], []
    channels = 1
    for kernel_size, filters in ((5, 32), (3, 64), (3, 64), (3, 128)):
        inputs = kernel_size**2 * channels
        kernel = kernel_size, kernel_size, channels, filters
        trained += [
            rng.normal(0, (2 / inputs) ** 0.5, kernel),
            *rng.normal(0.1, 0.3, [3, filters]),  # bias, gamma, beta
        ]
        statistics += [rng.normal(0, 0.3, filters), rng.uniform(0.5, 2, filters)]
        channels = filters
    trained += [
        rng.normal(0, 0.3, (9, 9, 1, 128)),
        rng.normal(0, 0.3, 128),
        rng.normal(0, 0.1, (10, 16, 8, 16)),
        rng.normal(0, 0.3, (10, 16, 1)),
    ]
    return [each.astype(np.float32) for each in trained + statistics]


@pytest.fixture(scope="module")
def migrated(tmp_path_factory):
    """Where the page's code has run, beside files as others write them."""
    folder = tmp_path_factory.mktemp("migrated")
    _write_h5(folder / "trained_model.h5", _capsnet_keras())
    theirs = {"Efficient_CapsNet": _efficient_capsnet()}
    _write_h5(folder / "efficient_capsnet_MNIST.h5", theirs)
    _write_h5(folder / "segcapsr3.hdf5", _SEGCAPS)
    _write_h5(folder / "best_weights_1.h5", _DEEPCAPS)
    _write_checkpoint(folder / "model.ckpt", _paper())
    code = fresh.code_of(fresh.ROOT / "docs" / "migrating.md")
    save = "import numpy; numpy.save('digits.npy', digit_caps(numpy.load('in.npy')))"
    np.save(folder / "in.npy", _CAPSULES)
    fresh.run(f"{code}\n{save}", cwd=folder)
    return folder


def test_weights_of_capsnet_keras_give_its_results(migrated):
    model = keras.saving.load_model(migrated / "capsnet.keras")
    outputs = model.predict(_IMAGES, verbose=0)

    arrays = _capsnet_keras()
    conv, bias = arrays["conv1"]
    features = np.maximum(keras.ops.conv(_IMAGES, conv).numpy() + bias, 0)
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


def test_weights_of_efficient_capsnet_give_its_results(migrated):
    loaded = keras.saving.load_model(migrated / "efficient_capsnet.keras")
    # In float64, on numbers that float32 has too, nothing but equations can differ.
    model = tf_capsops.models.efficient_capsnet((28, 28, 1), 10, dtype="float64")
    model.set_weights(loaded.get_weights())
    capsules = keras.Model(model.inputs, model.get_layer("class_caps").output[0])
    images = _IMAGES.astype(np.float32)
    ours = capsules.predict(images, verbose=0)[:, :, 0]

    theirs = _of_efficient_capsnet(images, _efficient_capsnet())
    np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-13)
    lengths = np.sqrt(np.square(theirs).sum(-1) + 1e-7)
    outputs = loaded.predict(images, verbose=0)
    np.testing.assert_allclose(outputs, lengths, atol=1e-5)


def _of_efficient_capsnet(images, weights):
    """Returns the class capsules `[B, 10, 16]` of EscVM's network, in float64."""
    weights = [each.astype(np.float64) for each in weights]
    trained, statistics = iter(weights[:20]), iter(weights[20:])
    features = images.astype(np.float64)
    for stride in (1, 1, 1, 2):
        kernel, bias, gamma, beta = (next(trained) for _ in range(4))
        features = keras.ops.conv(features, kernel, stride).numpy() + bias
        mean, variance = next(statistics), next(statistics)
        normalized = (np.maximum(features, 0) - mean) / np.sqrt(variance + 1e-3)
        features = gamma * normalized + beta
    kernel, bias, weights, priors = trained
    # The kernel of 128 groups covers the whole map.
    properties = np.einsum("byxc,yxc->bc", features, kernel[:, :, 0]) + bias
    primary = _squashed(properties.reshape(-1, 16, 8))
    votes = np.einsum("bik,jikd->bjid", primary, weights)
    agreement = np.einsum("bjid,bjnd->bji", votes, votes) / np.sqrt(16)
    shares = np.exp(agreement - agreement.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    return _squashed(((shares[..., None] + priors) * votes).sum(2))


def _squashed(vectors):
    norm = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return (1 - 1 / np.exp(norm)) * vectors / norm


def test_weights_of_segcaps_give_its_results(migrated):
    model = keras.saving.load_model(migrated / "segcaps.keras")
    images = _IMAGES[:, :16, :24]
    expected = other_networks.segcaps_lengths(images, _SEGCAPS)
    assert np.ptp(expected) > 0.2
    np.testing.assert_allclose(model.predict(images, verbose=0), expected, atol=1e-4)
    names = "recon_1", "recon_2", "out_recon"
    drawn = [each for name in names for each in _SEGCAPS[name]]
    for ours, theirs in zip(model.decoder.get_weights(), drawn, strict=True):
        np.testing.assert_array_equal(ours, theirs.astype(np.float32))


def test_weights_of_deepcaps_give_its_capsules(migrated):
    model = keras.saving.load_model(migrated / "deepcaps.keras")
    layer = model.encoder.get_layer
    cell = keras.Model(model.encoder.inputs, layer("cell_3").output)
    expected = other_networks.deepcaps_cell_3(_IMAGES, _DEEPCAPS)
    found = cell.predict(_IMAGES, verbose=0)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5)
    # A vote of a child for a parent in each of the layers that are routed.
    W, _ = _DEEPCAPS["digit_caps"]
    ours = layer("digit_caps").kernel.numpy()
    np.testing.assert_allclose(ours[17, 3], W[3, 17], rtol=1e-6)
    W, b = _DEEPCAPS["conv_capsule_layer3d_1"]
    ours, bias = layer("cell_4_around").get_weights()
    for parent, entry in ((0, 0), (9, 5), (31, 7)):
        theirs = np.moveaxis(W[..., 0, 8 * parent + entry], 0, -1)
        np.testing.assert_allclose(ours[..., parent, entry], theirs, rtol=1e-6)
        assert bias[parent, entry] == np.float32(b[parent, entry, 0, 0])
    capsule = np.random.default_rng(6).normal(size=(2, 32))
    masked = np.zeros([2, 10, 32])
    masked[0, 3], masked[1, 8] = capsule
    drawn = other_networks.deepcaps_drawn(capsule, _DEEPCAPS)
    np.testing.assert_allclose(
        model.decoder.predict(masked.reshape(2, 320), verbose=0),
        1 / (1 + np.exp(-drawn)),
        atol=1e-5,
    )


def test_a_checkpoint_of_the_papers_code_gives_its_results(migrated):
    variables = _paper()
    votes = np.einsum("iek,bik->bie", variables["DigitCaps/weights"], _CAPSULES)
    votes = votes.reshape(2, 1152, 10, 16)
    logits = variables["DigitCaps/logits"]

    def digits():
        shares = np.exp(logits) / np.exp(logits).sum(2, keepdims=True)
        return squash.forward((shares[..., None] * votes).sum(1))

    for _ in range(3):
        logits = logits + (digits()[:, None] * votes).sum(3)
    np.testing.assert_allclose(np.load(migrated / "digits.npy"), digits(), rtol=1e-4)
