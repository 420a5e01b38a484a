# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""What is exported under `tf_capsops.portable` runs where nothing of ours is."""

import functools

import fresh
import keras
import numpy as np
import pytest
import small
import tensorflow as tf

import tf_capsops
from tf_capsops import kernels, layers, models, routing
from tf_capsops.models.deepcaps import GlobalSlimCaps2D

# Runs SavedModels as a server does that has never heard of this package.
_SERVE = """
import pathlib
import sys

sys.modules["tf_capsops"] = None

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import op_def_registry

for path in map(pathlib.Path, sys.argv[1:]):
    served = tf.saved_model.load(path)
    outputs = served.serve(np.load(path / "inputs.npy"))
    np.savez(path / "outputs.npz", *tf.nest.flatten(outputs))
assert op_def_registry.get("CapsuleConv") is None
"""


def _of_layers(shape, *stack):
    return keras.Sequential([keras.Input(shape), *stack])


def _routed(layer, shape):
    images = keras.Input(shape)
    return keras.Model(images, layer(layers.PoseCaps(3)(images)))


def _convolution(rule):
    """Is padded, so that places of windows lie outside.

    Graphs grow with the places of a window, and with them the time that this takes.
    """
    layer = layers.ConvCaps2D(4, (2, 1), 2, "same", routing=rule)
    return _routed(layer, (5, 4, 3))


def _convolution_of_volumes(rule):
    volumes = keras.Input((3, 2, 2, 14))
    poses = keras.layers.Reshape((3, 2, 2, 2, 2, 3))(volumes[..., :12])
    layer = layers.ConvCaps3D(3, (2, 1, 1), 1, "same", pose_shape=(2, 2), routing=rule)
    return keras.Model(volumes, layer([poses, volumes[..., 12:]]))


_NETWORKS = {
    "capsnet": lambda: small.capsnet((9, 8, 1), 10),
    "p_capsnet": lambda: models.p_capsnet((24, 24, 1), 4),
    "capsule_conv": lambda: _of_layers(
        (9, 8, 2, 4, 3),
        layers.CapsuleConv2D(3, (4, 4), 3, strides=(2, 1), padding="same"),
        layers.CapsuleConv2D(2, (4, 2), 2, dilation_rate=2),
    ),
    "capsules_of_rank_3": lambda: _of_layers(
        (9, 8, 2, 3, 2, 4), layers.CapsuleConv2D(3, (3, 2, 4), 3)
    ),
    "capsule_conv_of_volumes": lambda: _of_layers(
        (4, 5, 3, 2, 2, 3),
        layers.CapsuleConv3D(3, (2, 2), 2, strides=2, padding="same"),
        layers.CapsuleConv3DTranspose(2, (2, 3), 3, strides=2, padding="same"),
    ),
    "capsule_conv_of_lines": lambda: _of_layers(
        (9, 2, 2, 3), layers.CapsuleConv1D(3, (2, 4), 2, strides=3, padding="same")
    ),
    "strides_beyond_the_kernel": lambda: _of_layers(
        (18, 21, 3),
        layers.Conv2D(8, (2, 1), 2, "same"),
        layers.InqConv2D(6, (1, 2), strides=(1, 3), padding="same"),
        layers.InqDepthwiseConv2D((1, 2), strides=2, padding="same"),
        layers.PrimaryCaps(2, 4, (2, 1), strides=(3, 2), padding="same", flatten=False),
    ),
    "convolution": lambda: _of_layers(
        (9, 9, 1), layers.Conv2D(16, 3, activation="relu"), layers.Conv2D(2, 2)
    ),
    "convolution_of_volumes": lambda: _of_layers(
        (5, 4, 3, 2), layers.Conv3D(4, 2, activation="relu"), layers.Conv3D(3, 1)
    ),
    "high_order": lambda: _of_layers(
        (9, 8, 4),
        layers.HighOrderConv2D(3, groups=2, dilation_rate=2),
        layers.HighOrderConv2D((1, 3), filter_activation="softmax"),
    ),
    "powers_of_two": lambda: _of_layers(
        (9, 8, 3),
        layers.InqConv2D(8, 3, strides=2),
        layers.InqDepthwiseConv2D(3),
        layers.InqDense(5),
    ),
    "powers_of_two_and_integers": lambda: _of_layers(
        (9, 8, 3),
        layers.FakeQuant(8),
        layers.InqConv2D(8, 3, strides=2),
        layers.FakeQuant(3),
        layers.InqDense(5),
    ),
    "slim_capsules": lambda: _of_layers(
        (8, 6, 3),
        layers.PrimaryCaps(2, 4, 3, padding="same", flatten=False),
        layers.SlimCaps2D(3, 5, 3, strides=2, padding="same", share_weights=False),
        layers.SlimCaps2DTranspose(2, 4, 4, strides=2, padding="same", leaky=True),
    ),
    "slim_capsules_of_lines": lambda: _of_layers(
        (9, 2, 3), layers.SlimCaps1D(3, 4, 3, dilation_rate=2)
    ),
    "slim_capsules_of_volumes": lambda: _of_layers(
        (4, 6, 5, 2, 3),
        layers.SlimCaps3D(3, 4, 3, strides=2, padding="same"),
        layers.SlimCaps3DTranspose(2, 3, 2, strides=2),
    ),
    "slim_capsules_over_all_pixels": lambda: _of_layers(
        (4, 6, 2, 3), GlobalSlimCaps2D(3, 4, (2, 1), strides=2, padding="same")
    ),
    "em": lambda: _convolution(routing.EM(iterations=2)),
    "vb": lambda: _convolution(routing.VB(iterations=2)),
    "em_of_volumes": lambda: _convolution_of_volumes(routing.EM(iterations=2)),
    "dynamic": lambda: _convolution(routing.Dynamic(iterations=2)),
    "inverted_attention": lambda: _convolution(routing.InvertedAttention()),
    "self_attention": lambda: _convolution(routing.SelfAttention()),
    "self_attention_of_classes": lambda: _routed(
        layers.ClassCaps(5, routing=routing.SelfAttention()), (2, 3, 3)
    ),
}
every_network = pytest.mark.parametrize("name", _NETWORKS)


def _assert_close(results, expected):
    for result, truth in zip(results, map(np.asarray, expected), strict=True):
        assert result.shape == truth.shape
        np.testing.assert_allclose(
            result, truth, rtol=0, atol=1e-5 * np.abs(truth).max()
        )


def _outputs(model, inputs):
    return tf.nest.flatten(model(inputs))


@functools.cache
def _network(name):
    """Returns a network, its inputs, and its outputs by our ops, in order."""
    keras.utils.set_random_seed(3)
    model = _NETWORKS[name]()
    random = np.random.default_rng(5)
    moving = [each for each in model.variables if each.name.startswith("moving_")]
    for variable in (*model.trainable_variables, *moving):
        # Biases, priors and the like, of which an error would not be seen.
        if np.ptp(variable) == 0:
            # A variance, which is 1, must stay positive.
            drawn = np.maximum(random.normal(0, 0.3, variable.shape), -0.9)
            variable.assign_add(drawn.astype(np.float32))
    shape = model.input_shape[1:] if name != "capsnet" else (9, 8, 1)
    inputs = np.random.default_rng(4).random((5, *shape), np.float32)
    return model, inputs, [each.numpy() for each in _outputs(model, inputs)]


@pytest.fixture(scope="module")
def export(tmp_path_factory):
    """Returns a function that exports a network, once, and returns the directory."""
    folder = tmp_path_factory.mktemp("exported")

    @functools.cache
    def exported(name):
        model, inputs, _ = _network(name)
        with tf_capsops.portable():
            model.export(folder / name, verbose=False)
        np.save(folder / name / "inputs.npy", inputs)
        return folder / name

    return exported


@every_network
def test_layers_compute_the_same_within_a_block(name):
    model, inputs, expected = _network(name)
    with tf_capsops.portable(), kernels.recorded() as calls:
        _assert_close(_outputs(model, inputs), expected)
    assert not calls


@pytest.mark.slow
def test_saved_models_need_nothing_of_ours(export):
    fresh.run(_SERVE, *map(export, _NETWORKS))
    for name in _NETWORKS:
        with np.load(export(name) / "outputs.npz") as outputs:
            _assert_close(outputs.values(), _network(name)[2])


def _assert_converted(folder, inputs, expected):
    converted = tf.lite.TFLiteConverter.from_saved_model(str(folder)).convert()
    kinds = tf.lite.experimental.OpResolverType
    # With XNNPACK, and by TFLite's own kernels.
    for kernels_of in (kinds.AUTO, kinds.BUILTIN_WITHOUT_DEFAULT_DELEGATES):
        _assert_interpreted(converted, kernels_of, inputs, expected)


def _assert_interpreted(converted, kernels_of, inputs, expected):
    interpreter = tf.lite.Interpreter(
        model_content=converted, experimental_op_resolver_type=kernels_of
    )
    (given,) = interpreter.get_input_details()
    interpreter.resize_tensor_input(given["index"], inputs.shape)
    interpreter.allocate_tensors()
    interpreter.set_tensor(given["index"], inputs)
    interpreter.invoke()
    found = [
        interpreter.get_tensor(o["index"]) for o in interpreter.get_output_details()
    ]
    # TFLite has an order of its own.
    by_rank = (sorted(each, key=lambda array: array.ndim) for each in (found, expected))
    _assert_close(*by_rank)


@pytest.mark.usefixtures("uncounted")
def test_tflite_of_an_export(export):
    _, inputs, expected = _network("capsnet")
    _assert_converted(export("capsnet"), inputs, expected)


@pytest.mark.usefixtures("uncounted")
@pytest.mark.ci
@every_network
def test_tflite_needs_its_own_operators_alone(name, tmp_path):
    """Saved with one graph, where `export` makes several of the same."""
    model, inputs, expected = _network(name)
    spec = tf.TensorSpec([None, *inputs.shape[1:]])
    with tf_capsops.portable():
        graph = tf.function(model, [spec], autograph=False).get_concrete_function()
    module = tf.Module()
    module.held = [variable.value for variable in model.variables]
    tf.saved_model.save(module, tmp_path, graph)
    _assert_converted(tmp_path, inputs, expected)


@pytest.mark.usefixtures("uncounted")
@pytest.mark.ci
def test_tflite_of_images_of_unknown_size():
    """The same file pads images of some sizes, and not of others."""
    model = _of_layers(
        (None, None, 3),
        layers.Conv2D(4, (2, 1), (2, 3), "same"),
        layers.Conv2D(2, (1, 2), (4, 1), "same"),
    )
    spec = tf.TensorSpec([None, None, None, 3])
    with tf_capsops.portable():
        graph = tf.function(model, [spec], autograph=False).get_concrete_function()
    converted = tf.lite.TFLiteConverter.from_concrete_functions([graph]).convert()
    random = np.random.default_rng(6)
    for size in ((9, 11), (16, 12), (1, 2)):
        images = random.random((2, *size, 3), np.float32)
        kernels_of = tf.lite.experimental.OpResolverType.AUTO
        _assert_interpreted(converted, kernels_of, images, _outputs(model, images))


@pytest.mark.usefixtures("uncounted")
@pytest.mark.ci
@every_network
def test_onnx(tmp_path, name, monkeypatch):
    # An optimization that fails is an error: else each begins with a copy of the graph.
    monkeypatch.setenv("TF2ONNX_CATCH_ERRORS", "FALSE")
    model, inputs, expected = _network(name)
    path = tmp_path / "model.onnx"
    with tf_capsops.portable():
        model.export(path, format="onnx", verbose=False)
    import onnxruntime

    session = onnxruntime.InferenceSession(path)
    (given,) = session.get_inputs()
    _assert_close(session.run(None, {given.name: inputs}), expected)


def test_graphs_of_predict_are_kept_until_they_are_made_again():
    model, inputs, _ = _network("capsule_conv")

    def calls_of_predict():
        with kernels.recorded() as calls:
            model.predict(inputs, verbose=0)
        return calls

    assert calls_of_predict()
    with tf_capsops.portable():
        assert calls_of_predict()
        model.make_predict_function(force=True)
        assert not calls_of_predict()
    assert not calls_of_predict()
    model.make_predict_function(force=True)
    assert calls_of_predict()
