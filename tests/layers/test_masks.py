# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Children that do not exist, and layers whose children are a set of any size."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from reference import windows
from routed_layers import assert_equal, drawn, every_layer

import tf_capsops
from tf_capsops.layers import ConvCaps1D, DenseCaps, DigitCaps, SlimCaps2D
from tf_capsops.routing import EM, VB, Dynamic, InvertedAttention, Rule, SelfAttention


class _Counting(Rule):
    """Uses the masses of children that all count as one."""

    def route(self, moments, training=False):
        mass, first = moments(use_activations=False)
        return first / (mass[..., None, None] + 1.0), mass


_RULES = [Dynamic(), EM(), VB(), InvertedAttention(), SelfAttention(), _Counting()]
every_rule = pytest.mark.parametrize(
    "rule", _RULES, ids=lambda rule: type(rule).__name__
)
both_orders = pytest.mark.parametrize("by_mask", [False, True], ids=["zero", "mask"])


def _changed(inputs, by_mask):
    """Returns two versions of inputs that differ in absent children, and a mask."""
    poses, activations = inputs
    random = np.random.default_rng(8)
    mask = random.random(activations.shape) < 0.5
    absent = ~mask[..., np.newaxis, np.newaxis]
    garbage = random.choice([7.0, np.nan, np.inf, -np.inf], poses.shape)
    others = np.where(absent, garbage, poses)
    active = activations if by_mask else np.where(mask, activations, 0)
    active_too = np.where(mask, activations, np.nan) if by_mask else active
    versions = [[poses, active], [others.astype(np.float32), active_too]]
    return versions, mask if by_mask else None


def _patches(layer, exist):
    """Returns for each output pixel which children its window has."""
    capsules = np.eye(exist.shape[-1])[:, :, np.newaxis, np.newaxis]
    window = layer.strides, layer.padding.upper(), layer.dilation_rate
    taps = []
    for tap in np.ndindex(*layer.kernel_size):
        weights = np.zeros((*layer.kernel_size, *capsules.shape))
        weights[tap] = capsules
        taps.append(windows.convolution(exist[..., None, None], weights, *window))
    shape = taps[0].shape[:3]
    stacked = np.stack(taps, 3).reshape(*shape, *layer.kernel_size, exist.shape[-1])
    return stacked == 1


def _with_gradients(layer, inputs, mask):
    inputs = [tf.constant(each) for each in inputs]
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        outputs = layer(inputs, training=True, mask=mask)
        loss = sum(tf.reduce_sum(tf.sin(each)) for each in outputs)
    sources = [inputs[0], *(each.value for each in layer.trainable_weights)]
    return [*outputs, *tape.gradient(loss, sources, unconnected_gradients="zero")]


@both_orders
@every_rule
@every_layer
def test_absent_children_have_no_share_in_anything(name, rule, by_mask, device):
    """Neither in the results, nor in gradients, nor in shares."""
    layer, inputs, _ = drawn(name, routing=rule)
    layer(inputs)
    versions, mask = _changed(inputs, by_mask)
    one, other = (_with_gradients(layer, each, mask) for each in versions)
    assert all(np.isfinite(each).all() for each in one)
    assert_equal(one, other)
    assert np.abs(layer(inputs)[0] - layer(versions[0], mask=mask)[0]).max() > 1e-3
    absent = versions[0][1] == 0 if mask is None else ~mask
    assert np.all(one[2].numpy()[absent] == 0)  # the gradient in poses
    shares = layer.shares(versions[1], mask)
    np.testing.assert_array_equal(shares, layer.shares(versions[0], mask))
    seen = _patches(layer, ~absent) if name.startswith("conv") else ~absent
    received = np.any(shares, -1)
    if isinstance(rule, EM):  # Shares of a child over all windows may underflow.
        assert not np.any(received & ~seen) and np.mean(received[seen]) > 0.8
    else:
        np.testing.assert_array_equal(received, seen)


@every_rule
def test_masked_children_may_hold_anything(rule, device):
    layer, inputs, _ = drawn("dense", routing=rule)
    mask = np.tile(np.isin(np.arange(6), [0, 2, 3]), (3, 1))
    expected = layer(inputs, mask=mask)
    poses, active = inputs
    poses = np.where(mask[..., np.newaxis, np.newaxis], poses, np.nan)
    active = np.where(mask, active, np.inf)
    assert_equal(layer([poses, active], mask=mask), expected)


@both_orders
@every_rule
def test_absent_children_are_as_if_there_were_none(rule, by_mask, device):
    """Fewer children with the same weights."""
    layer, inputs, _ = drawn("dense", routing=rule)
    layer(inputs)
    kept = [0, 2, 3]
    mask = np.isin(np.arange(6), kept)
    poses, active = inputs
    few, _, _ = drawn("dense", routing=rule)
    few([poses[:, kept], active[:, kept]])
    for variable, other in zip(few.weights, layer.weights, strict=True):
        value = np.random.default_rng(1).uniform(0.1, 1, other.shape)
        other.assign(value)
        if variable.name == "kernel":
            value = value[kept]
        elif variable.name == "priors":
            value = value[:, :, kept]
        variable.assign(value)
    if by_mask:
        found = layer(inputs, mask=np.tile(mask, (3, 1)))
    else:
        found = layer([poses, active * mask])
    assert_equal(found, few([poses[:, kept], active[:, kept]]), 1e-5)


@pytest.mark.parametrize("share_weights", [False, True])
def test_masked_digit_capsules(share_weights, device):
    layer = DigitCaps(4, 3, logits_trainable=True, share_weights=share_weights)
    capsules = np.random.default_rng(1).normal(size=[2, 5, 6]).astype(np.float32)
    mask = np.array([[True, False, True, True, False], [False] * 4 + [True]])
    layer.build(capsules.shape)
    layer.logits.assign(np.random.default_rng(2).normal(size=layer.logits.shape))
    masked = tf.constant(np.where(mask[..., np.newaxis], capsules, np.nan))
    with tf.GradientTape() as tape:
        tape.watch(masked)
        result = layer(masked, mask=mask)
        loss = tf.reduce_sum(tf.sin(result))
    gradients = tape.gradient(loss, [masked, layer.kernel.value, layer.logits.value])
    assert all(np.isfinite(each).all() for each in gradients)
    assert np.all(gradients[0].numpy()[~mask] == 0)
    kernel, logits = layer.kernel.numpy(), layer.logits.numpy()
    for sample, kept in enumerate(mask):
        few = DigitCaps(4, 3, share_weights=share_weights)
        few.build((None, kept.sum(), 6))
        own = [kernel, logits] if share_weights else [kernel[kept], logits[kept]]
        few.set_weights(own)
        alone = capsules[sample : sample + 1, kept]
        np.testing.assert_allclose(result[sample], few(alone)[0], atol=1e-6)
        shares = layer.coefficients(masked, mask)[sample].numpy()
        np.testing.assert_allclose(shares[kept], few.coefficients(alone)[0], atol=1e-6)
        assert np.all(shares[~kept] == 0)


def test_masks_of_masking_layers_are_used(device):
    capsules = np.random.default_rng(1).normal(size=[2, 5, 6]).astype(np.float32)
    capsules[:, 1:3] = 9.0
    given = keras.Input([None, 6])
    layer = DigitCaps(4, 3, share_weights=True)
    outputs = layer(keras.layers.Masking(9.0)(given))
    found = keras.Model(given, outputs)(capsules)
    np.testing.assert_allclose(found, layer(capsules[:, [0, 3, 4]]), atol=1e-6)

    poses = np.random.default_rng(2).normal(size=[2, 5, 2, 3]).astype(np.float32)
    poses[:, 1:3] = 9.0
    poses[0, 0, 0] = 9.0  # one row of a pose that exists
    given, active = keras.Input([None, 2, 3]), keras.Input([None])
    layer = DenseCaps(4, (2, 3), Dynamic(), share_weights=True)
    outputs = layer([keras.layers.Masking(9.0)(given), active])
    assert all(getattr(each, "_keras_mask", None) is None for each in outputs)
    ones = np.ones([2, 5], np.float32)
    found = keras.Model([given, active], outputs)([poses, ones])
    poses[0, 0, 0] = 0  # as the other layer returns it
    kept = [0, 3, 4]
    assert_equal(found, layer([poses[:, kept], ones[:, kept]]), 1e-6)


def test_a_mask_may_lack_the_types_of_children(device):
    layer = ConvCaps1D(3, 2, pose_shape=(2, 2), routing=EM())
    random = np.random.default_rng(1)
    inputs = random.normal(size=[2, 6, 4, 2, 2]), random.uniform(size=[2, 6, 4])
    mask = np.array([[True] * 4 + [False] * 2, [True] * 6])
    found = layer(inputs, mask=mask)
    every_type = np.repeat(mask[..., np.newaxis], 4, -1)
    assert_equal(found, layer(inputs, mask=[None, every_type]))
    assert np.abs(found[0] - layer(inputs)[0]).max() > 1e-3


@pytest.mark.parametrize("convert", [list, tuple, np.asarray, tf.constant])
def test_masks_of_nested_lists(convert, device):
    """A list of a mask's rows is not a list of two masks."""
    layer, (poses, active), _ = drawn("dense", routing=Dynamic())
    for rows in ([[True] * 5 + [False]], [[True] * 5 + [False], [False] + [True] * 5]):
        inputs = [poses[: len(rows)], active[: len(rows)]]
        found = layer(inputs, mask=convert(rows))
        expected = layer([inputs[0], inputs[1] * np.array(rows)])
        assert_equal(found, expected)
        assert found[0].shape[0] == len(rows)


_SHAPES = [
    (lambda: DigitCaps(2, 3), [(1, 4, 2)], (3, 4), r"2 to 3 .*\(1, 4, 2\)"),
    (lambda: DigitCaps(2, 3), [(2, 4, 2)], (2, 4, 7, 9), r"2 to 3 .*\(2, 4, 2\)"),
    (lambda: DigitCaps(2, 3), [(2, 4, 2)], (), r"2 to 3 .*\(2, 4, 2\)"),
    (lambda: DigitCaps(2, 3), [(2, 4, 2)], (2, 3), r"2 to 3 .*\(2, 4, 2\)"),
    (
        lambda: DenseCaps(2, (3, 2)),
        [(2, 4, 3, 2), (2, 4)],
        (2,),
        r"2 to 4 .*\(2, 4, 3, 2\)",
    ),
    (
        lambda: ConvCaps1D(2, 2, pose_shape=(3, 2)),
        [(2, 5, 4, 3, 2), (2, 5, 4)],
        (2, 4),
        r"2 to 5 .*\(2, 5, 4, 3, 2\)",
    ),
    (
        lambda: SlimCaps2D(2, 3, 2),
        [(2, 5, 4, 3, 2)],
        (2, 5),
        r"3 to 5 .*\(2, 5, 4, 3, 2\)",
    ),
]


@pytest.mark.parametrize("make, inputs, mask, text", _SHAPES)
def test_masks_that_do_not_fit_are_refused(make, inputs, mask, text, device):
    layer = make()
    inputs = [np.ones(shape, np.float32) for shape in inputs]
    inputs = inputs if len(inputs) == 2 else inputs[0]
    layer(inputs)
    with pytest.raises(ValueError) as caught:
        layer(inputs, mask=np.ones(mask, bool))
    message = str(caught.value)
    owner = type(layer).__name__
    assert re.search(f"{owner}: mask must have the first {text}", message), message
    assert f"got shape {mask}" in message


@every_rule
def test_shared_weights_are_those_of_every_child(rule, tmp_path, device):
    """The number of children is unknown, and their order has no effect."""
    if isinstance(rule, _Counting):
        rule = keras.saving.register_keras_serializable("tests")(_Counting)()
    keras.utils.set_random_seed(5)
    layer = DenseCaps(4, (2, 3), rule, share_weights=True)
    poses, active = keras.Input([None, 2, 5]), keras.Input([None])
    model = keras.Model([poses, active], layer([poses, active]))
    assert layer.kernel.shape == (4, 5, 3)
    assert model.output_shape == [(None, 4, 2, 3), (None, 4)]
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    for variable in layer.weights:
        variable.assign(np.random.default_rng(6).uniform(0.1, 1, variable.shape))
    loaded.set_weights(model.get_weights())
    random = np.random.default_rng(7)
    unknown = [[tf.TensorSpec([None] * rank) for rank in (4, 2)]]
    graphs = [
        tf.function(layer, unknown, autograph=False, jit_compile=jit)
        for jit in (False, True)
    ]
    portable = tf.function(layer, unknown, autograph=False)
    for children in (1, 3, 8):
        inputs = random.normal(size=[2, children, 2, 5]), random.random([2, children])
        found = model(inputs)
        assert_equal(loaded(inputs), found)
        assert_equal(model([each[:, ::-1] for each in inputs]), found, 1e-5)
        own = DenseCaps(4, (2, 3), rule)
        own(inputs)
        for variable, other in zip(own.weights, layer.weights, strict=True):
            value = other.numpy()
            if variable.name in ("kernel", "priors"):
                value = np.broadcast_to(value, variable.shape)
            variable.assign(value)
        assert_equal(own(inputs), found, 1e-6)
        assert layer.shares(inputs).shape == (2, children, 4)
        arrays = [each.astype(np.float32) for each in inputs]
        for graph in graphs:
            assert_equal(graph(arrays), found, 1e-5)
        with tf_capsops.portable():
            assert_equal(portable(arrays), found, 1e-4)


def test_shared_digit_capsules(tmp_path, device):
    keras.utils.set_random_seed(5)
    layer = DigitCaps(4, 3, share_weights=True, logits_initializer="random_normal")
    given = keras.Input([None, 6])
    model = keras.Model(given, layer(given))
    assert model.output_shape == (None, 4, 3)
    assert (layer.kernel.shape, layer.logits.shape) == ((4, 3, 6), (4,))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    with tf_capsops.portable():
        model.export(tmp_path / "saved", verbose=False)
    saved = tf.saved_model.load(tmp_path / "saved")
    for children in (1, 4, 9):
        capsules = np.random.default_rng(7).normal(size=[2, children, 6])
        capsules = capsules.astype(np.float32)
        own = DigitCaps(4, 3)
        own.build(capsules.shape)
        own.set_weights(
            [np.broadcast_to(e, (children, *e.shape)) for e in layer.get_weights()]
        )
        for compute in (layer, model, loaded, saved.serve):
            np.testing.assert_allclose(compute(capsules), own(capsules), atol=1e-6)
        shares = layer.coefficients(capsules)
        np.testing.assert_allclose(shares, own.coefficients(capsules), atol=1e-6)


@pytest.mark.parametrize("children", [None, 64])
def test_shared_weights_start_as_own_ones_do(children):
    layer = DigitCaps(10, 16, share_weights=True)
    layer.build((None, children, 8))
    own = DigitCaps(10, 16)
    own.build((None, children or 1, 8))
    spread = np.std(layer.kernel) / np.std(own.kernel)
    assert 0.93 < spread < 1.07


def test_shared_weights_are_drawn_once():
    """Initializers other than RoutedNormal give their own values."""
    shapes = []

    def initializer(shape, dtype=None):
        shapes.append(shape)
        return keras.ops.full(shape, 2.0, dtype)

    layer = DigitCaps(3, 4, kernel_initializer=initializer, share_weights=True)
    layer.build((None, 5, 6))
    assert shapes == [(1, 3, 4, 6)]
    np.testing.assert_array_equal(layer.kernel, np.full((3, 4, 6), 2.0))


def test_shapes_that_shared_layers_refuse():
    with pytest.raises(ValueError, match=r"only batch and in_caps of \[batch, in_c"):
        DigitCaps(4, 3, share_weights=True).build((None, None, None))
    with pytest.raises(ValueError, match="only batch, capsules may be unknown"):
        DenseCaps(4, (2, 3), share_weights=True).build([(None, None, None, 5), (None,)])
