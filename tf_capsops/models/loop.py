# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Compiled functions, and the steps of an execution as one loop of a graph."""

import os

import keras
import tensorflow as tf


def shorten_first_step():
    """Has XLA take cuBLAS for products of matrices, unless its flags say otherwise.

    It would compile and time many kernels of its own for each product, for longer than
    a short training takes, to win 1% of a step. It reads its flags when it first
    compiles.
    """
    flags = os.environ.get("XLA_FLAGS", "").strip()
    names_file = flags and not flags.startswith("-")  # which has the flags
    if "--xla_gpu_enable_triton_gemm" not in flags and not names_file:
        os.environ["XLA_FLAGS"] = f"--xla_gpu_enable_triton_gemm=false {flags}".strip()


def compiler(model, jit=None):
    """Returns what compiles a function of what one device does.

    Args:
      model: the model, which says whether anything is compiled.
      jit: whether by XLA, if that is not for the model to say.
    """
    if model.run_eagerly:
        return lambda function: function
    jit = model.jit_compile if jit is None else jit
    return tf.function(jit_compile=jit, reduce_retracing=True, autograph=False)


def repeat(step, steps, results=()):
    """Runs `step(0)`, `step(1)` and so on in one loop of a graph.

    A single step is run as `step(None)`.

    Args:
      step: takes an index and returns tensors.
      steps: how many.
      results: tensors like those that a step returns. None if they are not known: the
        last step is then traced once more, after the loop.

    Returns:
      What the last step returned.
    """
    if steps == 1:
        return step(None)
    if tf.executing_eagerly():
        return [step(index) for index in range(steps)][-1]
    if results is None:
        repeat(lambda index: (step(0 if index is None else index), ())[1], steps - 1)
        return step(steps - 1)

    def body(index, _):
        return index + 1, step(index)

    # With its limit a constant, XLA knows the number of steps, and no step waits to
    # learn on the host whether there is another one.
    return tf.while_loop(
        lambda index, _: index < steps, body, (0, results), parallel_iterations=1
    )[1]


class Int32OnDevice(tf.experimental.ExtensionType):
    """An int32 tensor in the memory of a GPU.

    TensorFlow keeps int32 tensors in the host's memory and copies them when a function
    needs them. That copy waits for all earlier work on the GPU.
    """

    as_int64: tf.Tensor


def nth(batches, index):
    """Returns one of stacked batches, or all if the index is None.

    Batches that may differ in size are the rows of a `tf.RaggedTensor`.
    """

    def one(each):
        if isinstance(each, Int32OnDevice):
            return tf.cast(one(each.as_int64), tf.int32)
        if each is None or index is None:
            return each
        if not isinstance(each, tf.RaggedTensor):
            return tf.gather(each, index)
        with tf.device("CPU:0"):  # else the host waits for numbers from a GPU
            begin, end = each.row_splits[index], each.row_splits[index + 1]
        return each.values[begin:end]

    return keras.tree.map_structure(one, batches)
