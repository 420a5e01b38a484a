# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""convert: the same outputs from models that hold codes."""

import keras
import numpy as np
import pytest
import small
import tensorflow as tf
from quantized import assert_same, quantize

from tf_capsops import inq, layers, models, routing


def _images(*shape):
    return tf.random.stateless_normal(shape, [3, 4])


def _sequential():
    return keras.Sequential(
        [
            keras.Input([9, 9, 3]),
            keras.layers.Conv2D(
                6,
                3,
                strides=2,
                padding="same",
                activation="relu",
                bias_initializer="ones",
            ),
            keras.layers.BatchNormalization(),
            keras.layers.Conv2D(
                4, (2, 1), dilation_rate=2, use_bias=False, name="second"
            ),
            keras.layers.Flatten(),
            keras.layers.Dense(5, activation="tanh", bias_initializer="ones"),
        ],
        name="plain",
    )


def test_sequential(tmp_path):
    model = quantize(_sequential())
    model.layers[1].set_weights([np.full(6, value) for value in (2.0, 0.5, 0.1, 3.0)])
    converted = inq.convert(model)
    kinds = [type(layer).__name__ for layer in converted.layers]
    assert kinds == [
        "InqConv2D",
        "BatchNormalization",
        "InqConv2D",
        "Flatten",
        "InqDense",
    ]
    assert [e.name for e in converted.layers] == [e.name for e in model.layers]
    assert converted.name == "plain"
    images = _images(2, 9, 9, 3)
    assert_same(model, converted, images)
    converted.save(tmp_path / "codes.keras")
    loaded = keras.saving.load_model(tmp_path / "codes.keras")
    np.testing.assert_array_equal(loaded(images), converted(images))


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_depthwise_and_separable_convolutions(tmp_path, policy):
    inputs = keras.Input([None, None, 3])
    separable = keras.layers.SeparableConv2D(
        5,
        (3, 2),
        strides=2,
        padding="same",
        depth_multiplier=2,
        activation="relu",
        bias_initializer="ones",
        dtype=policy,
        name="separable",
    )
    depthwise = keras.layers.DepthwiseConv2D(
        2, dilation_rate=2, activation="tanh", dtype=policy, name="depthwise"
    )
    model = quantize(keras.Model(inputs, depthwise(separable(inputs))))
    converted = inq.convert(model)
    first, second = converted.get_layer("separable").layers
    assert type(first) is layers.InqDepthwiseConv2D and first.bias is None
    assert type(second) is layers.InqConv2D and second.kernel_size == (1, 1)
    assert type(converted.get_layer("depthwise")) is layers.InqDepthwiseConv2D
    images = _images(2, 9, 8, 3)
    if policy == "float32":
        assert_same(model, converted, images)
    else:
        np.testing.assert_allclose(converted(images), model(images), atol=0.02)
    converted.save(tmp_path / "codes.keras")
    loaded = keras.saving.load_model(tmp_path / "codes.keras")
    np.testing.assert_array_equal(loaded(images), converted(images))
    converted.export(tmp_path / "saved", verbose=False)
    saved = tf.saved_model.load(tmp_path / "saved")
    np.testing.assert_allclose(saved.serve(images), converted(images), atol=0.02)


def test_functional_with_branches_shared_layers_and_models_inside():
    inputs = keras.Input([8, 8, 2], name="images")
    conv = keras.layers.Conv2D(2, 3, padding="same", name="shared")
    inner = keras.Sequential([keras.Input([8, 8, 2]), keras.layers.Dense(3)], name="in")
    left = inner(conv(conv(inputs)))
    right = keras.layers.Conv2D(3, 1, groups=1, name="right")(inputs)
    outputs = {"sum": keras.layers.Add()([left, right]), "right": right}
    model = quantize(keras.Model(inputs, outputs))
    converted = inq.convert(model)
    assert type(converted.get_layer("shared")) is layers.InqConv2D
    assert type(converted.get_layer("in").layers[0]) is layers.InqDense
    assert len(converted.layers) == len(model.layers)
    assert_same(model, converted, _images(2, 8, 8, 2))


@keras.saving.register_keras_serializable("test_inq_convert")
class _Own(keras.layers.Conv2D):
    pass


@pytest.mark.filterwarnings("ignore:convert: ")
def test_what_is_not_finished_or_has_no_kernel_of_codes_stays():
    model = keras.Sequential(
        [
            keras.Input([9, 9, 4]),
            keras.layers.Conv2D(4, 3, name="unfinished"),
            keras.layers.Conv2D(4, 3, groups=2, name="groups"),
            _Own(3, 2, padding="same", name="own"),
            keras.layers.Dense(4, name="finished"),
            keras.layers.Reshape([25, 4]),
            keras.layers.LSTM(3, name="recurrent"),
        ]
    )
    quantize(model)
    kernel = model.get_layer("unfinished").kernel
    kernel.assign(kernel.numpy() * np.where(np.arange(4) == 2, 1.25, 1))
    converted = inq.convert(model)
    for before, after in zip(model.layers, converted.layers):
        if before.name == "finished":
            assert type(after) is layers.InqDense
        else:
            assert type(after) is type(before)
            for ours, theirs in zip(after.get_weights(), before.get_weights()):
                np.testing.assert_array_equal(ours, theirs)
    assert_same(model, converted, _images(2, 9, 9, 4))


@pytest.mark.filterwarnings("ignore:convert: ")
@pytest.mark.parametrize("bits", range(2, 9))
def test_the_fewest_bits_that_hold_the_weights(bits):
    model = keras.Sequential([keras.Input([300]), keras.layers.Dense(1)])
    powers = 2.0 ** -np.arange(2 ** (bits - 2))
    weights = np.resize(np.concatenate([powers, -powers, [0]]), [300, 1])
    model.layers[0].kernel.assign(weights)
    assert inq.convert(model).layers[0].bits == bits
    assert inq.convert(model, bits=8).layers[0].bits == 8
    np.testing.assert_array_equal(
        inq.convert(model).layers[0].kernel, weights[np.newaxis, np.newaxis]
    )
    if bits > 2:
        assert type(inq.convert(model, bits=bits - 1).layers[0]) is keras.layers.Dense
    model.layers[0].kernel.assign_add(np.full([300, 1], 2.0**-70))
    model.layers[0].kernel.assign(np.where(weights == 0, 2.0**-80, weights))
    assert type(inq.convert(model).layers[0]) is keras.layers.Dense


def test_a_kernel_of_zeros_is_finished():
    dense = keras.layers.Dense(2, kernel_initializer="zeros", bias_initializer="ones")
    model = keras.Sequential([keras.Input([3]), dense])
    converted = inq.convert(model)
    np.testing.assert_array_equal(converted(np.ones([2, 3])), np.ones([2, 2]))
    assert type(converted.layers[0]) is layers.InqDense


@pytest.mark.filterwarnings("ignore:convert: ")
def test_capsules(tmp_path):
    sizes = {"filters": 16, "primary_channels": 4, "decoder_units": (32,)}
    model = quantize(small.capsnet(classes=10, **sizes))
    converted = inq.convert(model, all_kinds=True)
    assert all(each.bits == 4 for each in inq.report(converted))
    found = {type(each).__name__ for each in inq.kernels.layers_in(converted)}
    assert {"InqConv2D", "InqDense", "DigitCaps"} <= found
    assert not {"Conv2D", "Dense", "PrimaryCaps"} & found
    images = tf.abs(_images(3, 8, 8, 1))
    assert_same(model, converted, images)
    converted.save(tmp_path / "codes.keras")
    loaded = keras.saving.load_model(tmp_path / "codes.keras")
    np.testing.assert_array_equal(
        loaded(images)["lengths"], converted(images)["lengths"]
    )


@pytest.mark.filterwarnings("ignore:convert: ")
def test_a_rule_with_two_variables_of_one_name(tmp_path):
    """Both batch normalizations of VB have a moving mean."""
    inputs = [keras.Input((5, 5, 2, 4, 4)), keras.Input((5, 5, 2))]
    layer = layers.ConvCaps2D(3, 3, routing=routing.VB(1))
    model = keras.Model(inputs, layer(inputs))
    random = np.random.default_rng(2)
    for variable in layer.non_trainable_weights:
        variable.assign(random.uniform(0.5, 1, variable.shape))
    quantize(model)
    converted = inq.convert(model, all_kinds=True)
    children = tf.random.normal([2, 5, 5, 2, 4, 4]), tf.ones([2, 5, 5, 2])
    expected = model(children)
    converted.save(tmp_path / "codes.keras")
    loaded = keras.saving.load_model(tmp_path / "codes.keras")
    for each in converted, loaded:
        for result, truth in zip(each(children), expected, strict=True):
            np.testing.assert_array_equal(result, truth)


def test_after_training(tmp_path):
    keras.utils.set_random_seed(1)
    model = _sequential()
    model.compile(keras.optimizers.Adam(0.01), "mse", run_eagerly=True)
    steps = inq.IncrementalQuantization(model, bits=4)
    images = _images(8, 9, 9, 3)
    model.fit(images, np.ones([8, 5]), epochs=4, verbose=0, callbacks=[steps])
    converted = inq.convert(model)
    assert (
        sum(
            isinstance(each, (layers.InqConv2D, layers.InqDense))
            for each in converted.layers
        )
        == 3
    )
    assert_same(model, converted, images)


@pytest.mark.parametrize("policy", ["mixed_float16", "float64"])
def test_keeps_policy_and_what_is_trainable(policy):
    dense = keras.layers.Dense(2, dtype=policy, bias_regularizer="l1", trainable=False)
    model = quantize(keras.Sequential([keras.Input([3]), dense]))
    after = inq.convert(model).layers[0]
    assert after.dtype_policy.name == policy
    assert not after.trainable and after.bias_regularizer is not None
    assert after(np.ones([1, 3])).dtype == dense(np.ones([1, 3])).dtype


@pytest.mark.parametrize(
    "layer",
    [
        keras.layers.Conv2D(2, 3, activity_regularizer="l2"),
        keras.layers.Dense(2, activation="tanh", activity_regularizer="l2"),
        keras.layers.DepthwiseConv2D(2, activity_regularizer="l2"),
        keras.layers.SeparableConv2D(3, 2, activity_regularizer="l2"),
        layers.PrimaryCaps(2, 4, 3, activity_regularizer="l2"),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_keeps_the_regularizer_of_activities(tmp_path, layer):
    model = quantize(keras.Sequential([keras.Input([6, 6, 2]), layer]))
    converted = inq.convert(model)
    assert inq.report(converted)[0].bits
    converted.save(tmp_path / "codes.keras")
    losses = []
    for each in (model, converted, keras.saving.load_model(tmp_path / "codes.keras")):
        each(_images(2, 6, 6, 2))
        losses.append(float(sum(each.losses)))
    assert losses[0] > 0
    np.testing.assert_allclose(losses[1:], losses[0], rtol=1e-5)


@pytest.mark.filterwarnings("ignore:convert: ")
@pytest.mark.parametrize("name", ["capsnet", "p_capsnet"])
def test_images_that_are_not_scaled_are_still_refused(tmp_path, name):
    build = getattr(models, name)
    model = build((28, 28, 1), 3, **({"filters": 2} if name == "capsnet" else {}))
    model.compile()
    converted = inq.convert(quantize(model))
    images = np.ones([2, 28, 28, 1], np.float32)
    converted(images)
    assert converted.compiled == (name == "p_capsnet")
    converted.save(tmp_path / "codes.keras")
    converted.export(tmp_path / "saved", verbose=False)
    loaded = keras.saving.load_model(tmp_path / "codes.keras")
    again = inq.convert(loaded)
    for use in (model, converted, converted.predict, loaded, again):
        with pytest.raises(ValueError, match="images must be floating-point numbers"):
            use(images.astype(np.uint8))


def test_a_sequential_model_without_an_input_layer():
    model = keras.Sequential([keras.layers.Dense(3), keras.layers.Dense(2)])
    with pytest.raises(ValueError, match=r"convert: .* has no weights yet"):
        inq.convert(model)
    model(np.ones([2, 4]))
    assert_same(quantize(model), inq.convert(model), _images(2, 4))


@pytest.mark.parametrize(
    "name, shape, outputs", [("segcaps", (8, 8, 1), 1), ("ucaps3d", (8, 8, 8, 1), 2)]
)
def test_segmentation(tmp_path, name, shape, outputs):
    model = getattr(models, name)(shape, outputs, size="small")
    model.compile()
    converted = inq.convert(quantize(model), all_kinds=True)
    assert type(converted) is type(model)
    assert all(each.bits for each in inq.report(converted) if each.weights)
    images = tf.nn.sigmoid(_images(2, *shape))
    assert_same(model, converted, images)
    np.testing.assert_allclose(
        converted.reconstruct(images), model.reconstruct(images), atol=1e-5
    )
    converted.save(tmp_path / "codes.keras")
    loaded = keras.saving.load_model(tmp_path / "codes.keras")
    np.testing.assert_array_equal(loaded(images), converted(images))
    masks = np.zeros([2, *shape], int)
    expected = model.evaluate(images, masks, verbose=0)
    np.testing.assert_allclose(
        loaded.evaluate(images, masks, verbose=0), expected, 1e-4
    )


def test_keras_convolutions(tmp_path):
    """Of several axes, groups and with channels first where Keras has them."""
    inputs = keras.Input([4, 6, 3])
    lines = keras.layers.Reshape([24, 3])(inputs)
    lines = keras.layers.Conv1D(4, 3, groups=1, padding="causal", name="line")(lines)
    up = keras.layers.Conv2DTranspose(3, 2, strides=2, name="up")(inputs)
    volume = keras.layers.Reshape([2, 2, 6, 3])(inputs)
    volume = keras.layers.Conv3D(3, 2, activation="relu", groups=3)(volume)
    volume = keras.layers.Conv3DTranspose(2, 2, use_bias=False)(volume)
    model = quantize(keras.Model(inputs, [lines, up, volume]))
    converted = inq.convert(model, all_kinds=True)
    found = [type(each).__name__ for each in converted.layers if each.weights]
    assert sorted(found) == [
        *("InqConv1D", "InqConv2DTranspose", "InqConv3D", "InqConv3DTranspose")
    ]
    images = _images(2, 4, 6, 3)
    assert_same(model, converted, images)
    converted.save(tmp_path / "codes.keras")
    loaded = keras.saving.load_model(tmp_path / "codes.keras")
    for one, other in zip(loaded(images), converted(images), strict=True):
        np.testing.assert_array_equal(one, other)


def test_other_models_are_refused():
    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(2)

        def call(self, inputs):
            return self.dense(inputs)

    model = Own()
    model(np.ones([1, 3]))
    with pytest.raises(
        ValueError, match="Sequential, functional or a CapsNet, got Own"
    ):
        inq.convert(model)
    with pytest.raises(
        ValueError, match="got Dense: convert the models of those kinds"
    ):
        inq.convert(model.dense)
    with pytest.raises(
        ValueError, match="convert: bits must be an integer from 2 to 8"
    ):
        inq.convert(_sequential(), bits=1)


def test_masks_pass_through_a_dense_layer():
    model = keras.Sequential(
        [
            keras.Input([5], dtype="int32"),
            keras.layers.Embedding(7, 4, mask_zero=True),
            keras.layers.Dense(6),
            keras.layers.LSTM(2),
        ]
    )
    dense = model.layers[1]
    dense.kernel.assign(inq.quantize(np.ones([4, 6], np.float32) / 3, 4))
    words = tf.constant([[1, 2, 0, 0, 0], [3, 4, 5, 6, 0]])
    with pytest.warns(UserWarning):  # the layers that stay as they are
        converted = inq.convert(model)
    assert isinstance(converted.layers[1], layers.InqDense)
    assert_same(model, converted, words)
