# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tests of repeatable results and of bad numbers that several ops share.

`results` are functions from tensors, in the order of `descriptions`, to the output and
the gradients.
"""

import concurrent.futures
import os
import sys

import fresh
import numpy as np
import tensorflow as tf

_DIGEST = """
import hashlib, importlib, sys
import tensorflow as tf
tf.config.threading.set_intra_op_parallelism_threads(int(sys.argv[1]))
module = importlib.import_module(sys.argv[2])
for dtype in (tf.float32, tf.float64, tf.float16, tf.bfloat16):
    for results in getattr(module, sys.argv[3])(dtype):
        for result in results:
            print(hashlib.sha256(result.numpy().tobytes()).hexdigest())
"""

_LOAD_AND_CALL = """
import sys
import numpy as np
import tensorflow as tf
import tf_capsops
model = tf.saved_model.load(sys.argv[1])
given = np.load(sys.argv[2])
tf.config.experimental.enable_tensor_float_32_execution(False)
with tf.device(sys.argv[3]):
    results = model.output(given), *model.gradients(given)
for result in results:
    print(result.numpy().tobytes().hex())
"""


def draw(dtype, *shapes):
    """Returns the same random tensors each time."""
    rng = np.random.default_rng(0)
    return [tf.cast(rng.uniform(-1, 1, shape), dtype) for shape in shapes]


def same_bits_every_time(results, tensors):
    first = results(*tensors)
    for _ in range(4):
        for one, other in zip(first, results(*tensors), strict=True):
            assert one.numpy().tobytes() == other.numpy().tobytes()


def threads_do_not_change_the_bits(several):
    """Computes in processes of 1, 2 and 7 threads, which see no GPU.

    Args:
        several: A function of a test module, from a dtype to the results of several
            calls. Each result has other bits than all others.
    """
    arguments = several.__module__, several.__name__
    alone = {"CUDA_VISIBLE_DEVICES": "-1", "PYTHONPATH": os.pathsep.join(sys.path)}
    processes = [fresh.start(_DIGEST, n, *arguments, **alone) for n in (1, 2, 7)]
    one, two, seven = [fresh.finish(process).split() for process in processes]
    assert one == two == seven
    assert len(set(one)) == len(one) > 0


def reached(reference, ones, position, place):
    """Returns where one number reaches the results of an op that is linear in each.

    Args:
        reference: From the arrays to the output and the gradients.
        ones: The arrays, of numbers that are not zero.
        position: Which of the arrays the number is in, and
        place: where.
    """
    given = list(ones)
    given[position] = np.zeros(given[position].shape)
    given[position][place] = 1
    # The first result is made of all but the first array, and so on.
    return [
        (result != 0) & (number != position)
        for number, result in enumerate(reference(*given))
    ]


def last_but_one(tensor):
    """Returns the place of a number at no edge, where the tensor is large enough."""
    return tuple(size - 1 - (size > 2) for size in tensor.shape)


def spoiled(tensors, position, place, bad):
    """Returns the tensors with one number replaced."""
    changed = list(tensors)
    changed[position] = tf.tensor_scatter_nd_update(
        tensors[position], [place], tf.constant([bad], tensors[position].dtype)
    )
    return changed


def bad_numbers_stay(before, after, sure, possible=None):
    """They are wherever `sure` says, and may be where `possible` does and nowhere else.

    Args:
        before: The results without a bad number.
        after: The results with one.
        sure: A mask for each result, as `reached` returns them.
        possible: Likewise, or `sure`.
    """
    for clean, result, here, maybe in zip(
        before, after, sure, possible or sure, strict=True
    ):
        clean, result = clean.numpy(), result.numpy()
        finite = np.isfinite(result.astype(np.float64))
        assert not finite[here].any()
        assert finite[~maybe].all()
        np.testing.assert_array_equal(result[~maybe], clean[~maybe])


def slices_of_larger_tensors(results, tensors, misaligned):
    """A tensor taken out of a larger one may begin at any address."""
    flat = tf.reshape(tensors[misaligned], [-1])

    @tf.function(autograph=False)
    def through_slice(odd):
        given = list(tensors)
        given[misaligned] = tf.reshape(odd[1:], tensors[misaligned].shape)
        return results(*given)

    sliced = through_slice(tf.concat([flat[:1], flat], 0))
    for one, other in zip(results(*tensors), sliced, strict=True):
        np.testing.assert_array_equal(one, other)


def saved_model_in_a_fresh_process(folder, device, compute, variables, given, shape):
    """Another process, which only imports the package, loads a model and repeats it.

    Args:
        folder: Where to save the model.
        device: Device of both processes.
        compute: From a tensor to the output, by way of `variables`.
        variables: What the model has; the gradients are of those of real numbers.
        given: The tensor.
        shape: As much of its shape as the model knows.
    """

    def gradients(given):
        with tf.GradientTape() as tape:
            tape.watch(given)
            output = compute(given)
        return tape.gradient(
            output, [given, *(v for v in variables if v.dtype.is_floating)]
        )

    model, signature = tf.Module(), [tf.TensorSpec(shape, given.dtype)]
    model.held = variables
    model.output = tf.function(compute, signature)
    model.gradients = tf.function(gradients, signature)
    expected = [model.output(given), *model.gradients(given)]
    tf.saved_model.save(model, folder / "model")
    np.save(folder / "given.npy", given.numpy())
    printed = fresh.run(_LOAD_AND_CALL, folder / "model", folder / "given.npy", device)
    assert printed.split() == [result.numpy().tobytes().hex() for result in expected]


def same_at_the_same_time(results, drawn, device, times=20):
    """Calls made in several threads give what each gives alone.

    Kernels have settings that belong to no call, such as their shared memory.
    """

    def run(given):
        with tf.device(device):
            return [result.numpy() for result in results(*given)]

    alone = [run(one) for one in drawn]
    with concurrent.futures.ThreadPoolExecutor(len(drawn)) as pool:
        together = list(pool.map(run, drawn * times))
    for number, found in enumerate(together):
        for one, other in zip(found, alone[number % len(drawn)], strict=True):
            np.testing.assert_array_equal(one, other)
