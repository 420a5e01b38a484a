# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Steps of a model that has a replica on each of several devices.

XLA compiles for one device, and Keras asks it to compile a step with all its replicas.
Here XLA compiles what a replica does alone: its forward and backward pass, and then the
update of its variables. Between them the strategy sums the gradients.
"""

import contextlib

import keras
import tensorflow as tf


def train_step(model):
    """Returns a function that trains a model on a batch, of a share for each replica.

    A share counts by its images, so a batch that does not divide evenly gives the
    gradients that it gives on one device. No share may be empty.
    """
    strategy, optimizer = model.distribute_strategy, model.optimizer
    function = _compiler(model)
    updates = {}

    @function
    def gradients(batch, images):
        # Keras divides the mean of a share by the number of replicas.
        weight = (
            strategy.num_replicas_in_sync * _count(batch) / _at_compile_time(images)
        )
        model.optimizer = recorder = _Recorder(optimizer, weight)
        try:
            model.train_step(batch)
        finally:
            model.optimizer = optimizer
        return recorder.gradients

    def replica(batch, images):
        optimizer.apply(gradients(batch, images), model.trainable_variables)

    def step(batch):
        images = strategy.reduce("SUM", strategy.run(_count, (batch,)), axis=None)
        with _updates_by(optimizer, function, updates):
            strategy.run(replica, (batch, images))

    return step


def test_step(model):
    """Returns a function that evaluates a model on a batch, as `train_step` does."""
    evaluate = _compiler(model)(model.test_step)

    def replica(batch):
        # Of `evaluate` itself the strategy would make one function of all replicas.
        evaluate(batch)

    return lambda batch: model.distribute_strategy.run(replica, (batch,))


def _compiler(model):
    return tf.function(
        jit_compile=model.jit_compile, reduce_retracing=True, autograph=False
    )


def _count(batch):
    """Returns the number of samples in a share, on the host."""
    with tf.device("CPU:0"):
        return tf.shape(keras.tree.flatten(batch)[0])[0]


def _at_compile_time(number):
    """Returns a number on the host that XLA may know when it compiles.

    Otherwise each step would wait until it had been copied to the GPU.
    """
    return tf.shape(tf.zeros([number, 0]))[0]


class _Recorder:
    """Stands in for an optimizer in `train_step`, and keeps the gradients."""

    def __init__(self, optimizer, weight):
        self._optimizer = optimizer
        self._weight = weight
        self.gradients = None

    def scale_loss(self, loss):
        loss = self._optimizer.scale_loss(loss)
        return loss * tf.cast(self._weight, loss.dtype)

    def apply_gradients(self, gradients_and_variables):
        self.gradients = [gradient for gradient, _ in gradients_and_variables]


@contextlib.contextmanager
def _updates_by(optimizer, function, updates):
    """Has `optimizer` update variables in a `function`, which `updates` keeps.

    Keras' own has the strategy update every variable of every replica by itself.
    """
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)

    def update(gradients, variables, _):
        key = tuple(variable.path for variable in variables)
        if key not in updates:

            @function
            def all_at_once(gradients):
                rate = optimizer.learning_rate
                for gradient, variable in zip(gradients, variables, strict=True):
                    optimizer.update_step(gradient, variable.value, rate)

            updates[key] = all_at_once
        context = tf.distribute.get_replica_context()
        total = context.all_reduce(tf.distribute.ReduceOp.SUM, list(gradients))
        updates[key](total)

    optimizer._backend_update_step = update
    try:
        yield
    finally:
        del optimizer._backend_update_step
