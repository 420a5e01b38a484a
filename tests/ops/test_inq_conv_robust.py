# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""InqConv: repeatable, NaN kept in its place, large, saved and loaded."""

import functools

import fresh
import numpy as np
import pytest
import robustness
import tensorflow as tf
from descriptions import every_dtype
from reference import inq_conv as reference
from registrations import bare
from tolerances import assert_close, assert_rounded

import tf_capsops

MOVED = {"strides": (2, 1), "dilations": (1, 2), "bits": 4}

# Prints a digest of output and gradient; argument: threads of one op.
_DIGEST = """
import hashlib, sys
import numpy as np
import tensorflow as tf
import tf_capsops
tf.config.threading.set_intra_op_parallelism_threads(int(sys.argv[1]))
rng = np.random.default_rng(0)
for dtype in (tf.float32, tf.float64, tf.float16, tf.bfloat16):
    for image, kernel, strides in (
        ((3, 17, 16, 5), (3, 2, 5, 7), 2),
        ((4, 19, 18, 64), (3, 3, 64, 32), 1),
        ((40, 9, 8, 1), (3, 3, 1, 2), 1),
        ((5, 14, 15, 33), (1, 1, 33, 129), 2),
    ):
        inputs = tf.cast(rng.uniform(-1, 1, image), dtype)
        codes = rng.integers(0, 17, kernel, np.uint8)
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            output = tf_capsops.inq_conv2d(inputs, codes, -1, strides=strides)
        for result in (output, tape.gradient(output, inputs)):
            print(hashlib.sha256(result.numpy().tobytes()).hexdigest())
"""

_LOAD_AND_CALL = """
import sys
import numpy as np
import tensorflow as tf
import tf_capsops
model = tf.saved_model.load(sys.argv[1])
image = np.load(sys.argv[2])
tf.config.experimental.enable_tensor_float_32_execution(False)
with tf.device(sys.argv[3]):
    results = model.convolve(image), model.gradient(image)
for result in results:
    print(result.numpy().tobytes().hex())
"""


def _draw(dtype, image, kernel, bits=5, **moved):
    """Returns (grad, input, codes)."""
    rng = np.random.default_rng(0)
    shapes = reference.output_shape(image, kernel, **moved), image
    real = [tf.cast(rng.uniform(-1, 1, shape), dtype) for shape in shapes]
    codes = rng.integers(0, 2 ** (bits - 1), kernel, np.uint8, endpoint=True)
    return *real, tf.constant(codes)


def _results(grad, inputs, codes, **attributes):
    """Returns output and gradient of the input."""
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        output = tf_capsops.inq_conv2d(inputs, codes, -1, **attributes)
    return [t.numpy() for t in (output, tape.gradient(output, inputs, grad))]


@every_dtype
@pytest.mark.parametrize(
    "image, kernel",
    [
        ((13, 17, 16, 5), (3, 2, 5, 7)),
        ((3, 19, 18, 64), (3, 3, 64, 32)),
        ((2, 9, 7, 129), (1, 1, 129, 65)),
    ],
    ids=str,
)
def test_every_run_gives_the_same_bits(image, kernel, dtype, device):
    tensors = _draw(dtype, image, kernel)
    first = _results(*tensors)
    for _ in range(4):
        for one, other in zip(first, _results(*tensors), strict=True):
            assert one.tobytes() == other.tobytes()


def test_threads_do_not_change_the_bits():
    digests = fresh.same_for_every_number_of_threads(_DIGEST)
    assert len(set(digests)) == 4 * 4 * 2


def test_kernels_of_older_processors():
    # Levels share the code that finds pixels, and differ in that for numbers.
    fresh.pass_on_older_processors(
        "test_inq_conv.py",
        "-k",
        "(values and (primes or channels or bits or long)) or every_code",
    )


@every_dtype
@pytest.mark.parametrize("bad", [np.nan, np.inf], ids=str)
@pytest.mark.parametrize("position", [0, 1], ids=["grad", "input"])
@pytest.mark.parametrize(
    "image, kernel, moved",
    [
        ((2, 7, 6, 3), (2, 3, 3, 5), {"padding": "VALID"}),
        ((2, 9, 7, 17), (3, 3, 17, 16), {"strides": (2, 2)}),
        ((2, 7, 6, 8), (2, 3, 8, 7), {"dilations": (2, 1)}),
    ],
    ids=str,
)
def test_bad_numbers_stay_in_their_place(
    image, kernel, moved, position, bad, dtype, device
):
    """A NaN or an infinity reaches only the results its number takes part in."""
    tensors = _draw(dtype, image, kernel, **moved)
    clean = _results(*tensors, **moved)
    place = tuple(size - 1 - (size > 2) for size in tensors[position].shape)
    spoiled, here = list(tensors), np.zeros(tensors[position].shape)
    spoiled[position] = tf.tensor_scatter_nd_update(
        tensors[position], [place], tf.constant([bad], dtype)
    )
    here[place] = 1
    ones = np.ones(kernel, np.uint8)
    reached = [np.zeros(result.shape) for result in clean]
    if position == 0:
        reached[1] = reference.backprop_input(image, ones, 0, here, **moved)
    else:
        reached[0] = reference.forward(here, ones, 0, **moved)
    assert sum(region.any() for region in reached) == 1
    after = _results(*spoiled, **moved)
    # What is multiplied by a weight of zero is NaN too, or not: both are the sum.
    weighed = [np.zeros(result.shape) for result in clean]
    size = reference.absolute(tensors[2].numpy())
    if position == 0:
        weighed[1] = reference.backprop_input(image, size, 0, here, **moved)
    else:
        weighed[0] = reference.forward(here, size, 0, **moved)
    for before, now, region, sure in zip(clean, after, reached, weighed, strict=True):
        assert not np.isfinite(now[sure != 0].astype(np.float64)).any()
        np.testing.assert_array_equal(now[region == 0], before[region == 0])


@pytest.mark.parametrize("misaligned", range(3), ids=["grad", "input", "codes"])
@pytest.mark.parametrize("channels", [1, 16])
@every_dtype
def test_slices_of_larger_tensors(misaligned, channels, dtype, device):
    """A row taken out of a larger tensor may begin at any address."""
    tensors = _draw(dtype, (1, 5, 5, channels), (3, 3, channels, channels))
    aligned = _results(*tensors)
    flat = tf.reshape(tensors[misaligned], [-1])
    odd = tf.concat([flat[:1], flat], 0)

    @tf.function(autograph=False)
    def through_slice(odd):
        given = list(tensors)
        given[misaligned] = tf.reshape(odd[1:], tensors[misaligned].shape)
        grad, inputs, codes = given
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            output = tf_capsops.inq_conv2d(inputs, codes, -1)
        return output, tape.gradient(output, inputs, grad)

    for one, other in zip(aligned, through_slice(odd), strict=True):
        np.testing.assert_array_equal(one, other.numpy())


@every_dtype
def test_samples_of_a_large_batch(dtype, device):
    """A CPU computes some at a time, and gradients of few channels in its own way."""
    grad, inputs, codes = _draw(dtype, (23, 120, 120, 3), (3, 3, 3, 20))
    few = [0, 11, 12, 22]
    alone = tf.gather(grad, few), tf.gather(inputs, few)
    sizes = tf.abs(alone[0]), tf.abs(alone[1]), reference.absolute(codes.numpy())
    for many, plain, size in zip(
        _results(grad, inputs, codes),
        _results(*alone, codes),
        _results(*sizes),
        strict=True,
    ):
        truth, size = (t.astype(np.float64) for t in (plain, size))
        assert_close(many[few], truth, plain, size)


@pytest.mark.slow
def test_more_elements_than_32_bits_count(device):
    """2^31 + 2^25 numbers of output (4.4 GB in bfloat16), also as gradient."""
    samples, channels = 65 * 2**10, 2**15
    rng = np.random.default_rng(0)
    inputs = tf.cast(rng.uniform(-1, 1, (samples, 1, 1, 1)), tf.bfloat16)
    codes = tf.constant(rng.integers(1, 5, (1, 1, 1, channels), np.uint8))
    output = bare().inq_conv(inputs, codes, 0)
    assert np.prod(output.shape.as_list()) > 2**31
    by_input = bare().inq_conv_backprop_input(inputs.shape, codes, 0, output)

    # Of each the end alone is looked at, and what it is made of.
    few = np.s_[-4:]
    image, grad = (t[few].numpy().astype(np.float64) for t in (inputs, output))
    truth = reference.forward(image, codes.numpy(), 0)
    assert_rounded(np.abs(output[few].numpy()), np.abs(truth))
    truth = reference.backprop_input(image.shape, codes.numpy(), 0, grad)
    size = reference.absolute(codes.numpy())
    magnitude = reference.backprop_input(image.shape, size, 0, np.abs(grad))
    plain = truth.astype(np.float32).astype(tf.bfloat16.as_numpy_dtype)
    assert_close(by_input[few].numpy(), truth, plain, magnitude)


def test_saved_model_in_a_fresh_process(tmp_path, device):
    _, image, codes = _draw(tf.float32, (2, 5, 4, 3), (2, 3, 3, 2), bits=4)
    signature = [tf.TensorSpec([None, None, 4, 3], tf.float32)]
    convolve = functools.partial(tf_capsops.inq_conv2d, **MOVED)

    class Model(tf.Module):
        def __init__(self):
            self.codes = tf.Variable(codes)
            self.top_exponent = tf.Variable(-1)

        @tf.function(input_signature=signature)
        def convolve(self, image):
            return convolve(image, self.codes, self.top_exponent)

        @tf.function(input_signature=signature)
        def gradient(self, image):
            with tf.GradientTape() as tape:
                tape.watch(image)
                output = convolve(image, self.codes, self.top_exponent)
            return tape.gradient(output, image)

    model = Model()
    expected = [model.convolve(image), model.gradient(image)]
    tf.saved_model.save(model, tmp_path / "model")
    np.save(tmp_path / "image.npy", image.numpy())
    printed = fresh.run(
        _LOAD_AND_CALL, tmp_path / "model", tmp_path / "image.npy", device
    )
    assert printed.split() == [result.numpy().tobytes().hex() for result in expected]


def test_calls_of_different_sizes_at_the_same_time(device):
    """Kernels have settings that belong to no call, such as their shared memory."""
    sizes = (1, 3, 2), (20, 16, 64), (2, 1, 17), (9, 64, 129)
    drawn = [_draw(tf.float32, (batch, 6, 5, c), (3, 2, c, o)) for batch, c, o in sizes]

    def run(tensors):
        with tf.device(device):
            return _results(*tensors)

    robustness.same_at_the_same_time(run, drawn)
