# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""CapsuleRouting: repeatable, NaN kept in its sample, saved and loaded."""

import functools

import numpy as np
import pytest
import robustness
import tensorflow as tf
from descriptions import every_dtype
from descriptions.capsule_routing import OP
from frames import call

import tf_capsops


def _draw(dtype, batch, in_caps, out_caps, out_dim, in_dim):
    """Returns (grad, input, weights, logits)."""
    return robustness.draw(
        dtype,
        (batch, out_caps, out_dim),
        (batch, in_caps, in_dim),
        (in_caps, out_caps, out_dim, in_dim),
        (in_caps, out_caps),
    )


def _results(grad, *inputs, iterations=3):
    """Returns output, the three gradients and the coefficients."""
    route = functools.partial(tf_capsops.capsule_routing, iterations=iterations)
    look = functools.partial(tf_capsops.routing_coefficients, iterations=iterations)
    return *call(OP.results, route, grad, *inputs), call(look, *inputs)


def _arrays(*tensors, iterations=3):
    return [result.numpy() for result in _results(*tensors, iterations=iterations)]


def of_several_sizes(dtype):
    sizes = (67, 131), (3, 1031)
    return [_results(*_draw(dtype, *size, 10, 16, 8)) for size in sizes]


@every_dtype
@pytest.mark.parametrize("sizes", [(130, 67, 10, 16, 8), (2, 1153, 13, 9, 5)])
def test_every_run_gives_the_same_bits(sizes, dtype, device):
    robustness.same_bits_every_time(_results, _draw(dtype, *sizes))


@every_dtype
@pytest.mark.parametrize("bad", [np.nan, np.inf], ids=str)
@pytest.mark.parametrize("place", ["input", "grad"])
@pytest.mark.parametrize("sizes", [(17, 7, 5, 3, 3), (33, 5, 12, 16, 8)])
def test_bad_numbers_stay_in_their_sample(sizes, place, bad, dtype, device):
    """The results of other samples stay the same, to the bit."""
    tensors, sample = _draw(dtype, *sizes), sizes[0] - 2
    clean = _arrays(*tensors)
    position = 1 if place == "input" else 0
    spoiled = _arrays(*robustness.spoiled(tensors, position, (sample, 2, 1), bad))
    others = np.arange(sizes[0]) != sample
    for result in (0, 1, 4):  # output, gradient of the input, coefficients
        np.testing.assert_array_equal(spoiled[result][others], clean[result][others])
    reached = (0, 1, 4) if place == "input" else (1,)
    for result in reached:
        assert not np.isfinite(spoiled[result][sample].astype(np.float64)).any()
    for result in {0, 1, 4}.difference(reached):
        np.testing.assert_array_equal(spoiled[result], clean[result])
    # The gradients of what all samples share have it in every sum.
    for result in (2, 3):
        assert not np.isfinite(spoiled[result].astype(np.float64)).all()


@every_dtype
@pytest.mark.parametrize(
    "sizes", [(17, 7, 5, 3, 3), (33, 5, 13, 9, 9), (33, 5, 13, 16, 8)]
)
def test_an_infinite_weight_stays_with_its_output_capsule(sizes, dtype, device):
    """Where nothing is routed yet; and not in what lies before and after it."""
    tensors = _draw(dtype, *sizes)
    clean, *_, clean_shares = _arrays(*tensors, iterations=1)
    for place in (3, 2, 0, 0), (3, 2, sizes[3] - 1, sizes[4] - 1):
        spoiled = robustness.spoiled(tensors, 2, place, np.inf)
        output, _, by_weights, by_logits, shares = _arrays(*spoiled, iterations=1)
        others = np.arange(sizes[2]) != place[1]
        np.testing.assert_array_equal(output[:, others], clean[:, others])
        assert not np.isfinite(output[:, ~others].astype(np.float64)).all()
        assert np.isfinite(by_weights[:, others].astype(np.float64)).all()
        assert not np.isfinite(by_logits.astype(np.float64)).any()
        np.testing.assert_array_equal(shares, clean_shares)


@pytest.mark.parametrize(
    "position", range(4), ids=["grad", "input", "weights", "logits"]
)
@every_dtype
def test_slices_of_larger_tensors(position, dtype, device):
    tensors = _draw(dtype, 3, 7, 5, 3, 3)
    robustness.slices_of_larger_tensors(_results, tensors, position)


def test_saved_model_in_a_fresh_process(tmp_path, device):
    (capsules,) = robustness.draw(tf.float32, (5, 7, 3))
    layer = tf_capsops.layers.DigitCaps(4, 2, logits_trainable=True)
    layer.build(capsules.shape)
    variables = [weight.value for weight in layer.weights]
    robustness.saved_model_in_a_fresh_process(
        tmp_path, device, layer, variables, capsules, [None, 7, 3]
    )


def test_calls_of_different_sizes_at_the_same_time(device):
    drawn = [_draw(tf.float32, batch, 9, 10, 16, 8) for batch in (1, 40, 2, 33)]
    robustness.same_at_the_same_time(_results, drawn, device, times=25)
