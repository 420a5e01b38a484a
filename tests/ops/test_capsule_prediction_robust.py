# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""CapsulePrediction: repeatable, NaN kept in its place, large, saved and loaded."""

import numpy as np
import pytest
import robustness
import tensorflow as tf
from descriptions import every_dtype
from descriptions.capsule_prediction import OP
from frames import call
from reference import capsule_prediction as reference
from tolerances import assert_close

import tf_capsops

OPERANDS = ["grad", "input", "weights"]


def _results(*tensors):
    """Returns output, gradient of the input and gradient of the weights."""
    return call(OP.results, tf_capsops.capsule_prediction, *tensors)


def of_several_sizes(dtype):
    shapes = (67, 31, 10, 16), (67, 31, 8), (31, 10, 16, 8)
    return [_results(*robustness.draw(dtype, *shapes))]


@every_dtype
def test_every_run_gives_the_same_bits(dtype, device):
    shapes = (130, 67, 10, 16), (130, 67, 8), (67, 10, 16, 8)
    robustness.same_bits_every_time(_results, robustness.draw(dtype, *shapes))


def test_an_infinite_weight_gives_an_infinite_gradient(device):
    """And not NaN, as where padding of the columns would be multiplied with it."""
    weights = np.ones((1, 1, 3, 2), np.float32)
    weights[..., -1, :] = np.inf
    lib = tf.load_op_library(tf_capsops.library_path())
    result = lib.capsule_prediction_grad(
        np.ones((1, 1, 1, 3), np.float32), np.ones((1, 1, 2), np.float32), weights
    )
    assert np.isposinf(result.grad_input.numpy()).all()


@every_dtype
@pytest.mark.parametrize("bad", [np.nan, np.inf], ids=str)
@pytest.mark.parametrize("position", range(3), ids=OPERANDS)
def test_bad_numbers_stay_in_their_place(position, bad, dtype, device):
    """A NaN or an infinity reaches only the results its number takes part in."""
    tensors = robustness.draw(dtype, (9, 5, 4, 8), (9, 5, 8), (5, 4, 8, 8))
    place = robustness.last_but_one(tensors[position])
    ones = [np.ones(tensor.shape) for tensor in tensors]
    sure = robustness.reached(OP.reference, ones, position, place)
    assert sum(region.any() for region in sure) == 2
    spoiled = robustness.spoiled(tensors, position, place, bad)
    robustness.bad_numbers_stay(_results(*tensors), _results(*spoiled), sure)


@pytest.mark.parametrize("position", range(3), ids=OPERANDS)
@every_dtype
def test_slices_of_larger_tensors(position, dtype, device):
    tensors = robustness.draw(dtype, (3, 7, 5, 3), (3, 7, 3), (7, 5, 3, 3))
    robustness.slices_of_larger_tensors(_results, tensors, position)


@pytest.mark.slow
def test_more_elements_than_32_bits_count(device):
    """2^31 + 2^15 predictions (4.3 GB in bfloat16), also as the gradient's input."""
    batch, out_caps, out_dim = 2**16 + 1, 2**6, 2**9
    inputs, weights = robustness.draw(
        tf.bfloat16, (batch, 1, 1), (1, out_caps, out_dim, 1)
    )
    bare = tf.load_op_library(tf_capsops.library_path())
    output = bare.capsule_prediction(inputs, weights)
    assert np.prod(output.shape.as_list()) > 2**31
    last = inputs[-1:]
    exact_last, exact_weights = (t.numpy().astype(np.float64) for t in (last, weights))
    truth = reference.forward(exact_last, exact_weights)
    plain = OP.plain(last, weights)
    assert_close(output[-1:].numpy(), truth, plain.numpy())

    by_input, by_weights = bare.capsule_prediction_grad(output, inputs, weights)
    exact_output = plain.numpy().astype(np.float64)
    assert_close(
        by_input[-1:].numpy(),
        reference.input_gradient(exact_output, exact_weights),
        tf.einsum("bijd,ijdk->bik", plain, weights).numpy(),
        reference.input_gradient(abs(exact_output), abs(exact_weights)),
    )
    # The weights' gradient is linear in the samples: the sum over halves of the batch.
    half = batch // 2
    halves = [
        bare.capsule_prediction_grad(output[part], inputs[part], weights).grad_weights
        for part in (np.s_[:half], np.s_[half:])
    ]
    total = sum(part.numpy().astype(np.float64) for part in halves)
    assert_close(by_weights.numpy(), total, tf.add_n(halves).numpy())


def test_saved_model_in_a_fresh_process(tmp_path, device):
    inputs, drawn = robustness.draw(tf.float32, (5, 7, 3), (7, 4, 2, 3))
    weights = tf.Variable(drawn)
    robustness.saved_model_in_a_fresh_process(
        *(tmp_path, device),
        lambda inputs: tf_capsops.capsule_prediction(inputs, weights),
        *([weights], inputs, [None, 7, 3]),
    )
