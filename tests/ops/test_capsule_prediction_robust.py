# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""CapsulePrediction: repeatable, NaN kept in its place, large, saved and loaded."""

import fresh
import numpy as np
import pytest
import tensorflow as tf
from descriptions import every_dtype
from reference import capsule_prediction as reference
from tolerances import assert_close

import tf_capsops
from tf_capsops.bench import cases

PLAIN = cases.suites()["CapsulePrediction"].rivals["einsum"]

# Prints a digest of output and gradients; argument: threads of one op.
_DIGEST = """
import hashlib, sys
import numpy as np
import tensorflow as tf
import tf_capsops
tf.config.threading.set_intra_op_parallelism_threads(int(sys.argv[1]))
rng = np.random.default_rng(0)
for dtype in (tf.float32, tf.float64, tf.float16, tf.bfloat16):
    shapes = (67, 31, 10, 16), (67, 31, 8), (31, 10, 16, 8)
    grad, x, w = (tf.cast(rng.uniform(-1, 1, s), dtype) for s in shapes)
    with tf.GradientTape() as tape:
        tape.watch([x, w])
        y = tf_capsops.capsule_prediction(x, w)
    for result in (y, *tape.gradient(y, [x, w], grad)):
        print(hashlib.sha256(result.numpy().tobytes()).hexdigest())
"""

_LOAD_AND_CALL = """
import sys
import numpy as np
import tensorflow as tf
import tf_capsops
model = tf.saved_model.load(sys.argv[1])
data = np.load(sys.argv[2])
with tf.device(sys.argv[3]):
    results = model.votes(data["x"]), *model.gradients(data["x"])
for result in results:
    print(result.numpy().astype(np.float64).tobytes().hex())
"""


def _random(dtype, *shapes):
    rng = np.random.default_rng(0)
    return [tf.cast(rng.uniform(-1, 1, shape), dtype) for shape in shapes]


def _all_results(grad, inputs, weights):
    with tf.GradientTape() as tape:
        tape.watch([inputs, weights])
        output = tf_capsops.capsule_prediction(inputs, weights)
    gradients = tape.gradient(output, [inputs, weights], grad)
    return [tensor.numpy() for tensor in (output, *gradients)]


@every_dtype
def test_every_run_gives_the_same_bits(dtype, device):
    tensors = _random(dtype, (130, 67, 10, 16), (130, 67, 8), (67, 10, 16, 8))
    first = _all_results(*tensors)
    for _ in range(5):
        for one, other in zip(first, _all_results(*tensors)):
            assert one.tobytes() == other.tobytes()


def test_threads_do_not_change_the_bits():
    digests = fresh.same_for_every_number_of_threads(_DIGEST)
    assert len(set(digests)) == 12


def test_an_infinite_weight_gives_an_infinite_gradient(device):
    """And not NaN, as where padding of the columns would be multiplied with it."""
    weights = np.ones((1, 1, 3, 2), np.float32)
    weights[..., -1, :] = np.inf
    lib = tf.load_op_library(tf_capsops.library_path())
    result = lib.capsule_prediction_grad(
        np.ones((1, 1, 1, 3), np.float32), np.ones((1, 1, 2), np.float32), weights
    )
    assert np.isposinf(result.grad_input.numpy()).all()


def test_kernels_of_older_processors():
    fresh.pass_on_older_processors("test_capsule_prediction.py")


@every_dtype
@pytest.mark.parametrize("bad", [np.nan, np.inf], ids=str)
def test_bad_numbers_stay_in_their_place(bad, dtype, device):
    """A NaN or an infinity reaches only the results its number takes part in."""
    shapes = (9, 5, 4, 8), (9, 5, 8), (5, 4, 8, 8)
    tensors = _random(dtype, *shapes)
    clean = _all_results(*tensors)
    places = [(4, 2, 1, 3), (4, 2, 6), (2, 1, 3, 6)]
    # Of output, input gradient and weight gradient, by where the bad number is.
    reached = [
        (None, np.s_[4, 2], np.s_[2, 1, 3]),
        (np.s_[4, 2], None, np.s_[2, :, :, 6]),
        (np.s_[:, 2, 1, 3], np.s_[:, 2, 6], None),
    ]
    for position, (place, regions) in enumerate(zip(places, reached)):
        spoiled = list(tensors)
        spoiled[position] = tf.tensor_scatter_nd_update(
            tensors[position], [place], tf.constant([bad], dtype)
        )
        for before, after, region in zip(clean, _all_results(*spoiled), regions):
            touched = np.zeros(before.shape, bool)
            if region is not None:
                touched[region] = True
            finite = np.isfinite(after.astype(np.float64))
            np.testing.assert_array_equal(finite, ~touched)
            np.testing.assert_array_equal(after[~touched], before[~touched])


@pytest.mark.parametrize("misaligned", ["input", "weights", "grad"])
@every_dtype
def test_slices_of_larger_tensors(misaligned, dtype, device):
    """A row taken out of a larger tensor may begin at any address."""
    grad, inputs, weights = _random(dtype, (3, 7, 5, 3), (3, 7, 3), (7, 5, 3, 3))
    aligned = _all_results(grad, inputs, weights)
    tensors = {"grad": grad, "input": inputs, "weights": weights}
    twice = tf.stack([tensors[misaligned]] * 2)

    @tf.function
    def through_slice(twice):
        sliced = {**tensors, misaligned: twice[1]}
        with tf.GradientTape() as tape:
            tape.watch([sliced["input"], sliced["weights"]])
            output = tf_capsops.capsule_prediction(sliced["input"], sliced["weights"])
        sources = [sliced["input"], sliced["weights"]]
        return output, *tape.gradient(output, sources, sliced["grad"])

    for one, other in zip(aligned, through_slice(twice)):
        np.testing.assert_array_equal(one, other.numpy())


@pytest.mark.slow
def test_more_elements_than_32_bits_count(device):
    """2^31 + 2^15 predictions (4.3 GB in bfloat16), also as the gradient's input."""
    batch, out_caps, out_dim = 2**16 + 1, 2**6, 2**9
    inputs, weights = _random(tf.bfloat16, (batch, 1, 1), (1, out_caps, out_dim, 1))
    bare = tf.load_op_library(tf_capsops.library_path())
    output = bare.capsule_prediction(inputs, weights)
    assert np.prod(output.shape.as_list()) > 2**31
    last = inputs[-1:]
    exact_last, exact_weights = (t.numpy().astype(np.float64) for t in (last, weights))
    truth = reference.forward(exact_last, exact_weights)
    plain = PLAIN(last, weights)
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
    inputs, weights = _random(tf.float32, (5, 7, 3), (7, 4, 2, 3))

    class Votes(tf.Module):
        def __init__(self):
            self.weights = tf.Variable(weights)

        @tf.function(input_signature=[tf.TensorSpec([None, 7, 3], tf.float32)])
        def votes(self, inputs):
            return tf_capsops.capsule_prediction(inputs, self.weights)

        @tf.function(input_signature=[tf.TensorSpec([None, 7, 3], tf.float32)])
        def gradients(self, inputs):
            with tf.GradientTape() as tape:
                tape.watch(inputs)
                output = tf_capsops.capsule_prediction(inputs, self.weights)
            return tape.gradient(output, [inputs, self.weights])

    model = Votes()
    expected = [model.votes(inputs), *model.gradients(inputs)]
    tf.saved_model.save(model, tmp_path / "model")
    np.savez(tmp_path / "data.npz", x=inputs.numpy())
    printed = fresh.run(
        _LOAD_AND_CALL, tmp_path / "model", tmp_path / "data.npz", device
    )
    assert printed.split() == [
        result.numpy().astype(np.float64).tobytes().hex() for result in expected
    ]
