# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Conv3D is Keras' in all but its kernel."""

import keras
import layer_testing
import numpy as np
import pytest
import tensorflow as tf
import tolerances

import tf_capsops
from tf_capsops import inq, kernels, layers
from tf_capsops.layers import Conv3D, conv3d

VOLUMES = np.random.default_rng(1).normal(size=(2, 7, 6, 5, 4)).astype("float32")
DILATED = {"kernel_size": 3, "dilation_rate": 2, "padding": "same"}
WINDOWS = {
    "dilations": {"kernel_size": (3, 2, 2), "dilation_rate": (2, 3, 1)},
    "same": DILATED,
    "undilated": {"kernel_size": (2, 3, 1)},
}
THEIRS = {
    "strides": {"kernel_size": 3, "strides": (2, 1, 2), "padding": "same"},
    "strides_of_a_voxel": {"kernel_size": 1, "strides": 2},
    "groups": {"kernel_size": 3, "groups": 2},
    "groups_of_a_voxel": {"kernel_size": 1, "groups": 2},
}


class Conv3DTest(layer_testing.TestCase):
    def test_layer(self):
        self.run_layer_test(
            Conv3D,
            {
                "filters": 5,
                "kernel_size": 3,
                "strides": 2,
                "activation": "relu",
                "kernel_regularizer": "l2",
                "bias_constraint": "non_neg",
            },
            input_shape=(2, 7, 7, 7, 3),
            expected_output_shape=(2, 3, 3, 3, 5),
            expected_num_trainable_weights=2,
            expected_num_losses=1,
        )


def _ours(monkeypatch):
    monkeypatch.setattr(conv3d, "ours_is_faster", lambda *_: True)
    monkeypatch.setattr(conv3d, "has_gpus", lambda: True)


def _built(kind, **arguments):
    layer = kind(8, bias_initializer="normal", **arguments)
    layer.build(VOLUMES.shape)
    return layer


def both(**arguments):
    """Makes Keras' layer and ours, with the same weights."""
    theirs, ours = _built(keras.layers.Conv3D, **arguments), _built(Conv3D, **arguments)
    ours.set_weights(theirs.get_weights())
    return theirs, ours


def _with_gradients(layer, volumes=VOLUMES):
    """Returns the outputs, and the gradients of volumes and weights."""
    volumes = tf.cast(volumes, layer.compute_dtype)
    with tf.GradientTape() as tape:
        tape.watch(volumes)
        outputs = layer(volumes)
        wide = tf.cast(outputs, tf.float64)
        loss = tf.reduce_sum(wide * tf.cos(wide))
    return [outputs, *tape.gradient(loss, [volumes, *layer.trainable_variables])]


def _assert_as_keras(found, theirs, **arguments):
    exact = _built(keras.layers.Conv3D, dtype="float64", **arguments)
    exact.set_weights(theirs.get_weights())
    truths = map(np.asarray, _with_gradients(exact))
    for each in zip(found, truths, _with_gradients(theirs), strict=True):
        tolerances.assert_close(*each)


@pytest.mark.parametrize("name", WINDOWS)
def test_same_results(name, device, monkeypatch):
    _ours(monkeypatch)
    arguments = {**WINDOWS[name], "activation": "relu"}
    theirs, ours = both(**arguments)
    with kernels.recorded() as ran:
        found = _with_gradients(ours)
    assert {op for op, *_ in ran} == {
        *("CapsuleConv", "CapsuleConvBackpropInput", "CapsuleConvBackpropWeights")
    }
    _assert_as_keras(found, theirs, **arguments)


def test_compiled_with_sizes_that_are_unknown(device, monkeypatch):
    _ours(monkeypatch)
    theirs, ours = both(**DILATED)
    compute = tf.function(
        lambda volumes: _with_gradients(ours, volumes),
        input_signature=[tf.TensorSpec([None, None, None, None, 4])],
    )
    _assert_as_keras(compute(VOLUMES), theirs, **DILATED)
    compiled = tf.function(lambda volumes: _with_gradients(ours, volumes), None, True)
    _assert_as_keras(compiled(VOLUMES), theirs, **DILATED)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision(policy, device, monkeypatch):
    _ours(monkeypatch)
    layer = _built(Conv3D, **DILATED, dtype=policy)
    found = layer(VOLUMES)
    assert found.dtype == policy.removeprefix("mixed_")
    exact = _built(keras.layers.Conv3D, dtype="float64", **DILATED)
    exact.set_weights(
        [tf.cast(each, layer.compute_dtype) for each in layer.get_weights()]
    )
    truth = np.asarray(exact(tf.cast(VOLUMES, layer.compute_dtype)))
    tolerances.assert_close(found, truth, tf.cast(truth, found.dtype))


def test_windows_of_a_voxel_are_products(device, monkeypatch):
    _ours(monkeypatch)
    arguments = {"kernel_size": 1, "activation": "relu", "padding": "same"}
    theirs, ours = both(**arguments)
    compute = tf.function(
        lambda volumes: _with_gradients(ours, volumes),
        input_signature=[tf.TensorSpec([None, None, None, None, 4])],
    )
    operations = compute.get_concrete_function().graph.get_operations()
    assert not {"Conv3D", "CapsuleConv"} & {each.type for each in operations}
    _assert_as_keras(compute(VOLUMES), theirs, **arguments)


@pytest.mark.parametrize("name", THEIRS)
def test_others_are_tensorflows(name, device, monkeypatch):
    _ours(monkeypatch)
    theirs, ours = both(**THEIRS[name])
    with kernels.recorded() as ran:
        np.testing.assert_array_equal(ours(VOLUMES), theirs(VOLUMES))
    assert not ran


@pytest.mark.parametrize("arguments", [DILATED, {"kernel_size": 1}])
def test_without_gpus_and_portable_all_are_tensorflows(arguments, monkeypatch):
    theirs, ours = both(**arguments)
    if not tf.config.get_visible_devices("GPU"):
        np.testing.assert_array_equal(ours(VOLUMES), theirs(VOLUMES))
    _ours(monkeypatch)
    with kernels.recorded() as ran, tf_capsops.portable():
        np.testing.assert_array_equal(ours(VOLUMES), theirs(VOLUMES))
    assert not ran


def test_channels_first_is_refused():
    layer = Conv3D(8, 3, data_format="channels_first")
    text = "Conv3D: data_format must be 'channels_last', got 'channels_first'"
    with pytest.raises(ValueError, match=text):
        layer(VOLUMES)


HOPPER, AMPERE = {"compute_capability": (9, 0)}, {"compute_capability": (8, 0)}
SECOND, THIRD = (5, 5, 5, 16, 32), (5, 5, 5, 32, 64)
FEW = [(3, 3, 3, 16, 32), (5, 5, 5, 8, 32), (5, 5, 5, 16, 16), (5, 5, 5, 18, 32)]


@pytest.mark.parametrize(
    "gpus, tf32, dtype, faster",
    [
        ([HOPPER], True, tf.float32, True),
        ([HOPPER, HOPPER], True, tf.float32, True),
        ([HOPPER, AMPERE], True, tf.float32, False),
        ([HOPPER], False, tf.float32, False),
        ([HOPPER], False, tf.bfloat16, True),
        ([HOPPER], True, tf.float64, False),
        ([AMPERE], True, tf.bfloat16, False),
        ([], True, tf.float32, False),
        ([], True, tf.bfloat16, False),
    ],
)
def test_rule(gpus, tf32, dtype, faster, monkeypatch):
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: gpus)
    monkeypatch.setattr(tf.config.experimental, "get_device_details", lambda gpu: gpu)
    tf.config.experimental.enable_tensor_float_32_execution(tf32)

    def chosen(shape, *dilations):
        return conv3d.ours_is_faster(shape, dilations, dtype)

    assert {chosen(shape, 2, 2, 2) for shape in (SECOND, THIRD)} == {faster}
    assert chosen(SECOND, 1, 1, 2) == faster
    assert not chosen(SECOND, 1, 1, 1)
    assert not any(chosen(shape, 2, 2, 2) for shape in FEW)


def test_files_of_keras_layers(tmp_path):
    theirs, ours = both(**DILATED)
    saved, loaded = (
        keras.Sequential([keras.Input(VOLUMES.shape[1:]), layer])
        for layer in (theirs, Conv3D(8, **DILATED))
    )
    saved.save_weights(tmp_path / "conv.weights.h5")
    loaded.load_weights(tmp_path / "conv.weights.h5")
    np.testing.assert_array_equal(loaded(VOLUMES), ours(VOLUMES))
    loaded.save(tmp_path / "conv.keras")
    (again,) = keras.saving.load_model(tmp_path / "conv.keras").layers
    assert type(again) is Conv3D
    np.testing.assert_array_equal(again(VOLUMES), ours(VOLUMES))
    assert Conv3D.from_config(theirs.get_config()).get_config() == theirs.get_config()


def test_converts_to_codes():
    layer = Conv3D(2, 2, kernel_initializer="ones", dilation_rate=2, activation="relu")
    model = keras.Sequential([keras.Input((4, 3, 3, 1)), layer])
    (converted,) = inq.convert(model, all_kinds=True).layers
    assert type(converted) is layers.InqConv3D
    volumes = tf.ones([1, 4, 3, 3, 1])
    np.testing.assert_array_equal(converted(volumes), layer(volumes))
