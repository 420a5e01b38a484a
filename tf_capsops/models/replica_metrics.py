# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Metrics of a model that has a replica on each of several devices."""

import functools

import keras
import tensorflow as tf

from tf_capsops.models.ahead import in_thread

_OURS = "keras", "tf_capsops"


class Metrics:
    """Collects and resets each replica's metrics without stalling the GPUs.

    A function that returns values of several devices copies them to one device, and
    this waits for all devices. So each device packs its own values outside of the
    function, and the host adds them up. Each device also resets its values in one call;
    Keras needs one call for each variable and device.

    Args:
      model: the model.
    """

    def __init__(self, model):
        self._model = model
        self._strategy = model.distribute_strategy

    @property
    def are_sums(self):
        """Whether every metrics variable is a sum over replicas."""
        if not isinstance(self._strategy, tf.distribute.MirroredStrategy):
            return False
        if has_own(self._model, "get_metrics_result"):
            return False
        replicas = self._strategy.num_replicas_in_sync
        return all(
            (variable.synchronization, variable.aggregation) == ("on_read", "sum")
            and len(self._strategy.experimental_local_results(variable.value))
            == replicas
            and variable.dtype not in ("int64", "uint64")  # Sums are in float64.
            for variable in self._model.metrics_variables
        )

    def later(self):
        """Returns a function that computes the model's logs as of now."""
        copies = [in_thread(each.numpy) for each in self._on_each(_packed)]
        return functools.partial(self._result, self._model.metrics_variables, copies)

    def reset(self):
        """Resets the metrics if it can, and returns whether it did."""
        if not self.are_sums or not _reset_to_zero(self._model.metrics):
            return False
        self._on_each(_set_to_zero)
        return True

    def _on_each(self, function):
        """Calls a function on each device, with the values of its metrics variables."""
        local, results = self._strategy.experimental_local_results, []
        devices = self._strategy.extended.worker_devices
        values = [local(each.value) for each in self._model.metrics_variables]
        for device, *own in zip(devices, *values, strict=True):
            with tf.device(device):
                results.append(function(own))
        return results

    def _result(self, variables, copies):
        added, values = sum(each.result() for each in copies), []
        with tf.device("CPU:0"):
            for variable in variables:
                size = variable.shape.num_elements()
                value, added = added[:size], added[size:]
                values.append(tf.cast(value.reshape(variable.shape), variable.dtype))
            with keras.StatelessScope(zip(variables, values)):
                return keras.Model.get_metrics_result(self._model)


@tf.function(reduce_retracing=True)
def _packed(variables):
    """Returns the values of variables as one vector."""
    flat = [tf.cast(tf.reshape(each, [-1]), tf.float64) for each in variables]
    return tf.concat(flat, axis=0)


@tf.function(reduce_retracing=True)
def _set_to_zero(variables):
    for each in variables:
        each.assign(tf.zeros_like(each))


def _reset_to_zero(metrics):
    """Whether all metrics are from Keras or this package, and so start with zeros."""
    return all(
        _root(type(each)) in _OURS and _reset_to_zero(getattr(each, "metrics", ()))
        for each in metrics
    )


def has_own(model, step):
    """Whether a user has overridden a method of a model, such as `train_step`."""
    owner = next(each for each in type(model).__mro__ if step in vars(each))
    return _root(owner) not in _OURS


def _root(kind):
    """Returns the name of the package that defines a class."""
    return kind.__module__.partition(".")[0]
