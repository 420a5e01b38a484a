# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Compiled functions, and loops in a graph over the steps of an execution."""

import os

import keras
import tensorflow as tf


def shorten_first_step():
    """Makes XLA use cuBLAS for matrix products, unless its flags say otherwise.

    Otherwise XLA compiles and times many kernels of its own for each product. This
    takes longer than a short training, and gains 1% of a step. XLA reads its flags when
    it first compiles.
    """
    flags = os.environ.get("XLA_FLAGS", "").strip()
    names_file = flags and not flags.startswith("-")  # The flags are in this file.
    if "--xla_gpu_enable_triton_gemm" not in flags and not names_file:
        os.environ["XLA_FLAGS"] = f"--xla_gpu_enable_triton_gemm=false {flags}".strip()


def compiler(model, jit=None):
    """Returns a decorator that compiles a function for one device.

    Args:
      model: the model; with `run_eagerly`, nothing is compiled.
      jit: whether to compile by XLA; None for the model's `jit_compile`.
    """
    if model.run_eagerly:
        return lambda function: function
    jit = model.jit_compile if jit is None else jit
    return tf.function(jit_compile=jit, reduce_retracing=True, autograph=False)


def repeat(step, steps, results=()):
    """Runs `step(0)`, `step(1)` and so on in one loop of a graph.

    A single step is run as `step(None)`.

    Args:
      step: a function of an index that returns tensors.
      steps: the number of steps.
      results: tensors of the types and shapes of a step's results. None if these are
        unknown: the last step is then traced once more, after the loop.

    Returns:
      The results of the last step.
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

    # Because the limit is constant, XLA knows the number of steps. So no step has to
    # wait for the host to decide whether there is another one.
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
    """Returns one of several stacked batches, or `batches` if the index is None.

    Batches whose sizes may differ are the rows of a `tf.RaggedTensor`.
    """

    def one(each):
        if isinstance(each, Int32OnDevice):
            return tf.cast(one(each.as_int64), tf.int32)
        if each is None or index is None:
            return each
        if not isinstance(each, tf.RaggedTensor):
            return tf.gather(each, index)
        with tf.device("CPU:0"):  # On a GPU, the host would wait for these numbers.
            begin, end = each.row_splits[index], each.row_splits[index + 1]
        return each.values[begin:end]

    return keras.tree.map_structure(one, batches)
