# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""CapsuleRouting: repeatable, NaN kept in its sample, saved and loaded."""

import functools

import fresh
import numpy as np
import pytest
import robustness
import tensorflow as tf
from descriptions import every_dtype

import tf_capsops

# Prints a digest of output, gradients and coefficients; argument: threads of one op.
_DIGEST = """
import hashlib, sys
import numpy as np
import tensorflow as tf
import tf_capsops
tf.config.threading.set_intra_op_parallelism_threads(int(sys.argv[1]))
rng = np.random.default_rng(0)
for dtype in (tf.float32, tf.float64, tf.float16, tf.bfloat16):
    for batch, in_caps in (67, 131), (3, 1031):
        weights = in_caps, 10, 16, 8
        shapes = (batch, 10, 16), (batch, in_caps, 8), weights, weights[:2]
        grad, *sources = (tf.cast(rng.uniform(-1, 1, s), dtype) for s in shapes)
        with tf.GradientTape() as tape:
            tape.watch(sources)
            output = tf_capsops.capsule_routing(*sources)
        coefficients = tf_capsops.routing_coefficients(*sources)
        for result in (output, *tape.gradient(output, sources, grad), coefficients):
            print(hashlib.sha256(result.numpy().tobytes()).hexdigest())
"""

_LOAD_AND_CALL = """
import sys
import numpy as np
import tensorflow as tf
import tf_capsops
model = tf.saved_model.load(sys.argv[1])
capsules = np.load(sys.argv[2])
with tf.device(sys.argv[3]):
    results = model.route(capsules), *model.gradients(capsules)
for result in results:
    print(result.numpy().tobytes().hex())
"""


def _random(dtype, *shapes):
    rng = np.random.default_rng(0)
    return [tf.cast(rng.uniform(-1, 1, shape), dtype) for shape in shapes]


def _draw(dtype, batch, in_caps, out_caps, out_dim, in_dim):
    """Returns (grad, input, weights, logits)."""
    return _random(
        dtype,
        (batch, out_caps, out_dim),
        (batch, in_caps, in_dim),
        (in_caps, out_caps, out_dim, in_dim),
        (in_caps, out_caps),
    )


def _all_results(grad, *inputs, iterations=3):
    """Returns output, the three gradients and the coefficients."""
    route = functools.partial(tf_capsops.capsule_routing, iterations=iterations)
    look = functools.partial(tf_capsops.routing_coefficients, iterations=iterations)
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        output = route(*inputs)
    gradients = tape.gradient(output, inputs, grad)
    return [tensor.numpy() for tensor in (output, *gradients, look(*inputs))]


@every_dtype
@pytest.mark.parametrize("sizes", [(130, 67, 10, 16, 8), (2, 1153, 13, 9, 5)])
def test_every_run_gives_the_same_bits(sizes, dtype, device):
    tensors = _draw(dtype, *sizes)
    first = _all_results(*tensors)
    for _ in range(4):
        for one, other in zip(first, _all_results(*tensors)):
            assert one.tobytes() == other.tobytes()


def test_threads_do_not_change_the_bits():
    digests = fresh.same_for_every_number_of_threads(_DIGEST)
    assert len(set(digests)) == 4 * 2 * 5


def test_kernels_of_older_processors():
    fresh.pass_on_older_processors(
        "test_capsule_routing.py",
        "-k",
        "(gradients or coefficients) and not (autodiff or many)",
    )


@every_dtype
@pytest.mark.parametrize("bad", [np.nan, np.inf], ids=str)
@pytest.mark.parametrize("place", ["input", "grad"])
@pytest.mark.parametrize("sizes", [(17, 7, 5, 3, 3), (33, 5, 12, 16, 8)])
def test_bad_numbers_stay_in_their_sample(sizes, place, bad, dtype, device):
    """The results of other samples stay the same, to the bit."""
    grad, inputs, *rest = _draw(dtype, *sizes)
    sample = sizes[0] - 2
    clean = _all_results(grad, inputs, *rest)
    value = tf.constant([bad], dtype)
    if place == "input":
        inputs = tf.tensor_scatter_nd_update(inputs, [(sample, 2, 1)], value)
    else:
        grad = tf.tensor_scatter_nd_update(grad, [(sample, 2, 1)], value)
    spoiled = _all_results(grad, inputs, *rest)
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
    grad, inputs, weights, logits = _draw(dtype, *sizes)
    clean, *_, clean_shares = _all_results(grad, inputs, weights, logits, iterations=1)
    for place in (3, 2, 0, 0), (3, 2, sizes[3] - 1, sizes[4] - 1):
        value = tf.constant([np.inf], dtype)
        spoiled = tf.tensor_scatter_nd_update(weights, [place], value)
        output, _, by_weights, by_logits, shares = _all_results(
            grad, inputs, spoiled, logits, iterations=1
        )
        others = np.arange(sizes[2]) != place[1]
        np.testing.assert_array_equal(output[:, others], clean[:, others])
        assert not np.isfinite(output[:, ~others].astype(np.float64)).all()
        assert np.isfinite(by_weights[:, others].astype(np.float64)).all()
        assert not np.isfinite(by_logits.astype(np.float64)).any()
        np.testing.assert_array_equal(shares, clean_shares)


@pytest.mark.parametrize(
    "misaligned", range(4), ids=["grad", "input", "weights", "logits"]
)
@every_dtype
def test_slices_of_larger_tensors(misaligned, dtype, device):
    """A row taken out of a larger tensor may begin at any address."""
    tensors = _draw(dtype, 3, 7, 5, 3, 3)
    aligned = _all_results(*tensors)
    twice = tf.stack([tensors[misaligned]] * 2)

    @tf.function
    def through_slice(twice):
        grad, *inputs = [*tensors[:misaligned], twice[1], *tensors[misaligned + 1 :]]
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            output = tf_capsops.capsule_routing(*inputs)
        gradients = tape.gradient(output, inputs, grad)
        return output, *gradients, tf_capsops.routing_coefficients(*inputs)

    for one, other in zip(aligned, through_slice(twice)):
        np.testing.assert_array_equal(one, other.numpy())


def test_saved_model_in_a_fresh_process(tmp_path, device):
    (capsules,) = _random(tf.float32, (5, 7, 3))
    layer = tf_capsops.layers.DigitCaps(4, 2, logits_trainable=True)
    layer.build(capsules.shape)
    signature = [tf.TensorSpec([None, 7, 3], tf.float32)]

    class Model(tf.Module):
        def __init__(self):
            self.weights = [weight.value for weight in layer.weights]

        @tf.function(input_signature=signature)
        def route(self, capsules):
            return layer(capsules)

        @tf.function(input_signature=signature)
        def gradients(self, capsules):
            with tf.GradientTape() as tape:
                tape.watch(capsules)
                output = layer(capsules)
            return tape.gradient(output, [capsules, *self.weights])

    model = Model()
    expected = [model.route(capsules), *model.gradients(capsules)]
    tf.saved_model.save(model, tmp_path / "model")
    np.save(tmp_path / "capsules.npy", capsules.numpy())
    printed = fresh.run(
        _LOAD_AND_CALL, tmp_path / "model", tmp_path / "capsules.npy", device
    )
    assert printed.split() == [result.numpy().tobytes().hex() for result in expected]


def test_calls_of_different_sizes_at_the_same_time(device):
    """Kernels have settings that belong to no call, such as their shared memory."""
    drawn = [_draw(tf.float32, batch, 9, 10, 16, 8) for batch in (1, 40, 2, 33)]

    def run(tensors):
        with tf.device(device):
            return _all_results(*tensors)

    robustness.same_at_the_same_time(run, drawn, times=25)
