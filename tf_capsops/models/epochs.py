# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""What `fit` reads instead of the data set that Keras gives to the strategy."""

import math
import numbers

import keras
import tensorflow as tf

from tf_capsops.untuned import untuned


class Epochs:
    """Takes a data set out of the hands of a strategy, from now on to `close`.

    Dividing data sets takes the host longer than a step of a small network takes two
    GPUs. `ahead.Feed` divides batches instead.

    All epochs of arrays are read from one iterator. Keras makes two iterators for each
    epoch, and a GPU would have nothing to do until the first batches are there. Data
    sets that Keras makes are not tuned either.

    Args:
      strategy: the strategy.
      arguments: those of `fit` by name.
      ends: whether the training function ends its executions with an epoch. Keras' own
        ends them with the data.
    """

    length = None  # batches of an epoch, if one iterator has all epochs

    def __init__(self, strategy, arguments, ends):
        self._strategy = strategy
        x = arguments.get("x")
        self._own = isinstance(x, (tf.data.Dataset, tf.distribute.DistributedDataset))
        if strategy.num_replicas_in_sync > 1:
            takes = isinstance(strategy, tf.distribute.MirroredStrategy)
        else:
            takes = not self._own
        if takes:
            count, size = _samples(arguments) or (0, 1)
            self.length = math.ceil(count / size) or None if ends else None
            strategy.experimental_distribute_dataset = self._take

    def _take(self, data_set, options=None):
        if self._own:
            return data_set
        if self.length:
            return _Endless(untuned(data_set.repeat()))
        return untuned(data_set)

    def close(self):
        vars(self._strategy).pop("experimental_distribute_dataset", None)


def whole_batches(arguments):
    """Returns how many batches of the full size an epoch has, None if not known."""
    x = arguments.get("x")
    if isinstance(x, tf.data.Dataset):
        count = int(x.cardinality())
        whole = all(map(_has_batch_size, keras.tree.flatten(x.element_spec)))
        return max(0, count if whole else count - 1) or None
    count, size = _samples(arguments) or (0, 1)
    return count // size or None


def _has_batch_size(spec):
    shape = getattr(spec, "shape", tf.TensorShape(None))
    return bool(shape.rank and shape[0])


def _samples(arguments):
    """Returns how many samples arrays have in an epoch and in a batch.

    Returns None for what else `fit` takes, and if an epoch may stop earlier.
    """
    flat = keras.tree.flatten(arguments.get("x"))
    counts = {each.shape[0] if getattr(each, "shape", ()) else None for each in flat}
    count = counts.pop() if len(counts) == 1 else None
    limits = arguments.get("steps_per_epoch"), keras.config.max_steps_per_epoch()
    if not count or any(limits):
        return None
    split = arguments.get("validation_split")
    if split and arguments.get("validation_data") is None:
        count = math.floor(count * (1 - split))
    size = arguments.get("batch_size") or 32  # Keras' default
    if not isinstance(size, numbers.Integral) or size < 1 or count < 1:
        return None  # Keras refuses these
    return count, size


class _Endless:
    """A data set that has one iterator."""

    def __init__(self, data_set):
        self._iterator = iter(data_set)

    def __iter__(self):
        return self._iterator
