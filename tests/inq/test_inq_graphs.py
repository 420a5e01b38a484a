# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""convert on functional models whose graphs hold more than layers."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from quantized import assert_same, quantize

from tf_capsops import inq, layers, models
from tf_capsops.layers.inq_layer import InqLayer

ops = keras.ops


def _conv(filters):
    return keras.layers.Conv2D(filters, 3, padding="same", bias_initializer="ones")


def _sum(images):
    features = _conv(3)(images)
    return features + features


def _mobile_block(images):
    """A squeeze and excitation with a residual, as in MobileNetV3."""
    features = _conv(4)(images)
    features = features * keras.layers.ReLU(6.0)(features + 3.0) * (1.0 / 6.0)
    squeezed = keras.layers.GlobalAveragePooling2D(keepdims=True)(features)
    gate = keras.layers.ReLU(6.0)(keras.layers.Conv2D(4, 1)(squeezed) + 3.0) / 6.0
    multiply = keras.layers.Multiply()
    features = multiply([multiply([features, gate]), gate])
    features = keras.layers.DepthwiseConv2D(3, padding="same")(features)
    return keras.layers.Add()([features, keras.layers.Conv2D(4, 1)(images)])


def _slices(images):
    features = ops.relu(_conv(6)(images))
    halves = features[..., :3], ops.flip(features, axis=-1)[:, ::-1, :, 3:]
    joined = ops.concatenate([*halves, ops.exp(-halves[0])], axis=-1)
    return keras.layers.Dense(2)(ops.reshape(joined, (-1, 25, 9)))


@keras.saving.register_keras_serializable("test_inq_graphs")
class _Relu(keras.Operation):
    def call(self, inputs):
        return ops.relu(inputs)

    def compute_output_spec(self, inputs):
        return keras.KerasTensor(inputs.shape, inputs.dtype)


def _one_operation_twice(images):
    relu = _Relu()
    return _conv(2)(relu(1 - relu(_conv(2)(images))))


def _nested(images):
    inputs = keras.Input([5, 5, 2])
    features = _conv(2)(inputs)
    inner = keras.Model(inputs, {"sum": features + inputs, "relu": ops.relu(features)})
    first = inner(images)
    return inner(first["sum"] * 2)["relu"] - first["relu"]


def _shared_by_model_and_part(images):
    shared = keras.layers.Dense(2)
    inputs = keras.Input([5, 5, 2])
    inner = keras.Model(inputs, shared(keras.layers.Dense(2)(shared(inputs))))
    return inner(shared(images)) + shared(inner(images))


def _called_as_in_use(images):
    batch_norm = keras.layers.BatchNormalization(moving_mean_initializer="ones")
    body = keras.Sequential([_conv(2), batch_norm, keras.layers.Dropout(0.5)])
    return body(images, training=False) + 1


def _functions(images):
    doubled = keras.layers.Lambda(lambda each: tf.add(each, each))(images)
    return _conv(2)(doubled)


@pytest.mark.parametrize(
    "build",
    [
        _sum,
        _mobile_block,
        _slices,
        _one_operation_twice,
        _nested,
        _shared_by_model_and_part,
        _called_as_in_use,
        _functions,
    ],
)
def test_outputs_are_those_of_the_plain_model(tmp_path, build):
    inputs = keras.Input([5, 5, 2])
    model = quantize(keras.Model(inputs, build(inputs)))
    converted = inq.convert(model)
    images = tf.random.stateless_normal([3, 5, 5, 2], [1, 2])
    assert_same(model, converted, images)
    kernels = inq.kernels.layers_and_kernels(model)
    codes = [
        layer
        for layer in inq.kernels.layers_in(converted)
        if isinstance(layer, InqLayer)
    ]
    assert len(codes) == len(kernels) > 0
    assert not inq.kernels.layers_and_kernels(converted)
    # Keras loads neither the code of functions nor layers that two models share.
    if build not in (_functions, _shared_by_model_and_part):
        converted.save(tmp_path / "codes.keras")
        loaded = keras.saving.load_model(tmp_path / "codes.keras")
        assert_same(converted, loaded, images)


def test_several_inputs_by_name():
    inputs = {name: keras.Input([4], name=name) for name in "ab"}
    left, right = (keras.layers.Dense(4)(each) for each in inputs.values())
    model = quantize(keras.Model(inputs, {"out": left * right}))
    random = np.random.default_rng(1)
    values = {name: random.normal(size=[3, 4]).astype(np.float32) for name in "ab"}
    assert_same(model, inq.convert(model), values)


@keras.saving.register_keras_serializable("test_inq_graphs")
class _Subclassed(keras.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.first, self.second = keras.layers.Dense(4), keras.layers.Dense(2)

    def call(self, inputs):
        return self.second(ops.relu(self.first(inputs)))


@pytest.mark.filterwarnings("ignore:convert: ")
def test_a_subclassed_model_within_keeps_its_weights():
    inputs = keras.Input([3])
    model = keras.Model(inputs, keras.layers.Dense(2)(_Subclassed(name="own")(inputs)))
    converted = inq.convert(quantize(model))
    own = converted.get_layer("own")
    assert type(own) is _Subclassed and type(own.first) is keras.layers.Dense
    assert type(converted.layers[-1]) is layers.InqDense
    assert_same(model, converted, np.ones([2, 3], np.float32))


@pytest.mark.parametrize("build", [models.efficient_capsnet, models.matrix_capsnet])
@pytest.mark.filterwarnings("ignore:convert: ")
def test_the_policy_of_a_classifier_stays(build):
    model = build((28, 28, 1), 3, dtype="mixed_float16")
    model.compile()
    converted = inq.convert(model)
    assert type(converted) is type(model) and converted.compiled
    assert converted.dtype_policy.name == "mixed_float16"
    assert type(converted.optimizer) is type(model.optimizer)


class _WithoutConfig(keras.layers.Layer):
    def __init__(self, function):
        super().__init__(name="strange")
        self.function = function

    def call(self, inputs):
        return self.function(inputs)


class _Halving(keras.Sequential):
    def call(self, inputs, training=None, mask=None):
        return super().call(inputs / 2, training=training, mask=mask)


def _compiled_with_own_loss():
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(2)], name="net")
    model.compile("sgd", lambda labels, scores: ops.mean(labels - scores))
    return model


@pytest.mark.filterwarnings("ignore:The object being serialized includes a `lambda`")
@pytest.mark.parametrize(
    "build, text",
    [
        (
            lambda: keras.Sequential([keras.Input([3]), _WithoutConfig(abs)]),
            "convert: .*strange cannot be copied: _WithoutConfig needs a get_config",
        ),
        (
            lambda: _Halving([keras.Input([3]), keras.layers.Dense(2)], name="half"),
            "convert: the _Halving half has a call method of its own",
        ),
        (
            _compiled_with_own_loss,
            "convert: the loss, a metric or the optimizer of net cannot be copied",
        ),
    ],
)
def test_what_cannot_be_copied_is_named(build, text):
    with pytest.raises(ValueError, match=text):
        inq.convert(quantize(build()))
