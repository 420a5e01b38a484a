# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Training several batches in an execution, without waiting for the GPU in between."""

import itertools

import keras
import tensorflow as tf

from tf_capsops.models import replicas


class Unrolled:
    """Mixed into a `keras.Model`, makes `steps_per_execution` wait for no step.

    Keras' loop over the steps of an execution computes on the GPU whether to go on, and
    copies the answer to the host, which waits for all that was launched before it. Here
    the steps follow each other in one graph, and whether there is another batch is
    asked on the host alone. Weights, losses and metrics are those of Keras' loop.

    Graphs grow with `steps_per_execution`. Executions of one step on one device and
    eager ones are Keras' own.

    Under a strategy of several replicas, as `tf.distribute.MirroredStrategy`, each
    replica's share of a batch counts by its samples, and `jit_compile` has XLA compile
    what each replica does. `fit` and `evaluate` take data sets of a known number of
    batches then, and every replica needs a share of the last one.

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
            single = self._replicas == 1 and tf.distribute.has_strategy()
        if (
            self.run_eagerly
            or single
            or self.steps_per_execution == self._replicas == 1
        ):
            return super().make_train_function(force)
        if self.train_function is None or force:
            if self._replicas > 1:
                self.train_function = _distributed(self, replicas.train_step(self))
            else:
                self.train_function = _unrolled(
                    self.train_step, self.steps_per_execution, self.jit_compile
                )
        return self.train_function

    def make_test_function(self, force=False):
        if self.run_eagerly or self._replicas == 1:
            return super().make_test_function(force)
        if self.test_function is None or force:
            self.test_function = _distributed(self, replicas.test_step(self))
        return self.test_function

    @property
    def _replicas(self):
        return self.distribute_strategy.num_replicas_in_sync

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        # Keras builds metrics with the mean of all shares of a batch. Shares may differ
        # in size, and batches of several processes are refused; any share will do.
        if iterator is not None and self._replicas > 1:
            _, _, batches = next(iter(iterator))
            local = self.distribute_strategy.experimental_local_results
            data_batch = keras.tree.map_structure(
                lambda shares: local(shares)[0], next(batches)
            )
            iterator = None
        super()._maybe_symbolic_build(iterator, data_batch)


def _distributed(model, step):
    """Returns a function that takes so many batches of a distributed iterator."""
    known = left = None

    @tf.function(reduce_retracing=True, autograph=False)
    def execution(iterator, steps):
        for _ in range(steps):
            step(iterator.get_next())
        return model.get_metrics_result()  # of all replicas

    # TensorFlow asks all replicas for another batch on their GPUs, and waits for the
    # answers. Here the host counts.
    def function(iterator):
        nonlocal known, left
        if iterator is not known:
            known, left = iterator, iterator._cardinality
            if left == tf.data.UNKNOWN_CARDINALITY:
                raise ValueError(
                    f"{model.name}: replicas train and are evaluated on data sets of a "
                    "known number of batches; tf.data.experimental.assert_cardinality "
                    "tells it"
                )
        steps = model.steps_per_execution
        if left != tf.data.INFINITE_CARDINALITY:
            steps = min(steps, left)
            left -= steps
        if not steps:
            raise StopIteration
        return execution(iterator, int(steps))

    return function


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
