# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Copies batches to a GPU while it works on the ones before."""

import concurrent.futures
import itertools

import tensorflow as tf

_COPIES = 8  # batches that wait on a device


def copied_ahead(batches, device):
    """Returns a `tf.data.Dataset` of the same batches in the memory of a device.

    They are copied there while the device works on the ones before. TensorFlow copies a
    batch after all the work that the device has been given before, so copies are made
    one a step; those that wait let the first steps of an execution follow each other.

    Args:
      batches: a `tf.data.Dataset` on the processor.
      device: such as "GPU:0".
    """
    copied = batches.apply(tf.data.experimental.copy_to_device(f"/{device}"))
    with tf.device(device):
        copied = copied.prefetch(_COPIES)
    # TensorFlow does not know how many copies there are; Keras asks, for its progress
    # bar and to end an epoch without a warning.
    copied.cardinality = batches.cardinality
    return copied


class DeviceCopies:
    """Takes the batches of an iterator ahead of time, and copies them to a GPU."""

    def __init__(self):
        self._source = self._copies = None

    def iterator_for(self, iterator, model):
        """Returns an iterator of the batches that are left in `iterator`.

        Batches that are on a GPU stay where they are, and so do those for a model
        without variables on a GPU.
        """
        if iterator is self._source:
            return self._copies
        (resource,) = tf.nest.flatten(iterator, expand_composites=True)
        device = gpu_of(model)
        if not device or "GPU" in resource.device:
            return iterator
        with tf.device("CPU:0"):
            batches = (
                tf.data.Dataset.counter()
                .map(lambda _: iterator.get_next_as_optional())
                .take_while(lambda batch: batch.has_value())
                .map(lambda batch: batch.get_value())
            )
        self._source, self._copies = iterator, iter(copied_ahead(batches, device))
        return self._copies


class Prefetcher:
    """Takes batches of an iterator, and those of the next execution in another thread.

    The thread waits for the data, while this one launches what computes on the batches.
    """

    def __init__(self):
        self._thread = concurrent.futures.ThreadPoolExecutor(1)
        self._next = None, None

    def take(self, iterator, count, ahead):
        """Returns a list of the next `count` batches, or as many as there are.

        Args:
          iterator: an iterator; another one forgets what was taken ahead.
          count: how many batches.
          ahead: whether to take as many ahead.
        """
        (source, taken), self._next = self._next, (None, None)
        batches = taken.result() if source is iterator else []
        batches += itertools.islice(iterator, max(0, count - len(batches)))
        if ahead and len(batches) == count:
            self._next = iterator, self._thread.submit(_take, iterator, count)
        return batches


def _take(iterator, count):
    return list(itertools.islice(iterator, count))


def gpu_of(model):
    """Returns the GPU that has a model's variables, such as "GPU:0", or None."""
    if not tf.config.list_logical_devices("GPU"):
        return None
    devices = {variable.value.device for variable in model.variables[:1]}
    for device in map(tf.DeviceSpec.from_string, devices):
        if device.device_type == "GPU":
            return f"GPU:{device.device_index}"
    return None
