# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""CapsuleConv: repeatable, NaN kept in its place, large, saved and loaded."""

import functools

import fresh
import numpy as np
import pytest
import robustness
import tensorflow as tf
from descriptions import every_dtype
from reference import capsule_conv as reference
from tolerances import assert_close, assert_rounded

import tf_capsops

MOVED = {"strides": (2, 1), "dilations": (1, 2), "padding": "SAME"}

# Prints a digest of output and gradients; argument: threads of one op.
_DIGEST = """
import hashlib, sys
import numpy as np
import tensorflow as tf
import tf_capsops
tf.config.threading.set_intra_op_parallelism_threads(int(sys.argv[1]))
rng = np.random.default_rng(0)
for dtype in (tf.float32, tf.float64, tf.float16, tf.bfloat16):
    for image, kernel in (
        ((3, 17, 16, 5, 4, 4), (3, 2, 5, 7, 4, 4)),
        ((40, 9, 8, 1, 4, 4), (3, 3, 1, 2, 4, 4)),
        ((2, 6, 7, 33, 4, 4), (2, 3, 33, 9, 4, 4)),
        ((5, 9, 7, 3, 2, 5, 3), (3, 2, 3, 4, 2, 3, 7)),
    ):
        sources = [tf.cast(rng.uniform(-1, 1, s), dtype) for s in (image, kernel)]
        with tf.GradientTape() as tape:
            tape.watch(sources)
            output = tf_capsops.capsule_conv2d(*sources, strides=2, padding="SAME")
        for result in (output, *tape.gradient(output, sources)):
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
    results = model.convolve(image), *model.gradients(image)
for result in results:
    print(result.numpy().tobytes().hex())
"""


def _draw(dtype, image, kernel, **attributes):
    """Returns (grad, input, weights)."""
    rng = np.random.default_rng(0)
    moved = {"strides": (1, 1), "dilations": (1, 1), "padding": "VALID", **attributes}
    shapes = reference.output_shape(image, kernel, **moved), image, kernel
    return [tf.cast(rng.uniform(-1, 1, shape), dtype) for shape in shapes]


def _all_tensors(grad, *inputs, **attributes):
    """Returns output, gradient of the input and gradient of the weights."""
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        output = tf_capsops.capsule_conv2d(*inputs, **attributes)
    return output, *tape.gradient(output, inputs, grad)


def _all_results(*tensors, **attributes):
    return [tensor.numpy() for tensor in _all_tensors(*tensors, **attributes)]


@every_dtype
@pytest.mark.parametrize(
    "image, kernel",
    [
        ((13, 17, 16, 5, 4, 4), (3, 2, 5, 7, 4, 4)),
        ((3, 40, 41, 2, 4, 4), (5, 5, 2, 1, 4, 4)),
        ((3, 9, 7, 3, 2, 5, 3), (3, 2, 3, 4, 2, 3, 7)),
    ],
    ids=str,
)
def test_every_run_gives_the_same_bits(image, kernel, dtype, device):
    tensors = _draw(dtype, image, kernel)
    first = _all_results(*tensors)
    for _ in range(4):
        for one, other in zip(first, _all_results(*tensors), strict=True):
            assert one.tobytes() == other.tobytes()


def test_threads_do_not_change_the_bits():
    digests = fresh.same_for_every_number_of_threads(_DIGEST)
    assert len(set(digests)) == 4 * 4 * 3


def test_kernels_of_older_processors():
    # Levels share the code that finds pixels, and differ in that for numbers.
    fresh.pass_on_older_processors(
        "test_capsule_conv.py",
        "-k",
        "(values and (primes or channels or pose or long)) or accumulate",
    )


def _reached(tensors, position, place, **attributes):
    """Returns where an element of one of (grad, input, weights) reaches the results."""
    given = [np.ones(tensor.shape) for tensor in tensors]
    given[position] = np.zeros(tensors[position].shape)
    given[position][place] = 1
    grad, inputs, weights = given
    results = (
        reference.forward(inputs, weights, **attributes),
        reference.backprop_input(inputs.shape, weights, grad, **attributes),
        reference.backprop_weights(inputs, weights.shape, grad, **attributes),
    )
    uses = (1, 2), (0, 2), (0, 1)
    return [
        (result != 0) & (position in used)
        for result, used in zip(results, uses, strict=True)
    ]


@every_dtype
@pytest.mark.parametrize("bad", [np.nan, np.inf], ids=str)
@pytest.mark.parametrize("position", [0, 1, 2], ids=["grad", "input", "weights"])
@pytest.mark.parametrize(
    "image, kernel, attributes",
    [
        ((2, 7, 6, 3, 4, 4), (2, 3, 3, 5, 4, 4), {}),
        ((2, 9, 7, 17, 4, 4), (3, 3, 17, 2, 4, 4), {"strides": (2, 2)}),
        ((2, 7, 6, 3, 5, 3), (2, 3, 3, 2, 3, 7), {"dilations": (2, 1)}),
        ((2, 5, 6, 2, 3, 2, 2), (2, 3, 2, 3, 3, 2, 2), {}),
    ],
    ids=str,
)
def test_bad_numbers_stay_in_their_place(
    image, kernel, attributes, position, bad, dtype, device
):
    """A NaN or an infinity reaches only the results its number takes part in.

    A GPU multiplies a weight also by the zeros beside an image: there a bad weight may
    reach all pixels of the channels and columns it belongs to.
    """
    tensors = _draw(dtype, image, kernel, **attributes)
    clean = _all_results(*tensors, **attributes)
    place = tuple(size - 1 - (size > 2) for size in tensors[position].shape)
    spoiled = list(tensors)
    spoiled[position] = tf.tensor_scatter_nd_update(
        tensors[position], [place], tf.constant([bad], dtype)
    )
    regions = _reached(tensors, position, place, **attributes)
    assert sum(region.any() for region in regions) == 2
    for before, after, touched in zip(
        clean, _all_results(*spoiled, **attributes), regions, strict=True
    ):
        finite = np.isfinite(after.astype(np.float64))
        assert not finite[touched].any()
        if "GPU" in device and position == 2:
            touched = touched | touched.any(axis=(0, 1, 2), keepdims=True)
        assert finite[~touched].all()
        np.testing.assert_array_equal(after[~touched], before[~touched])


@pytest.mark.parametrize("position", [0, 1, 2], ids=["grad", "input", "weights"])
def test_the_largest_number_stays_finite(position, device):
    """Tensor cores take float32 in parts, of which none may be rounded to infinity."""
    largest = np.finfo(np.float32).max
    arrays = [
        np.ones(tensor.shape)
        for tensor in _draw(tf.float32, (2, 5, 4, 8, 4, 4), (2, 3, 8, 9, 4, 4))
    ]
    arrays[position][:] = 0
    arrays[position][(-1,) * arrays[position].ndim] = largest
    grad, image, kernel = arrays
    truths = (
        reference.forward(image, kernel),
        reference.backprop_input(image.shape, kernel, grad),
        reference.backprop_weights(image, kernel.shape, grad),
    )
    results = _all_results(*(tf.constant(array, tf.float32) for array in arrays))
    for result, truth in zip(results, truths, strict=True):
        np.testing.assert_allclose(result, truth, rtol=2**-20)


@pytest.mark.parametrize("misaligned", range(3), ids=["grad", "input", "weights"])
@pytest.mark.parametrize("pose", [(3, 3, 3), (4, 4, 4)], ids=str)
@every_dtype
def test_slices_of_larger_tensors(misaligned, pose, dtype, device):
    """A row taken out of a larger tensor may begin at any address."""
    rows, inner, columns = pose
    image, kernel = (1, 5, 5, 1, rows, inner), (3, 3, 1, 1, inner, columns)
    tensors = _draw(dtype, image, kernel)
    aligned = _all_results(*tensors)
    odd = tf.concat([[0], tf.reshape(tensors[misaligned], [-1])], 0)

    @tf.function(autograph=False)
    def through_slice(odd):
        given = list(tensors)
        given[misaligned] = tf.reshape(odd[1:], tensors[misaligned].shape)
        grad, *inputs = given
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            output = tf_capsops.capsule_conv2d(*inputs)
        return output, *tape.gradient(output, inputs, grad)

    for one, other in zip(aligned, through_slice(odd), strict=True):
        np.testing.assert_array_equal(one, other.numpy())


@pytest.mark.slow
def test_more_elements_than_32_bits_count(device):
    """2^31 + 2^25 numbers of output (4.4 GB in bfloat16), also as gradient."""
    pixels, channels, rows, columns = 65, 2**6, 2**9, 2**10
    rng = np.random.default_rng(0)
    inputs = tf.cast(rng.uniform(-1, 1, (1, pixels, 1, 1, rows, 1)), tf.bfloat16)
    kernel = rng.uniform(-1, 1, (1, 1, 1, channels, 1, columns))
    weights = tf.cast(kernel, tf.bfloat16)
    bare = tf.load_op_library(tf_capsops.library_path())
    output = bare.capsule_conv(inputs, weights)
    assert np.prod(output.shape.as_list()) > 2**31
    by_input = bare.capsule_conv_backprop_input(inputs.shape, weights, output)
    by_weights = bare.capsule_conv_backprop_weights(inputs, weights.shape, output)

    # Of each the end alone is looked at, and what it is made of.
    image, kernel = (t.numpy().astype(np.float64) for t in (inputs, weights))
    few_rows, few_columns = np.s_[:, -1:, :, :, -4:], np.s_[..., -1:, :, -4:]
    truth = reference.forward(image[few_rows], kernel)
    assert_rounded(np.abs(output[few_rows].numpy()), np.abs(truth))
    for ours, compute, operands in (
        (
            by_input[few_rows],
            lambda grad, kernel: reference.backprop_input(
                image[few_rows].shape, kernel, grad
            ),
            (output[few_rows], weights),
        ),
        (
            by_weights[few_columns],
            lambda grad, image: reference.backprop_weights(
                image, kernel[few_columns].shape, grad
            ),
            (output[few_columns], inputs),
        ),
    ):
        exact = [operand.numpy().astype(np.float64) for operand in operands]
        truth, magnitude = compute(*exact), compute(*map(np.abs, exact))
        plain = truth.astype(np.float32).astype(ours.dtype.as_numpy_dtype)
        assert_close(ours.numpy(), truth, plain, magnitude)


def test_saved_model_in_a_fresh_process(tmp_path, device):
    _, image, kernel = _draw(tf.float32, (2, 5, 4, 3, 4, 4), (2, 3, 3, 2, 4, 4))
    signature = [tf.TensorSpec([None, None, 4, 3, 4, 4], tf.float32)]
    convolve = functools.partial(tf_capsops.capsule_conv2d, **MOVED)

    class Model(tf.Module):
        def __init__(self):
            self.weights = tf.Variable(kernel)

        @tf.function(input_signature=signature)
        def convolve(self, image):
            return convolve(image, self.weights)

        @tf.function(input_signature=signature)
        def gradients(self, image):
            with tf.GradientTape() as tape:
                tape.watch(image)
                output = convolve(image, self.weights)
            return tape.gradient(output, [image, self.weights])

    model = Model()
    expected = [model.convolve(image), *model.gradients(image)]
    tf.saved_model.save(model, tmp_path / "model")
    np.save(tmp_path / "image.npy", image.numpy())
    printed = fresh.run(
        _LOAD_AND_CALL, tmp_path / "model", tmp_path / "image.npy", device
    )
    assert printed.split() == [result.numpy().tobytes().hex() for result in expected]


def test_calls_of_different_sizes_at_the_same_time(device):
    """Kernels have settings that belong to no call, such as their shared memory.

    In a graph, for TensorFlow 2.21 mixes up eager calls of threads that share a GPU,
    those of tf.nn.conv2d too (its issue 123980).
    """
    sizes = (1, 3, 2), (20, 16, 5), (2, 1, 17), (9, 32, 3)
    drawn = [
        _draw(tf.float32, (batch, 6, 5, c, 4, 4), (3, 2, c, o, 4, 4))
        for batch, c, o in sizes
    ]

    graph = tf.function(_all_tensors)

    def run(tensors):
        with tf.device(device):
            return [tensor.numpy() for tensor in graph(*tensors)]

    robustness.same_at_the_same_time(run, drawn)
