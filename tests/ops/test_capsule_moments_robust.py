# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""CapsuleMoments: repeatable, and bad numbers in their place."""

import numpy as np
import pytest
import robustness
import tensorflow as tf
from descriptions import every_dtype
from descriptions.capsule_moments import SHAPES, draw, moments_and_gradients

import tf_capsops
from tf_capsops.arguments import window_attributes
from tf_capsops.ops import capsule_moments


def of_several_sizes(dtype):
    larger = {n: (3 * s[0], *s[1:]) for n, s in SHAPES.items()} | {
        n: SHAPES[n] for n in ("weights", "prior")
    }
    return [
        moments_and_gradients(draw(dtype, shapes), normalize=normalize)[:-1]
        for shapes, normalize in ((SHAPES, "all"), (larger, "parents"))
    ]


@every_dtype
@pytest.mark.parametrize("normalize", capsule_moments.NORMALIZATIONS)
def test_every_run_gives_the_same_bits(normalize, dtype, device):
    named = draw(dtype)

    def results(*tensors):
        given = dict(zip(named, tensors, strict=True))
        return moments_and_gradients(given, normalize=normalize)

    robustness.same_bits_every_time(results, list(named.values()))


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan], ids=str)
@pytest.mark.parametrize("name", ["bias", "prior", "poses", "precision"])
@pytest.mark.parametrize("normalize", capsule_moments.NORMALIZATIONS)
def test_bad_numbers_are_where_plain_tensorflow_has_them(name, bad, normalize, device):
    named = draw(tf.float64)
    place = robustness.last_but_one(named[name])
    (named[name],) = robustness.spoiled([named[name]], 0, place, bad)
    ours = tf_capsops.capsule_moments(**named, order=1, normalize=normalize)
    window = window_attributes("test", 1, "VALID", 1)
    plain = capsule_moments.plain(**named, order=1, normalize=normalize, **window)
    for one, other in zip(ours, plain, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)


def test_parents_of_no_chance_at_all_are_nan(device):
    """As in tf.nn.softmax, logits that are all -inf have no shares."""
    named = draw(tf.float32)
    named["bias"] = tf.fill(named["bias"].shape, -np.inf)
    (mass,) = tf_capsops.capsule_moments(**named, order=0)
    assert np.isnan(mass).all()


@pytest.mark.parametrize("channels, inner", [(0, 1), (2, 0)])
def test_sizes_without_elements_cost_no_memory(channels, inner, device):
    """Where nothing depends on votes, they may be of any size."""
    poses = tf.zeros([1, 1, 1, channels, 2**31 - 1, inner])
    weights, bias = tf.zeros([1, 1, channels, 4, inner, 1]), tf.ones([1, 1, 1, 4])
    sources = poses, weights, bias
    with tf.GradientTape() as tape:
        tape.watch(sources)
        (mass,) = tf_capsops.capsule_moments(poses, None, weights, bias=bias, order=0)
    grads = tape.gradient(mass, sources)
    np.testing.assert_array_equal(mass, np.full([1, 1, 1, 4], channels / 4))
    assert [grad.shape for grad in grads] == [source.shape for source in sources]
    np.testing.assert_array_equal(grads[2], np.zeros([1, 1, 1, 4]))
