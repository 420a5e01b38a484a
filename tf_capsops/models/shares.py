# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Batches that are divided into a share for each replica.

The samples of a batch are its first axis, or the second one if several batches are
stacked.
"""

import functools

import keras
import tensorflow as tf

from tf_capsops.models.loop import Int32OnDevice


def several_processes(strategy):
    """Whether a strategy divides batches among several processes."""
    return isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)


def parts(strategy, batch):
    """Returns a list of the shares that the replicas of this process have of a batch.

    If the batch is not divided yet, the list holds only the whole batch. If this
    process has one of several replicas, the list holds only its share.
    """
    batch = keras.tree.map_structure(none_if_empty, batch)
    flat = keras.tree.flatten(batch)
    if any(isinstance(each, tf.distribute.DistributedValues) for each in flat):
        return _local(strategy, batch)
    if _replicas_here(strategy) == 1:
        return _divided(strategy, batch, 0)
    return [batch]


def divide(strategy, parts, axis=0):
    """Returns a list with a share for each replica of this process.

    Args:
      strategy: the strategy.
      parts: the result of `parts`. An undivided batch is divided evenly.
      axis: the axis of samples.
    """
    if len(parts) == _replicas_here(strategy):
        return parts
    (whole,) = parts
    return _divided(strategy, whole, axis)


def _replicas_here(strategy):
    """Returns the number of replicas in this process."""
    if strategy.num_replicas_in_sync == 1:
        return 1
    return len(strategy.extended.worker_devices)


def _divided(strategy, whole, axis):
    replicas = strategy.num_replicas_in_sync
    if replicas == 1:
        return [whole]
    count = samples(whole, axis)

    def divided(context):
        index = context.replica_id_in_sync_group
        begin, end = (count * i // replicas for i in (index, index + 1))
        return keras.tree.map_structure(
            lambda value: _part(value, begin, end, axis), whole
        )

    return _local(
        strategy, strategy.experimental_distribute_values_from_function(divided)
    )


def join(strategy, shares):
    """Returns the batch that consists of the given shares of this process."""
    if strategy.num_replicas_in_sync == 1:
        return shares[0]
    return strategy.experimental_distribute_values_from_function(
        lambda context: shares[context.replica_id_in_sync_group % len(shares)]
    )


def without_empty(strategy, shares):
    """Adds a sample to each empty share; returns the shares and the number added.

    The last batch may leave replicas without a sample. On CPUs, TensorFlow's
    convolutions then return results of a wrong shape. A process knows only its own
    shares, so batches of several processes stay as they are.
    """
    empty = [not samples(share) for share in shares]
    if several_processes(strategy) or not any(empty):
        return shares, 0
    full = shares[empty.index(False)]
    sample = keras.tree.map_structure(lambda value: _part(value, 0, 1, 0), full)
    shares = [sample if is_empty else own for own, is_empty in zip(shares, empty)]
    return shares, sum(empty)


def samples(batch, axis=0):
    """Returns the number of samples in a batch."""
    return first(batch).shape[axis]


def first(batch):
    """Returns the first tensor of a batch."""
    return next(each for each in keras.tree.flatten(batch) if each is not None)


def spec_of_any_size(value):
    """Returns the `tf.TypeSpec` of a tensor, with an unknown number of samples."""
    if isinstance(value, Int32OnDevice):
        return Int32OnDevice.Spec(spec_of_any_size(value.as_int64))
    spec = None if value is None else tf.type_spec_from_value(value)
    if spec is None or not spec.shape.rank:
        return spec
    shape = [None, *spec.shape[1:]]
    if isinstance(spec, tf.RaggedTensorSpec):
        ragged = spec.ragged_rank, spec.row_splits_dtype
        return tf.RaggedTensorSpec(shape, spec.dtype, *ragged)
    return type(spec)(shape, spec.dtype)


def none_if_empty(value):
    """Returns None for an empty optional or its spec, and other values unchanged.

    Keras puts empty optionals where data has no sample weights.
    """
    empty = tf.experimental.Optional, tf.OptionalSpec, tf.NoneTensorSpec
    return None if isinstance(value, empty) else value


def _local(strategy, batch):
    def own(index, value):
        if isinstance(value, tf.distribute.DistributedValues):
            value = strategy.experimental_local_results(value)[index]
        return none_if_empty(value)

    return [
        keras.tree.map_structure(functools.partial(own, index), batch)
        for index in range(_replicas_here(strategy))
    ]


def _part(value, begin, end, axis):
    if value is None:
        return None
    if isinstance(value, tf.RaggedTensor):
        return value[begin:end]
    if isinstance(value, tf.SparseTensor):
        rest = value.shape[1:]
        start = [begin, *[0] * len(rest)]
        return tf.sparse.slice(value, start, [end - begin, *rest])
    with tf.device(getattr(value, "device", "CPU:0")):  # Avoids a copy to a GPU.
        return tf.convert_to_tensor(value)[(slice(None),) * axis + (slice(begin, end),)]
