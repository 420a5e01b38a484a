# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""HighOrderConv: repeatable, NaN kept in its place, large, saved and loaded."""

import functools

import fresh
import numpy as np
import pytest
import robustness
import tensorflow as tf
from descriptions import every_dtype
from reference import high_order_conv as reference
from tolerances import assert_close

import tf_capsops

both_formats = pytest.mark.parametrize("data_format", ["NHWC", "NCHW"])
every_operand = pytest.mark.parametrize(
    "operand", range(3), ids=["grad", "input", "filters"]
)

# Prints a digest of output and gradients; argument: threads of one op.
_DIGEST = """
import hashlib, sys
import numpy as np
import tensorflow as tf
import tf_capsops
tf.config.threading.set_intra_op_parallelism_threads(int(sys.argv[1]))
rng = np.random.default_rng(0)
for dtype in (tf.float32, tf.float64, tf.float16, tf.bfloat16):
    for image, kernel, groups in (
        ((5, 37, 41, 3), (5, 5), 1),
        ((3, 17, 19, 48), (3, 3), 3),
        ((1, 9, 301, 1), (7, 3), 1),
    ):
        for data_format in ("NHWC", "NCHW"):
            shapes = image, (*image[:3], groups * kernel[0] * kernel[1])
            sources = [tf.cast(rng.uniform(-1, 1, s), dtype) for s in shapes]
            if data_format == "NCHW":
                sources = [tf.transpose(s, (0, 3, 1, 2)) for s in sources]
            with tf.GradientTape() as tape:
                tape.watch(sources)
                output = tf_capsops.high_order_conv2d(
                    *sources, kernel, groups, (2, 1), data_format
                )
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
with tf.device(sys.argv[3]):
    results = model.smooth(image), *model.gradients(image)
for result in results:
    print(result.numpy().tobytes().hex())
"""


def _first(tensor):
    return tf.transpose(tensor, (0, 3, 1, 2))


def _draw(dtype, image, kernel, groups=1, data_format="NHWC"):
    """Returns (grad, input, filters); `image` is in the order NHWC."""
    rng = np.random.default_rng(0)
    shapes = image, image, (*image[:3], groups * kernel[0] * kernel[1])
    tensors = [tf.cast(rng.uniform(-1, 1, shape), dtype) for shape in shapes]
    return [*map(_first, tensors)] if data_format == "NCHW" else tensors


def _all_results(grad, *inputs, **attributes):
    """Returns output, gradient of the input and gradient of the filters."""
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        output = tf_capsops.high_order_conv2d(*inputs, **attributes)
    gradients = tape.gradient(output, inputs, grad)
    return [tensor.numpy() for tensor in (output, *gradients)]


def _last(array, data_format):
    return np.moveaxis(array, 1, 3) if data_format == "NCHW" else array


@every_dtype
@both_formats
@pytest.mark.parametrize(
    "image, kernel, groups",
    [((9, 31, 33, 3), (5, 5), 1), ((2, 17, 70, 32), (3, 3), 2)],
    ids=str,
)
def test_every_run_gives_the_same_bits(
    image, kernel, groups, data_format, dtype, device
):
    tensors = _draw(dtype, image, kernel, groups, data_format)
    attributes = {"kernel_size": kernel, "groups": groups, "data_format": data_format}
    first = _all_results(*tensors, **attributes)
    for _ in range(4):
        for one, other in zip(first, _all_results(*tensors, **attributes), strict=True):
            assert one.tobytes() == other.tobytes()


def test_threads_do_not_change_the_bits():
    digests = fresh.same_for_every_number_of_threads(_DIGEST)
    assert len(set(digests)) == 4 * 3 * 2 * 3


def test_kernels_of_older_processors():
    # Levels share the code that finds pixels, and differ in that for numbers.
    fresh.pass_on_older_processors(
        "test_high_order_conv.py",
        "-k",
        "(values and not grid and not tiles) or accumulate",
    )


def _reached(tensors, operand, place, kernel, groups, dilations):
    """Returns where an element of one of (grad, input, filters) reaches the results."""
    given = [np.ones(tensor.shape) for tensor in tensors]
    given[operand] = np.zeros(tensors[operand].shape)
    given[operand][place] = 1
    grad, inputs, filters = given
    attributes = kernel, groups, dilations
    results = (
        reference.forward(inputs, filters, *attributes),
        *reference.backward(grad, inputs, filters, *attributes),
    )
    uses = (1, 2), (0, 2), (0, 1)
    return [
        (result != 0) & (operand in used)
        for result, used in zip(results, uses, strict=True)
    ]


@every_dtype
@both_formats
@every_operand
@pytest.mark.parametrize("bad", [np.nan, np.inf], ids=str)
@pytest.mark.parametrize("corner", [False, True], ids=["inside", "corner"])
@pytest.mark.parametrize(
    "image, kernel, groups, dilations",
    [
        ((2, 7, 6, 3), (5, 3), 1, (1, 1)),
        ((2, 9, 35, 8), (3, 3), 2, (2, 1)),
        ((1, 3, 4, 4), (9, 7), 4, (1, 1)),
        ((2, 5, 9, 3), (5, 5), 1, (1, 2**31 - 1)),
    ],
    ids=str,
)
def test_bad_numbers_stay_in_their_place(
    image, kernel, groups, dilations, corner, bad, operand, data_format, dtype, device
):
    """A NaN or an infinity reaches only the results its number takes part in.

    What belongs to a position outside the image takes part in none: the first number
    of a filter in the corner.
    """
    tensors = _draw(dtype, image, kernel, groups)
    place = tuple(
        0 if corner else size - 1 - (size > 2) for size in tensors[operand].shape
    )
    spoiled = list(tensors)
    spoiled[operand] = tf.tensor_scatter_nd_update(
        tensors[operand], [place], tf.constant([bad], dtype)
    )
    attributes = {"kernel_size": kernel, "groups": groups, "dilations": dilations}

    def compute(tensors):
        if data_format == "NCHW":
            tensors = map(_first, tensors)
        results = _all_results(*tensors, data_format=data_format, **attributes)
        return [_last(result, data_format) for result in results]

    regions = _reached(tensors, operand, place, kernel, groups, dilations)
    if operand < 2:
        assert sum(region.any() for region in regions) == 2
    elif corner:
        assert not any(region.any() for region in regions)
    for before, after, touched in zip(
        compute(tensors), compute(spoiled), regions, strict=True
    ):
        finite = np.isfinite(after.astype(np.float64))
        assert not finite[touched].any()
        assert finite[~touched].all()
        np.testing.assert_array_equal(after[~touched], before[~touched])


@every_dtype
@both_formats
@pytest.mark.parametrize("bad", [np.nan, np.inf], ids=str)
@pytest.mark.parametrize(
    "image, kernel, groups",
    [((2, 6, 7, 3), (5, 3), 1), ((1, 4, 33, 4), (3, 3), 2), ((1, 2, 3, 2), (7, 7), 1)],
    ids=str,
)
def test_what_filters_hold_for_outside_the_image(
    image, kernel, groups, bad, data_format, dtype, device
):
    """It may be anything; its gradient is zero even if nothing else is a number."""
    grad, inputs, filters = _draw(dtype, image, kernel, groups)
    ones = np.ones(image), np.ones(image), np.ones(filters.shape)
    outside = reference.backward(*ones, kernel, groups)[1] == 0
    assert 0 < outside.sum() < outside.size
    spoiled = tf.where(outside, tf.constant(bad, dtype), filters)
    attributes = {"kernel_size": kernel, "groups": groups, "data_format": data_format}
    order = _first if data_format == "NCHW" else tf.identity

    def compute(*tensors):
        return _all_results(*map(order, tensors), **attributes)

    for before, after in zip(
        compute(grad, inputs, filters), compute(grad, inputs, spoiled), strict=True
    ):
        np.testing.assert_array_equal(after, before)
    nowhere = tf.fill(image, tf.constant(bad, dtype))
    for given in ((nowhere, inputs), (grad, nowhere), (nowhere, nowhere)):
        in_filters = _last(compute(*given, filters)[2], data_format)
        np.testing.assert_array_equal(in_filters[outside], 0)
        assert not np.isfinite(in_filters[~outside].astype(np.float64)).any()


@every_operand
@every_dtype
@both_formats
def test_slices_of_larger_tensors(operand, dtype, data_format, device):
    """A row taken out of a larger tensor may begin at any address."""
    tensors = _draw(dtype, (1, 5, 7, 3), (3, 3), 1, data_format)
    attributes = {"kernel_size": 3, "data_format": data_format}
    aligned = _all_results(*tensors, **attributes)
    odd = tf.concat([[0], tf.reshape(tensors[operand], [-1])], 0)

    @tf.function(autograph=False)
    def through_slice(odd):
        given = list(tensors)
        given[operand] = tf.reshape(odd[1:], tensors[operand].shape)
        grad, *inputs = given
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            output = tf_capsops.high_order_conv2d(*inputs, **attributes)
        return output, *tape.gradient(output, inputs, grad)

    for one, other in zip(aligned, through_slice(odd), strict=True):
        np.testing.assert_array_equal(one, other.numpy())


@pytest.mark.slow
@both_formats
def test_more_elements_than_32_bits_count(data_format, device):
    """2^31 and more numbers of filters (4.4 GB in bfloat16), and as many of gradient.

    Filters repeat every 7 rows. Of the results the end alone is looked at.
    """
    repeats, width, kernel, rows = 1001, 6400, (7, 7), 7
    image = 1, 7 * repeats, width, 1
    rng = np.random.default_rng(0)
    pattern = tf.cast(rng.uniform(-1, 1, (1, 7, width, 49)), tf.bfloat16)
    grad, inputs = (tf.cast(rng.uniform(-1, 1, image), tf.bfloat16) for _ in range(2))
    tail = [t[:, -2 * rows :].numpy().astype(np.float64) for t in (grad, inputs)]
    tail.append(np.tile(pattern.numpy().astype(np.float64), (1, 2, 1, 1)))
    order = _first if data_format == "NCHW" else tf.identity
    copies = (1, 1, repeats, 1) if data_format == "NCHW" else (1, repeats, 1, 1)
    with tf.device("CPU"):
        filters = tf.tile(order(pattern), copies)
    assert np.prod(filters.shape.as_list()) > 2**31
    given, attributes = [order(grad), order(inputs), filters], {"kernel_size": kernel}
    attributes["data_format"] = data_format
    bare = tf.load_op_library(tf_capsops.library_path())
    results = (
        bare.high_order_conv(*given[1:], **attributes),
        *bare.high_order_conv_grad(*given, **attributes),
    )
    end = np.s_[:, :, -rows:] if data_format == "NCHW" else np.s_[:, -rows:]
    truth, magnitude = (
        (
            reference.forward(*operands[1:], kernel),
            *reference.backward(*operands, kernel),
        )
        for operands in (tail, [*map(np.abs, tail)])
    )
    for ours, exact, size in zip(results, truth, magnitude, strict=True):
        exact, size = exact[:, -rows:], size[:, -rows:]
        plain = exact.astype(np.float32).astype(ours.dtype.as_numpy_dtype)
        assert_close(_last(ours[end].numpy(), data_format), exact, plain, size)


def test_saved_model_in_a_fresh_process(tmp_path, device):
    _, image, filters = _draw(tf.float32, (2, 5, 4, 6), (3, 5), 2)
    smooth = functools.partial(
        tf_capsops.high_order_conv2d, kernel_size=(3, 5), groups=2, dilations=(1, 2)
    )
    signature = [tf.TensorSpec([2, None, 4, None], tf.float32)]

    class Model(tf.Module):
        def __init__(self):
            self.filters = tf.Variable(filters)

        @tf.function(input_signature=signature)
        def smooth(self, image):
            return smooth(image, self.filters)

        @tf.function(input_signature=signature)
        def gradients(self, image):
            with tf.GradientTape() as tape:
                tape.watch(image)
                output = smooth(image, self.filters)
            return tape.gradient(output, [image, self.filters])

    model = Model()
    expected = [model.smooth(image), *model.gradients(image)]
    tf.saved_model.save(model, tmp_path / "model")
    np.save(tmp_path / "image.npy", image.numpy())
    printed = fresh.run(
        _LOAD_AND_CALL, tmp_path / "model", tmp_path / "image.npy", device
    )
    assert printed.split() == [result.numpy().tobytes().hex() for result in expected]


def test_calls_of_different_sizes_at_the_same_time(device):
    """Kernels have settings that belong to no call, such as their shared memory."""
    sizes = ((1, 9, 8, 3), 5, 1), ((4, 30, 31, 16), 3, 4), ((2, 3, 70, 1), 7, 1)
    drawn = [(_draw(tf.float32, s, (k, k), g), k, g) for s, k, g in sizes]

    def run(one):
        tensors, kernel, groups = one
        with tf.device(device):
            return _all_results(*tensors, kernel_size=kernel, groups=groups)

    robustness.same_at_the_same_time(run, drawn)
