# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rules of one's own: what layers say of their results, and how they add up votes."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from routed_layers import assert_equal, drawn, every_layer

import tf_capsops
from tf_capsops.layers import ConvCaps2D, DenseCaps, routed
from tf_capsops.ops.capsule_moments import capsule_moments
from tf_capsops.routing import Rule, SelfAttention


@keras.saving.register_keras_serializable("tests")
class _Mean(Rule):
    def route(self, moments, training=False):
        mass, first = moments()
        return first / (mass[..., None, None] + 1e-7), tf.sigmoid(mass)


def test_a_rule_of_ones_own(tmp_path, device):
    layer, inputs, shapes = drawn("conv", routing=_Mean())
    outputs = layer(inputs)
    assert [tuple(each.shape) for each in outputs] == shapes
    revived = ConvCaps2D.from_config(layer.get_config())
    assert isinstance(revived.routing, _Mean)


class _Average:
    """A rule without base class, variables and configuration; it cannot be saved."""

    def route(self, moments, training=False):
        mass, first = moments(order=1)
        return first / mass[..., None, None], tf.ones_like(mass)


def test_a_rule_needs_no_base_class():
    children = [tf.ones([1, 3, 3, 2, 4, 4]), tf.ones([1, 3, 3, 2])]
    layer = ConvCaps2D(2, 3, routing=_Average())
    poses, _ = layer(children)
    mean = tf.reduce_mean(tf.reduce_sum(layer.kernel, axis=-2), axis=(0, 1, 2))
    np.testing.assert_allclose(poses[0, 0, 0, :, 0], mean, rtol=1e-5)


class _Powers(_Mean):
    """A rule with an argument that it does not say how to save."""

    def __init__(self, power):
        self.power = power

    def route(self, moments, training=False):
        poses, activations = super().route(moments)
        return poses, activations**self.power


def test_a_rule_without_config_keeps_its_arguments():
    layer = DenseCaps(2, (2, 2), routing=_Powers(3))
    assert layer.routing.power == 3
    with pytest.raises(
        NotImplementedError, match=r"_Powers must define get_config .* power"
    ):
        layer.get_config()


@keras.saving.register_keras_serializable("tests")
class _Scored(_Mean):
    """A rule with a variable called as the layer's own, and with a sublayer."""

    def build(self, layer, weights_shape, output_shape):
        self.scale = layer.add_weight(name="kernel", shape=(), initializer="ones")
        layer.score = keras.layers.Dense(1, kernel_initializer="ones")
        layer.score.build((None, output_shape[-1]))
        self.score = layer.score

    def route(self, moments, training=False):
        poses, _ = super().route(moments)
        scores = self.score(tf.reshape(poses, [-1, poses.shape[-1]]))
        scores = tf.reshape(scores, tf.shape(poses)[:-1])
        return self.scale * poses, tf.sigmoid(tf.reduce_sum(scores, -1))


def test_variables_of_a_rule_may_be_called_kernel():
    layer, inputs, _ = drawn("dense", routing=_Scored())
    children = [keras.Input(each.shape[1:]) for each in inputs]
    model = keras.Model(children, layer(children))
    layer.kernel.assign(tf_capsops.inq.quantize(layer.kernel.numpy(), 5))
    layer.score.kernel.assign(tf.fill(layer.score.kernel.shape, 0.5))
    layer.routing.scale.assign(2)
    copy = tf_capsops.inq.convert(model, all_kinds=True)
    assert copy.layers[-1].bits == 5
    assert_equal(copy(inputs), model(inputs))


class _Returns(_Mean):
    """A rule whose results were changed."""

    def __init__(self, change):
        self.change = change

    def get_config(self):
        return {"change": self.change}

    def route(self, moments, training=False):
        return self.change(*super().route(moments))


@pytest.mark.parametrize(
    "change, got",
    [
        (lambda poses, _: poses, r"one: a tensor of shape \(3, "),
        (lambda *pair: (*pair, pair[1]), "3: a tensor of shape .*, a tensor of"),
        (lambda poses, _: [poses], "1: a tensor of shape"),
        (lambda poses, activations: (activations, poses), "2: a tensor of shape"),
        (lambda poses, activations: (poses, activations[..., None]), "2: a tensor"),
        (lambda poses, _: (poses, None), "2: .*, a NoneType"),
        (lambda *_: None, "one: a NoneType"),
    ],
)
@pytest.mark.parametrize("name", ["conv", "class", "dense"])
def test_what_a_rule_must_return(name, change, got):
    layer, inputs, shapes = drawn(name, routing=_Returns(change))
    filters, rows, columns = shapes[0][-3:]
    text = (
        rf"_Returns\.route must return two tensors, poses \[N, H', W', {filters}, "
        rf"{rows}, {columns}\] and activations \[N, H', W', {filters}\], got {got}"
    )
    with pytest.raises(ValueError, match=text):
        layer(inputs)


def test_a_tensor_is_not_unpacked_along_the_batch():
    """In a graph as well, and of two samples, which would pass for the two results."""
    layer = DenseCaps(4, (2, 3), routing=_Returns(lambda poses, _: poses))
    inputs = tf.ones([2, 6, 2, 4]), tf.ones([2, 6])
    with pytest.raises(ValueError, match="must return two tensors"):
        tf.function(layer)(inputs)


class _Fixed(Rule):
    """Adds votes up by shares that do not depend on them, once."""

    def __init__(self, shares, use_activations):
        self.shares, self.use_activations = shares, use_activations

    def get_config(self):
        return {"shares": self.shares, "use_activations": self.use_activations}

    def build(self, layer, weights_shape, output_shape):
        self.shape = weights_shape[:4]

    def route(self, moments, training=False):
        given = {}
        if self.shares == "prior":
            prior = tf.reshape(tf.linspace(-1.0, 1.0, np.prod(self.shape)), self.shape)
            given = {"prior": prior, "normalize": "none"}
        mass, first = moments(**given, use_activations=self.use_activations)
        return first * mass[..., None, None], mass


@every_layer
@pytest.mark.parametrize("shares", ["prior", "equal"])
@pytest.mark.parametrize("use_activations", [False, True])
def test_sums_by_fixed_shares_are_convolutions(
    name, shares, use_activations, device, monkeypatch
):
    """To the op's values and gradients, also of children that do not exist."""
    layer, (poses, activations), _ = drawn(
        name, routing=_Fixed(shares, use_activations)
    )
    exist = np.arange(activations.size).reshape(activations.shape) % 3 > 0
    inputs = [tf.constant(poses), tf.constant(activations * exist, poses.dtype)]
    layer(inputs)
    found, calls = [], []

    def spy(*operands, **options):
        calls.append(options)
        return capsule_moments(*operands, **options)

    monkeypatch.setattr(routed, "capsule_moments", spy)
    for fixed in (routed._fixed_shares, lambda *_, **__: None):
        monkeypatch.setattr(routed, "_fixed_shares", fixed)
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            results = layer(inputs)
        sources = [*inputs, layer.kernel]
        grads = tape.gradient(results, sources, unconnected_gradients="zero")
        found.append([*results, *grads])
        assert len(calls) == len(found) - 1
    assert_equal(*found, 2e-4)


@pytest.mark.ci
@pytest.mark.parametrize("shares", ["prior", "equal"])
def test_tflite_of_sums_by_fixed_shares(shares):
    """The last window ends before the last pixel, which TFLite must be told."""
    rule = _Fixed(shares, use_activations=True)
    layer = ConvCaps2D(3, (2, 1), 2, padding="same", pose_shape=(2, 3), routing=rule)
    random = np.random.default_rng(3)
    shapes = (2, 5, 4, 3, 2, 4), (2, 5, 4, 3)
    inputs = [random.normal(size=shape).astype(np.float32) for shape in shapes]
    expected = layer(inputs)
    specs = [tf.TensorSpec([None, *shape[1:]]) for shape in shapes]
    with tf_capsops.portable():
        graph = tf.function(
            lambda *children: layer(children), specs, autograph=False
        ).get_concrete_function()
    converted = tf.lite.TFLiteConverter.from_concrete_functions([graph]).convert()
    interpreter = tf.lite.Interpreter(model_content=converted)
    given = sorted(
        interpreter.get_input_details(), key=lambda each: -len(each["shape"])
    )
    for each, values in zip(given, inputs, strict=True):
        interpreter.resize_tensor_input(each["index"], values.shape)
    interpreter.allocate_tensors()
    for each, values in zip(given, inputs, strict=True):
        interpreter.set_tensor(each["index"], values)
    interpreter.invoke()
    found = [
        interpreter.get_tensor(o["index"]) for o in interpreter.get_output_details()
    ]
    found.sort(key=lambda array: -array.ndim)
    assert_equal(found, expected, 1e-5)


class _Sum(Rule):
    """Adds votes up by a prior, which may be wrong."""

    def __init__(self, prior):
        self.prior = prior

    def get_config(self):
        return {"prior": self.prior}

    def route(self, moments, training=False):
        mass, first = moments(prior=self.prior, normalize="none", use_activations=False)
        return first, mass


@pytest.mark.parametrize("shape", [(1, 1, 2, 3), (3, 2), (2, 2, 2, 3, 1)])
@pytest.mark.parametrize("padding", ["same", "valid"])
def test_a_prior_does_not_broadcast(shape, padding):
    children = tf.ones([1, 3, 3, 2, 4, 4]), tf.ones([1, 3, 3, 2])
    layer = ConvCaps2D(3, 2, padding=padding, routing=_Sum(np.ones(shape, np.float32)))
    with pytest.raises(tf.errors.InvalidArgumentError, match="CapsuleMoments: prior"):
        layer(children)


def test_sums_by_no_prior_are_zero():
    children = tf.ones([1, 3, 3, 2, 4, 4]), tf.ones([1, 3, 3, 2])
    for result in ConvCaps2D(3, 2, routing=_Sum(None))(children):
        np.testing.assert_array_equal(result, tf.zeros_like(result))


@pytest.mark.parametrize("tf32, dtype", [(True, tf.float32), (False, tf.bfloat16)])
def test_which_passes_are_moments_and_of_what_type(tf32, dtype, monkeypatch):
    """Sums by a prior are convolutions; TF32 holds 16-bit types, which are widened."""
    types = []

    def spy(poses, *operands, **options):
        types.append(poses.dtype)
        return capsule_moments(poses, *operands, **options)

    monkeypatch.setattr(routed, "capsule_moments", spy)
    allowed = "tensor_float_32_execution_enabled"
    monkeypatch.setattr(tf.config.experimental, allowed, lambda: tf32)
    layer, inputs, _ = drawn("conv", routing=SelfAttention(), dtype="mixed_bfloat16")
    assert {each.dtype for each in layer(inputs)} == {tf.bfloat16}
    assert types == [dtype]
