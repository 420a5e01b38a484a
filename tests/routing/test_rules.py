# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Every rule against its paper's equations over stored votes, in float64."""

import functools

import frames
import keras
import numpy as np
import pytest
import tensorflow as tf
from reference import routing_rules

from tf_capsops.layers import ConvCaps2D
from tf_capsops.routing import EM, VB, Dynamic, InvertedAttention, SelfAttention

_IMAGE, _CHANNELS, _FILTERS, _KERNEL, _STRIDE = (5, 6), 3, 4, (3, 2), 2
_POSE = (2, 3)
_NUMBERS = 6


def _yardstick(rule, layer, votes, active):
    """Returns poses as vectors, and activations."""
    variables = {each.name: tf.convert_to_tensor(each) for each in layer.weights}
    if isinstance(rule, Dynamic):
        return routing_rules.dynamic(votes, rule.iterations, rule.epsilon)
    if isinstance(rule, InvertedAttention):
        of_norm = (
            tf.reshape(variables[name], [_NUMBERS]) for name in ("scale", "offset")
        )
        return routing_rules.inverted_attention(votes, *of_norm, rule.iterations)
    if isinstance(rule, SelfAttention):
        priors = tf.reshape(variables["priors"], votes.shape[3:5])
        return routing_rules.self_attention(votes, priors)
    betas = variables["beta_a"], variables["beta_u"]
    if isinstance(rule, VB):
        return routing_rules.vb(votes, active, *betas, rule.iterations)
    among_all = routing_rules.divide_among_all(*_KERNEL, _CHANNELS, _STRIDE, _IMAGE)
    divide = among_all if rule.normalize == "all" else tf.nn.softmax
    zeros = tf.zeros(votes.shape[:-1], votes.dtype)
    first = divide(zeros) if rule.first_share == "normalize" else tf.nn.softmax(zeros)
    return routing_rules.em(votes, active, *betas, first, divide, rule.iterations, rule)


_RULES = {
    "dynamic": Dynamic(),
    "dynamic_once": Dynamic(iterations=1, epsilon=1e-3),
    "em": EM(),
    "em_parents": EM(normalize="parents", activation_scale=3.0, final_lambda=0.3),
    "em_first_share": EM(iterations=2, first_share="normalize", epsilon=0.01),
    "em_once": EM(iterations=1),
    "em_last": EM(gradient="last", final_lambda=0.3),
    "vb": VB(),
    "vb_once": VB(iterations=1),
    "inverted_attention": InvertedAttention(),
    "inverted_attention_of_four": InvertedAttention(iterations=4),
    "self_attention": SelfAttention(),
}


def _drawn(rule, seed=3):
    """Returns a layer with random weights, and poses and activations for it."""
    random = np.random.default_rng(seed)
    layer = ConvCaps2D(
        _FILTERS, _KERNEL, _STRIDE, pose_shape=_POSE, routing=rule, dtype="float64"
    )
    image = (2, *_IMAGE, _CHANNELS)
    layer.build([(*image, 2, 4), image])
    layer.set_weights([random.normal(size=each.shape) for each in layer.weights])
    return (
        layer,
        tf.constant(random.normal(size=(*image, 2, 4))),
        tf.constant(random.uniform(size=image)),
    )


@pytest.mark.parametrize("name", _RULES)
def test_values_and_gradients_are_those_of_the_equations(name, device):
    """Through all iterations, in poses, activations and every weight."""
    rule = _RULES[name]
    layer, poses, activations = _drawn(rule)
    watched = [poses, activations, *(each.value for each in layer.trainable_weights)]
    random = np.random.default_rng(4)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(watched)
        routed = frames.switched(functools.partial(layer, training=True))
        ours, active = routed([poses, activations])
        kernel = tf.convert_to_tensor(layer.kernel)
        votes, children = routing_rules.votes_and_activations(
            poses, activations, kernel, _STRIDE
        )
        theirs, theirs_active = _yardstick(rule, layer, votes, children)
        theirs = tf.reshape(theirs, ours.shape)
        grad, grad_active = random.normal(size=ours.shape), random.normal(active.shape)
        loss = tf.reduce_sum(ours * grad) + tf.reduce_sum(active * grad_active)
        theirs_loss = tf.reduce_sum(theirs * grad)
        theirs_loss += tf.reduce_sum(theirs_active * grad_active)
    np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(active, theirs_active, rtol=1e-9, atol=1e-10)
    zeros = tf.UnconnectedGradients.ZERO
    found = tape.gradient(loss, watched, unconnected_gradients=zeros)
    truths = tape.gradient(theirs_loss, watched, unconnected_gradients=zeros)
    for result, truth in zip(found, truths, strict=True):
        scale = np.abs(truth).max()
        np.testing.assert_allclose(result, truth, rtol=1e-6, atol=1e-8 * scale + 1e-12)
    assert np.abs(truths[0]).max() > 0


@pytest.mark.parametrize("name", _RULES)
def test_a_graph_gives_the_same(name):
    """In float64, for which a graph would not take a Python number by itself."""
    layer, *inputs = _drawn(_RULES[name])
    for ours, eager in zip(tf.function(layer)(inputs), layer(inputs), strict=True):
        np.testing.assert_allclose(ours, eager, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", _RULES)
def test_configs_make_the_same_rule(name):
    rule = _RULES[name]
    saved = keras.saving.serialize_keras_object(rule)
    revived = keras.saving.deserialize_keras_object(saved)
    assert type(revived) is type(rule)
    assert revived.get_config() == rule.get_config()


@pytest.mark.parametrize(
    "make, text",
    [
        (lambda: Dynamic(iterations=0), "Dynamic: iterations must be an integer >= 1"),
        (lambda: Dynamic(epsilon=0), "Dynamic: epsilon must be a positive number"),
        (lambda: EM(iterations=1.5), "EM: iterations must be an integer >= 1"),
        (lambda: EM(normalize="none"), "EM: normalize must be 'all' or 'parents'"),
        (lambda: EM(first_share="all"), "EM: first_share must be 'uniform' or"),
        (lambda: EM(gradient="first"), "EM: gradient must be 'all' or 'last'"),
        (lambda: EM(final_lambda=-1), "EM: final_lambda must be a positive number"),
        (lambda: EM(epsilon="x"), "EM: epsilon must be a positive number"),
        (lambda: EM(activation_scale=0), "EM: activation_scale must be a positive"),
        (lambda: VB(iterations=0), "VB: iterations must be an integer >= 1"),
        (lambda: InvertedAttention(0), "InvertedAttention: iterations must be an"),
        (lambda: InvertedAttention(dropout=1), "dropout must be at least 0 and below"),
        (lambda: ConvCaps2D(2, 1, routing="em"), "ConvCaps2D: routing must be a rule"),
    ],
)
def test_bad_arguments_are_refused(make, text):
    with pytest.raises(ValueError, match=text):
        make()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", _RULES)
def test_other_types_are_as_exact_as_they_can_be(name, dtype, device):
    layer, poses, activations = _drawn(_RULES[name])
    truths = layer([poses, activations], training=True)
    config = {**layer.get_config(), "dtype": dtype}
    narrow = ConvCaps2D.from_config(config)
    narrow.build([poses.shape, activations.shape])
    narrow.set_weights(layer.get_weights())
    results = narrow(
        [tf.cast(poses, dtype), tf.cast(activations, dtype)], training=True
    )
    for result, truth in zip(results, truths, strict=True):
        assert result.dtype == dtype
        scale = np.abs(truth).max()
        tolerance = {"float32": 2e-4, "float16": 0.1, "bfloat16": 0.5}[dtype]
        np.testing.assert_allclose(
            tf.cast(result, tf.float64), truth, rtol=0, atol=tolerance * scale
        )
