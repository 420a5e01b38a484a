# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""PoseCaps, ConvCaps2D, ClassCaps and DenseCaps, as Keras layers."""

import itertools
import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from routed_layers import LAYERS, assert_equal, drawn

import tf_capsops
from tf_capsops.layers import ClassCaps, ConvCaps2D, DenseCaps, PoseCaps
from tf_capsops.routing import EM, VB, Dynamic, InvertedAttention, SelfAttention

_RULES = [Dynamic(), EM(), VB(), InvertedAttention(dropout=0.25), SelfAttention()]
_SLOW = pytest.mark.slow
every_rule = pytest.mark.parametrize(
    "rule", _RULES, ids=lambda rule: type(rule).__name__
)


def pairs(layer, layers=LAYERS):
    """Every rule in one layer, and every layer of one rule; with `slow`, all in all."""
    found = []
    for rule, name in itertools.product(_RULES, layers):
        chosen = name == layer or isinstance(rule, InvertedAttention)
        identity = f"{name}-{type(rule).__name__}"
        marks = () if chosen else _SLOW
        found.append(pytest.param(name, rule, id=identity, marks=marks))
    return pytest.mark.parametrize("name, rule", found)


@pairs("conv")
def test_shapes_configs_and_files(name, rule, tmp_path, device):
    """A model of the layer is the same after it was saved, whatever its rule."""
    layer, inputs, shapes = drawn(name, routing=rule)
    poses, activations = (keras.Input(each.shape[1:]) for each in inputs)
    symbolic = layer([poses, activations])
    assert [each.shape[1:] for each in symbolic] == [shape[1:] for shape in shapes]
    assert layer.compute_output_shape([each.shape for each in inputs]) == tuple(shapes)
    model = keras.Model([poses, activations], symbolic)
    outputs = model(inputs)
    assert [tuple(each.shape) for each in outputs] == shapes
    saved = json.loads(json.dumps(keras.saving.serialize_keras_object(layer)))
    revived = keras.saving.deserialize_keras_object(saved)
    assert json.dumps(revived.get_config()) == json.dumps(layer.get_config())
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert_equal(loaded(inputs), outputs)


@every_rule
def test_checkpoints_and_saved_models_hold_the_rules_variables(rule, tmp_path):
    poses, activations = keras.Input((6, 2, 4)), keras.Input((6,))

    def built():
        layer = DenseCaps(4, (2, 3), rule)
        return keras.Model([poses, activations], layer([poses, activations]))

    model, other = built(), built()
    random = np.random.default_rng(3)
    for variable in model.trainable_weights + model.non_trainable_weights:
        if variable.dtype == "float32":  # not the seed of dropout
            variable.assign(random.uniform(0.5, 1, variable.shape))
    path = tf.train.Checkpoint(model=model).save(tmp_path / "checkpoint")
    tf.train.Checkpoint(model=other).restore(path).assert_existing_objects_matched()
    for variable, truth in zip(other.weights, model.weights, strict=True):
        np.testing.assert_array_equal(variable, truth)
    children = random.random([3, 6, 2, 4], np.float32), np.ones([3, 6], np.float32)
    tf.saved_model.save(model, tmp_path / "saved")
    saved = tf.saved_model.load(tmp_path / "saved").signatures["serving_default"]
    _, names = saved.structured_input_signature
    results = saved(**dict(zip(sorted(names), children, strict=True)))
    assert_equal([results[name] for name in sorted(results)], model(children), 1e-5)


@every_rule
def test_files_hold_the_variables_that_earlier_releases_wrote(rule):
    """Those of sublayers, as of the batch normalization of VB, are in their files."""
    layer, inputs, _ = drawn("dense", routing=rule)
    layer(inputs)
    stored = {}
    layer.save_own_variables(stored)
    counts = {Dynamic: 1, EM: 3, VB: 3, InvertedAttention: 3, SelfAttention: 2}
    assert [*stored] == [str(number) for number in range(counts[type(rule)])]


@pytest.mark.parametrize(
    "rule",
    # test_export saves and converts the other rules.
    [
        pytest.param(rule, id=type(rule).__name__, marks=marks)
        for rule, marks in zip(_RULES, (_SLOW, (), _SLOW, (), _SLOW), strict=True)
    ],
)
def test_exports_run_without_the_layer(rule, tmp_path, device):
    layer, inputs, _ = drawn("conv", routing=rule)
    poses, activations = (keras.Input(each.shape[1:]) for each in inputs)
    model = keras.Model([poses, activations], layer([poses, activations]))
    model.export(tmp_path / "served", verbose=False)
    served = tf.saved_model.load(tmp_path / "served")
    assert_equal(served.serve(inputs), model(inputs), 1e-5)


@pairs("conv")
def test_portable_layers_agree(name, rule, device):
    layer, inputs, _ = drawn(name, routing=rule)
    expected = layer(inputs)
    with tf_capsops.portable():
        assert_equal(layer(inputs), expected, 2e-4)


@pairs("dense")  # which compiles fastest
def test_compiled_layers_agree(name, rule, device):
    layer, inputs, _ = drawn(name, routing=rule)
    compiled = tf.function(layer, jit_compile=True)
    layer(inputs)  # which makes its weights
    assert_equal(compiled(inputs), layer(inputs), 2e-4)


@pairs("conv")
def test_shares(name, rule, device):
    """Each child's add up as equal shares do, and are no longer equal."""
    layer, inputs, shapes = drawn(name, routing=rule)
    with pytest.raises(ValueError, match="has no weights yet: build it first"):
        layer.shares(inputs)
    layer(inputs)
    children, window = layer.children(inputs)
    normalize = "all" if isinstance(rule, EM) else "parents"
    equal = tf_capsops.moment_shares(*children, **window, normalize=normalize)
    shares = layer.shares(inputs)
    expected = inputs[1].shape
    if name.startswith("conv"):
        expected = (*shapes[1][:3], *layer.kernel_size, 2)
    assert shares.shape == (*expected, shapes[1][-1])
    equal = tf.reshape(equal, shares.shape)
    total = tf.reduce_sum(shares, -1), tf.reduce_sum(equal, -1)
    if normalize == "parents":
        np.testing.assert_allclose(*total, rtol=1e-5)
    np.testing.assert_allclose(*map(tf.reduce_sum, total), rtol=1e-5)
    assert np.abs(shares - equal).max() > 0.01
    with tf_capsops.portable():
        np.testing.assert_allclose(layer.shares(inputs), shares, rtol=0, atol=1e-4)


def test_shares_of_dynamic_routing_are_its_coefficients(device):
    _, (poses, activations), _ = drawn("dense", routing=Dynamic())
    rows = DenseCaps(4, (1, 3), routing=Dynamic())
    vectors = poses[:, :, :1]
    rows([vectors, activations])
    weights = tf.transpose(rows.kernel, (0, 1, 3, 2))
    expected = tf_capsops.routing_coefficients(vectors[:, :, 0], weights)
    found = rows.shares([vectors, activations])
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


@pairs("conv", ["conv", "class", "dense"])
@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16", "float64"])
def test_types(name, rule, policy, device):
    layer, inputs, _ = drawn(name, routing=rule, dtype=policy)
    outputs = layer(inputs, training=True)
    assert {each.dtype.name for each in outputs} == {layer.compute_dtype}
    kept = {each.dtype for each in layer.trainable_weights}
    assert kept == {"float64" if policy == "float64" else "float32"}


@pytest.mark.parametrize("name", ["conv", "conv_same"])
def test_images_of_unknown_size(name, device):
    layer, inputs, shapes = drawn(name)
    expected = layer(inputs)
    poses = keras.Input((None, None, *inputs[0].shape[3:]))
    activations = keras.Input((None, None, *inputs[1].shape[3:]))
    symbolic = layer([poses, activations])
    assert symbolic[0].shape == (None, None, None, *shapes[0][3:])
    assert_equal(keras.Model([poses, activations], symbolic)(inputs), expected)


@pairs("conv")
def test_training_changes_every_weight(name, rule, device):
    """But for betas of VB, which batch normalization takes out again."""
    layer, inputs, _ = drawn(name, routing=rule, kernel_regularizer="l2")
    with tf.GradientTape() as tape:
        outputs = layer(inputs, training=True)
        loss = sum(tf.reduce_sum(tf.square(each + 0.1)) for each in outputs)
    assert len(layer.losses) == 1
    variables = layer.trainable_weights
    for variable, grad in zip(variables, tape.gradient(loss, variables), strict=True):
        assert grad is not None and np.all(np.isfinite(grad))
        if not isinstance(rule, VB) or variable.name == "kernel":
            assert np.any(grad != 0) or variable.name == "scale", variable.name


def test_moving_statistics_are_used_outside_of_training(device):
    layer, inputs, _ = drawn("class", routing=VB())
    first = layer(inputs, training=False)
    trained = layer(inputs, training=True)
    after = layer(inputs, training=False)
    assert np.abs(first[0] - trained[0]).max() > 1e-3
    assert np.abs(first[0] - after[0]).max() > 1e-3
    assert len(layer.non_trainable_weights) == 4


def test_dropout_is_of_training_only(device):
    layer, inputs, _ = drawn("conv", routing=InvertedAttention(dropout=0.5))
    assert_equal(layer(inputs), layer(inputs))
    assert np.abs(layer(inputs)[0] - layer(inputs, training=True)[0]).max() > 0.1


def test_a_rule_may_be_given_to_several_layers(device):
    rule = EM()
    one, inputs, _ = drawn("conv", routing=rule)
    other, _, _ = drawn("conv", routing=rule)
    one(inputs), other(inputs)
    assert one.routing is not other.routing
    assert one.routing.beta_a is not other.routing.beta_a
    assert not hasattr(rule, "beta_a")


def test_class_capsules_add_positions_to_votes(device):
    """Poses of zeros vote for nothing but where they are."""
    layer = ClassCaps(2, routing=EM(iterations=1))
    poses, activations = np.zeros([1, 2, 4, 1, 4, 4]), np.zeros([1, 2, 4, 1])
    activations[0, 1, 0, 0] = (
        1  # the third quarter of the rows, the first eighth across
    )
    outputs, _ = layer([poses, activations])
    expected = np.zeros([1, 2, 4, 4])
    expected[..., 0, 3], expected[..., 1, 3] = 0.75, 0.125
    np.testing.assert_allclose(outputs, expected, atol=1e-6)


def test_pose_caps_are_a_convolution(device):
    layer = PoseCaps(3, (2, 4), kernel_size=2, strides=2, bias_initializer="normal")
    images = np.random.default_rng(2).normal(size=[2, 6, 5, 3]).astype(np.float32)
    poses, activations = layer(images)
    assert layer.compute_output_shape(images.shape) == (
        (2, 3, 2, 3, 2, 4),
        (2, 3, 2, 3),
    )
    features = layer.conv(images)
    np.testing.assert_allclose(
        poses, tf.reshape(features[..., :24], poses.shape), rtol=1e-6
    )
    np.testing.assert_allclose(activations, tf.sigmoid(features[..., 24:]), rtol=1e-6)
    revived = PoseCaps.from_config(layer.get_config())
    assert json.dumps(revived.get_config()) == json.dumps(layer.get_config())
    assert PoseCaps(2, dtype="mixed_float16")(images)[0].dtype == tf.float16


def test_dense_capsules_of_dynamic_routing_are_digit_capsules(device):
    _, (poses, activations), _ = drawn("dense", routing=Dynamic())
    rows = DenseCaps(4, (1, 3), routing=Dynamic())
    vectors = poses[:, :, :1]
    results, lengths = rows([vectors, activations])
    weights = tf.transpose(rows.kernel, (0, 1, 3, 2))
    expected = tf_capsops.capsule_routing(vectors[:, :, 0], weights)
    np.testing.assert_allclose(results[:, :, 0], expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(lengths, tf.norm(expected, axis=-1), rtol=1e-4)


@pytest.mark.parametrize(
    "make, text",
    [
        (lambda: ConvCaps2D(0, 3), "ConvCaps2D: filters must be an integer >= 1"),
        (lambda: ConvCaps2D(2, 3, padding="full"), "padding must be 'valid' or"),
        (lambda: ConvCaps2D(2, 3, pose_shape=4), "pose_shape must be (rows, columns)"),
        (lambda: ClassCaps(2, pose_shape=(1, 4)), "must have at least two rows"),
        (lambda: ClassCaps(2.5), "ClassCaps: num_classes must be an integer >= 1"),
        (lambda: DenseCaps(-1, (1, 2)), "DenseCaps: num_capsules must be an integer"),
        (lambda: PoseCaps(2, (4, 0)), "PoseCaps: pose_shape must be an integer >= 1"),
        (lambda: ConvCaps2D(2, 3)(np.ones([1, 3, 3, 2, 4, 4])), "[poses, activations]"),
        (
            lambda: ConvCaps2D(2, 3).build([(1, 3, 3, 2, 4, 4), (1, 3, 3, 1)]),
            "activations must have the shape of poses but for the last two axes",
        ),
        (
            lambda: ConvCaps2D(2, 3).build([(1, 3, 3, 2, 3, 4), (1, 3, 3, 2)]),
            "pose_shape must be (3, 4) for poses of shape",
        ),
        (
            lambda: ConvCaps2D(2, 4).build([(1, 3, 3, 2, 4, 4), (1, 3, 3, 2)]),
            "the input's height is smaller than kernel_size",
        ),
        (
            lambda: ClassCaps(2).build([(1, None, 3, 2, 4, 4), (1, None, 3, 2)]),
            "only batch may be unknown",
        ),
        (lambda: DenseCaps(2, (4, 4)).build([(1, 3, 4), (1, 3)]), "poses must be"),
        (lambda: ConvCaps2D(2, 3, routing=EM), "routing must be a rule"),
        (
            lambda: ConvCaps2D(2, 3, pose_shape=None),
            "pose_shape must be (rows, columns)",
        ),
        (
            lambda: ClassCaps(2).build([(1, 3, 3, 2, 1, 4), (1, 3, 3, 2)]),
            "must have at least two rows",
        ),
    ],
)
def test_errors_say_what_is_wrong(make, text):
    with pytest.raises(ValueError) as error:
        make()
    assert text in str(error.value)


def test_arguments_by_position():
    layer = ConvCaps2D(8, 3, 2, "same", (2, 3), EM(2))
    assert layer.pose_shape == (2, 3) and layer.routing.iterations == 2


def test_class_poses_have_the_shape_of_the_children_unless_told_otherwise():
    layer = ClassCaps(5)
    poses, _ = layer([tf.ones([2, 3, 3, 4, 3, 6]), tf.ones([2, 3, 3, 4])])
    assert poses.shape == (2, 5, 3, 6)
    again = ClassCaps.from_config(layer.get_config())
    assert again.pose_shape is None


def test_class_capsules_of_images_of_any_size_in_a_function():
    layer = ClassCaps(3)
    pair = [
        tf.random.stateless_normal([2, 4, 5, 2, 4, 4], [1, 2]),
        tf.ones([2, 4, 5, 2]),
    ]
    expected = layer(pair)
    specs = [tf.TensorSpec([None, None, None, *each.shape[3:]]) for each in pair]
    function = tf.function(layer.__call__, input_signature=[specs])
    assert_equal(function(pair), expected, 1e-6)
    larger = [tf.concat([each, each], 2) for each in pair]
    assert_equal(function(larger), layer(larger), 1e-6)


def test_the_convolution_of_poses_follows_the_dtype_policy():
    layer = PoseCaps(2)
    layer.dtype_policy = "mixed_bfloat16"
    assert layer.conv.compute_dtype == "bfloat16"
    for computed, promised in zip(
        layer(tf.ones([2, 5, 5, 3])), layer(keras.Input((5, 5, 3))), strict=True
    ):
        assert computed.dtype == promised.dtype == "bfloat16"


def test_inputs_of_other_shapes_than_the_first_are_refused():
    layer, (poses, activations), _ = drawn("conv")
    layer([poses, activations])
    built = r"ConvCaps2D: poses must be \[..., 2, 2, 4\], as when the layer was built"
    for inputs, text in (
        ([poses[..., :1, :], activations], built),
        ([poses[..., :1, :, :], activations[..., :1]], built),
        ([poses, activations[:1]], r"activations must have the shape of poses but"),
    ):
        with pytest.raises(ValueError, match=text):
            layer(inputs)
