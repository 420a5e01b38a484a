# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Replaces the data set that `fit` gives to a distribution strategy."""

import math
import numbers

import keras
import tensorflow as tf

from tf_capsops.models.shares import none_if_empty, several_processes
from tf_capsops.untuned import untuned


class Epochs:
    """Keeps a strategy from dividing data sets, from `begin` to `close`.

    For a small network, dividing a data set takes the host longer than a step takes two
    GPUs. `ahead.Feed` divides batches instead. With several processes, the strategy
    still divides data sets, but endless ones: for data that ends, the processes ask
    each other at each batch whether there is another.

    If `fit` gets arrays, one iterator reads all epochs. Keras creates two iterators for
    each epoch, and GPUs are idle until the first batches arrive. For data sets that
    Keras creates, TensorFlow's autotuning is also switched off.

    Args:
      strategy: the strategy.
      arguments: the arguments of `fit`, by name.
      ends: whether the training function ends an execution at the end of an epoch.
        Keras' own function ends it only with the data.
    """

    length = None  # The batches of an epoch, if one iterator reads all epochs.

    def __init__(self, strategy, arguments, ends):
        x = arguments.get("x")
        self._strategy, self._share = strategy, None
        self._own = isinstance(x, (tf.data.Dataset, tf.distribute.DistributedDataset))
        if several_processes(strategy):
            self._share = strategy.experimental_distribute_dataset
        if not ends:
            return
        if isinstance(x, tf.data.Dataset):
            if x.cardinality() == tf.data.INFINITE_CARDINALITY:
                self.length = limit(arguments)
        elif counted := _samples(arguments):
            count, size = counted
            if self._share:
                _check_in_all(strategy, count)
            self.length = math.ceil(count / size)

    def begin(self):
        mirrored = isinstance(self._strategy, tf.distribute.MirroredStrategy)
        if mirrored or not self._own:
            self._strategy.experimental_distribute_dataset = self._take

    def close(self):
        vars(self._strategy).pop("experimental_distribute_dataset", None)

    def _take(self, data_set, options=None):
        if self._own:
            return data_set
        data_set = untuned(data_set.repeat() if self.length else data_set)
        if self._share:
            data_set = self._share(data_set, options)
        return _Endless(data_set) if self.length else data_set


def _check_in_all(strategy, count):
    """Checks that the arrays of all processes have `count` samples."""

    @tf.function
    def sums():
        own = tf.constant([1, count, count * count], tf.int64)
        context = tf.distribute.get_replica_context()
        return context.all_reduce(tf.distribute.ReduceOp.SUM, own)

    added = strategy.experimental_local_results(strategy.run(sums))[0]
    replicas, once, squared = map(int, added.numpy())
    if replicas * squared != once * once:  # The variance of the counts is not zero.
        raise ValueError(
            f"all processes must give fit the same arrays, but this one gives {count} "
            "samples, and another one fewer or more"
        )


def limit(arguments):
    """Returns the limit of batches per epoch that `fit` was given, None for all."""
    limits = arguments.get("steps_per_epoch"), keras.config.max_steps_per_epoch()
    return min(filter(None, limits), default=None)


def whole_batches(arguments):
    """Returns the number of full-size batches in an epoch, None if not known."""
    x = arguments.get("x")
    if isinstance(x, tf.data.Dataset):
        count = int(x.cardinality())
        spec = keras.tree.map_structure(none_if_empty, x.element_spec)
        flat = [each for each in keras.tree.flatten(spec) if each is not None]
        whole = all(map(_has_batch_size, flat))
        return max(0, count if whole else count - 1) or None
    count, size = _samples(arguments) or (0, 1)
    return count // size or None


def _has_batch_size(spec):
    shape = getattr(spec, "shape", tf.TensorShape(None))
    return bool(shape.rank and shape[0])


def _samples(arguments):
    """Returns the number of samples of arrays in an epoch and in a batch.

    Returns None if `fit` was given other data, or an epoch may stop earlier.
    """
    flat = keras.tree.flatten(arguments.get("x"))
    counts = {each.shape[0] if getattr(each, "shape", ()) else None for each in flat}
    count = counts.pop() if len(counts) == 1 else None
    if not count or limit(arguments):
        return None
    split = arguments.get("validation_split")
    if split and arguments.get("validation_data") is None:
        count = math.floor(count * (1 - split))
    size = arguments.get("batch_size") or 32  # The default of Keras.
    if not isinstance(size, numbers.Integral) or size < 1 or count < 1:
        return None  # Keras raises an error for these.
    return count, size


class _Endless:
    """A data set that always returns the same iterator."""

    def __init__(self, data_set):
        self._iterator = iter(data_set)

    def __iter__(self):
        return self._iterator
