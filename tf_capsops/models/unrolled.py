# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Training several batches in an execution, without waiting for the GPU in between."""

import itertools

import keras
import tensorflow as tf


class Unrolled:
    """Mixed into a `keras.Model`, makes `steps_per_execution` wait for no step.

    Keras' loop over the steps of an execution computes on the GPU whether to go on, and
    copies the answer to the host, which waits for all that was launched before it. Here
    the steps follow each other in one graph, and whether there is another batch is
    asked on the host alone. Weights, losses and metrics are those of Keras' loop.

    Graphs grow with `steps_per_execution`. Executions of one step, eager ones and those
    under a distribution strategy are Keras' own.

    >>> import keras
    >>> import numpy as np
    >>> from tf_capsops.models import Unrolled
    >>> class Model(Unrolled, keras.Sequential):
    ...     pass
    >>> model = Model([keras.Input([3]), keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse", steps_per_execution=4)
    >>> history = model.fit(np.ones([9, 3]), np.ones(9), batch_size=2, verbose=0)
    """

    def make_train_function(self, force=False):
        with self.distribute_strategy.scope():
            distributed = tf.distribute.has_strategy()
        if self.steps_per_execution == 1 or self.run_eagerly or distributed:
            return super().make_train_function(force)
        if self.train_function is None or force:
            self.train_function = _unrolled(
                self.train_step, self.steps_per_execution, self.jit_compile
            )
        return self.train_function


def _unrolled(train_step, steps, jit_compile):
    """Returns a function that trains up to so many batches of an iterator."""

    @tf.function(jit_compile=jit_compile, reduce_retracing=True, autograph=False)
    def step(batch):
        return train_step(keras.tree.map_structure(_none_if_optional, batch))

    @tf.function(reduce_retracing=True, autograph=False)
    def execution(first, iterator):
        logs = step(first.get_value())
        for _ in range(steps - 1):
            logs = _step_if_any(step, iterator.get_next_as_optional(), logs)
        return logs

    def function(iterator):
        if not isinstance(iterator, tf.data.Iterator):  # the one of train_on_batch
            for batch in itertools.islice(iterator, steps):
                logs = step(batch)
            return logs
        first = iterator.get_next_as_optional()
        if not first.has_value():
            raise StopIteration
        return execution(first, iterator)

    return function


def _step_if_any(step, batch, logs):
    return tf.cond(batch.has_value(), lambda: step(batch.get_value()), lambda: logs)


def _none_if_optional(tensor):
    """Keras puts an empty optional where data has no sample weights."""
    return None if isinstance(tensor, tf.experimental.Optional) else tensor
