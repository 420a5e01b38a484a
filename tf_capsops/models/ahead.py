# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Takes batches in groups, and copies them to the GPUs while these compute.

Four groups are in progress at any time: the GPUs compute on the first, the second is in
their memory, the third is being copied, and the fourth is being read and stacked.
"""

import atexit
import collections
import concurrent.futures
import dataclasses
import functools
import math
import threading

import keras
import tensorflow as tf

from tf_capsops.models import shares
from tf_capsops.models.loop import Int32OnDevice

_MOST_BYTES = 2**26  # The largest size of the batches of a group.
_END = object()


@dataclasses.dataclass(frozen=True)
class Group:
    """Batches for consecutive steps.

    Attributes:
      shares: for each replica of this process, its part of one batch, or its parts of
        several, stacked along a new first axis.
      steps: the number of batches. They are stacked if there are more than one.
      even: whether all replicas of this process have equally many samples of a batch.
      spec: one replica's part of any batch, as a structure of `tf.TypeSpec`s.
    """

    shares: list
    steps: int
    even: bool
    spec: object


class Feed:
    """Takes the batches of an iterator in groups, for the devices of a model.

    Args:
      model: a `keras.Model`.
      iterator: yields batches, on the host or with a share for each replica.
      steps: the number of batches in an execution. They come as one group if they have
        the same shapes and are small enough to be copied together.
      length: the number of batches in an epoch, if the iterator continues after an
        epoch; no group has batches of two epochs. Else None.
      ahead: whether to take and copy groups while the devices compute.
      check: called with one replica's share of the first batch, on the host.
    """

    def __init__(self, model, iterator, steps, length, ahead, check):
        self.source = iterator
        ahead = _Ahead if ahead else lambda items, count: iter(items)
        strategy, self._closed = model.distribute_strategy, threading.Event()
        epoch = steps, length
        taken = ahead(_groups(strategy, iterator, *epoch, check, self._closed), 1)
        # A copy starts only after all work that was given to its GPU before. So copies
        # for the group after next must be started before the next group is launched.
        self._groups = ahead(_begin_copies(model, taken), 2)

    def next(self):
        """Returns the next `Group`, or None at the end."""
        group, copies = next(self._groups, (None, None))
        if copies is None:
            return group
        shares = keras.tree.map_structure(lambda copy: copy.result(), copies)
        return dataclasses.replace(group, shares=shares)

    def close(self):
        """Stops taking batches."""
        self._closed.set()


class _Ahead:
    """Reads an iterator up to `count` items ahead, in background threads."""

    def __init__(self, items, count):
        self._items = items
        self._count = count
        self._begun = collections.deque()

    def __iter__(self):
        return self

    def __next__(self):
        if not self._begun:
            self._begin()
        item = self._begun[0].result()
        if item is _END:
            raise StopIteration
        while len(self._begun) <= self._count:
            self._begin()
        self._begun.popleft()
        return item

    def _begin(self):
        before = [*self._begun][-1:]

        def take():
            concurrent.futures.wait(before)
            return next(self._items, _END)

        self._begun.append(in_thread(take))


_running = set()  # The futures of `in_thread` that are not done.


def in_thread(function):
    """Calls a function in a background thread and returns a future of its result.

    When the process exits, it waits up to two seconds for such threads.
    """
    future = concurrent.futures.Future()
    _running.add(future)
    future.add_done_callback(_running.discard)

    def call():
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=call, daemon=True).start()
    return future


@atexit.register
def _wait_for_threads():
    # A thread that returns from TensorFlow while Python exits may abort the process.
    concurrent.futures.wait([*_running], timeout=2)


def _take(iterator, count, closed):
    """Returns a list of the next `count` batches, or of fewer if the data ends."""
    batches = []
    while len(batches) < count and not closed.is_set():
        batch = next(iterator, _END)
        if batch is _END:
            break
        batches.append(batch)
    return batches


def _groups(strategy, iterator, steps, length, check, closed):
    """Yields groups whose shares are on the host."""
    size, spec, taken = 1, None, 0
    several = shares.several_processes(strategy)
    size_of = _size_for_all_processes if several else _group_size

    def take(count):
        nonlocal taken
        left = length - taken % length if length else count
        batches = _take(iterator, min(count, left), closed)
        taken += len(batches)
        return batches

    while batches := take(size):
        if spec is None:
            divided = shares.divide(strategy, shares.parts(strategy, batches[0]))
            share = divided[0]
            if len(divided) > 1:
                share = next(filter(shares.samples, divided), share)
            check(share)
            spec = _spec(strategy, iterator, share)
            size = size_of(divided, steps, length)
            if length != 1:
                batches += take(size - 1)
        batches = [shares.parts(strategy, batch) for batch in batches]
        if len(batches) == size > 1 and _stack_up(batches, several):
            stacked = [_stacked(each, several) for each in zip(*batches)]
            yield _group(strategy, stacked, size, spec)
        else:
            for batch in batches:
                yield _group(strategy, batch, 1, spec)


def _group(strategy, parts, steps, spec):
    axis = int(steps > 1)
    divided = shares.divide(strategy, parts, axis)
    alone = len(divided) == 1
    even = alone or len({shares.samples(each, axis) for each in divided}) == 1
    return Group(divided, steps, even, spec)


def _spec(strategy, iterator, share):
    if strategy.num_replicas_in_sync == 1 and isinstance(iterator, tf.data.Iterator):
        spec = iterator.element_spec  # The size of a batch may be unknown here.
    else:
        spec = keras.tree.map_structure(_spec_of, share)
    return keras.tree.map_structure(shares.none_if_empty, spec)


def _group_size(divided, steps, length):
    """Returns the largest divisor of `steps` that leaves a group small enough."""
    flat = [each for each in keras.tree.flatten(divided) if isinstance(each, tf.Tensor)]
    size = sum(each.shape.num_elements() * each.dtype.size for each in flat)
    most = max(1, min(steps, _MOST_BYTES // max(1, size)))
    return next(n for n in range(most, 0, -1) if steps % n == 0)


def _size_for_all_processes(divided, steps, length):
    """Returns `steps`, or 1 if the data may end early or samples are too large.

    Samples are too large if 1024 of them exceed the size of a group.
    """
    share = keras.tree.flatten(divided[0])
    flat = [each for each in share if isinstance(each, tf.Tensor)]
    sample = sum(math.prod(each.shape[1:]) * each.dtype.size for each in flat)
    return steps if length and sample <= _MOST_BYTES // 1024 else 1


def _spec_of(value):
    return None if value is None else tf.type_spec_from_value(value)


def _stack_up(batches, of_any_size):
    spec_of = shares.spec_of_any_size if of_any_size else _spec_of
    specs = [keras.tree.map_structure(spec_of, each) for each in batches]
    flat = keras.tree.flatten(specs)
    dense = all(each is None or isinstance(each, tf.TensorSpec) for each in flat)
    return dense and all(each == specs[0] for each in specs)


def _stacked(batches, of_any_size):
    def stack(*values):
        if values[0] is None:
            return None
        with tf.device(values[0].device):  # Otherwise TensorFlow copies to a GPU.
            if not of_any_size:
                return tf.stack(values)
            # A share may be smaller in another process only. All processes must run the
            # same ops, so all use ragged tensors.
            sizes = tf.constant([len(each) for each in values])
            return tf.RaggedTensor.from_row_lengths(tf.concat(values, 0), sizes)

    return keras.tree.map_structure(stack, *batches)


def _begin_copies(model, groups):
    """Yields each group with futures of its device copies, or None for no copies."""
    strategy = model.distribute_strategy
    for group in groups:
        if strategy.num_replicas_in_sync == 1:
            devices = [gpu_of(model)]
        else:
            devices = strategy.extended.worker_devices
        if devices == [None] and not has_gpus():
            yield group, None
            continue
        copy = functools.partial(_copy, stacked=group.steps > 1)
        copies = [
            keras.tree.map_structure(functools.partial(copy, device=device), share)
            for share, device in zip(group.shares, devices)
        ]
        yield group, copies


def _copy(value, device, stacked):
    """Starts to copy a tensor to a device, and returns a future of the copy.

    Without a device, as for a model that has no variables yet, the tensor stays where
    it is. It has the type that a compiled loop expects in either case.
    """

    def to_device(tensor):
        if tf.DeviceSpec.from_string(tensor.device).device_type == "CPU":
            return _copier(device, tensor.dtype)(tensor)
        with tf.device(device):
            return tf.identity(tensor)

    def moved(value):
        if not device:
            return value
        return tf.nest.map_structure(to_device, value, expand_composites=True)

    def copy():
        if value is None:
            return None
        if stacked and isinstance(value, tf.Tensor) and value.dtype == tf.int32:
            with tf.device(value.device):  # Otherwise TensorFlow may use a GPU.
                as_int64 = tf.cast(value, tf.int64)
            return Int32OnDevice(moved(as_int64))
        if isinstance(value, tf.RaggedTensor):  # The host needs the sizes of the rows.
            return value.with_flat_values(moved(value.flat_values))
        return moved(value)

    return in_thread(copy)


@functools.cache
def _copier(device, dtype):
    """Returns a function that copies a tensor from the host to a device.

    Inside a `tf.function`, TensorFlow allocates page-locked memory for results of CPU
    ops that a GPU reads. From other memory, the driver copies more slowly, and launches
    no kernels meanwhile.
    """

    @tf.function(input_signature=[tf.TensorSpec(None, dtype)], autograph=False)
    def copy(value):
        with tf.device("CPU:0"):
            value = tf.raw_ops.DeepCopy(x=value)
        with tf.device(device):
            return tf.identity(value)

    return copy


def has_gpus():
    """Whether TensorFlow sees GPUs."""
    return bool(tf.config.list_logical_devices("GPU"))


def gpu_of(model):
    """Returns the GPU that has a model's variables, such as "GPU:0", or None."""
    if not has_gpus():
        return None
    devices = {variable.value.device for variable in model.variables[:1]}
    for device in map(tf.DeviceSpec.from_string, devices):
        if device.device_type == "GPU":
            return f"GPU:{device.device_index}"
    return None
