# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Batches of which each replica has a share.

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
    """Returns a list of what each replica of this process has of a batch.

    A batch that is not divided among the replicas is the only item of the list. Where a
    process has one of several replicas, its share is.
    """
    batch = keras.tree.map_structure(none_if_empty, batch)
    flat = keras.tree.flatten(batch)
    if any(isinstance(each, tf.distribute.DistributedValues) for each in flat):
        return _local(strategy, batch)
    if _replicas_here(strategy) == 1:
        return _divided(strategy, batch, 0)
    return [batch]


def divide(strategy, parts, axis=0):
    """Returns a list of what each replica of this process computes on.

    Args:
      strategy: the strategy.
      parts: what `parts` returned. A batch that is not divided is divided evenly.
      axis: the axis of samples.
    """
    if len(parts) == _replicas_here(strategy):
        return parts
    (whole,) = parts
    return _divided(strategy, whole, axis)


def _replicas_here(strategy):
    """Returns how many replicas this process has."""
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
    """Returns the batch of which the replicas of this process have these shares."""
    if strategy.num_replicas_in_sync == 1:
        return shares[0]
    return strategy.experimental_distribute_values_from_function(
        lambda context: shares[context.replica_id_in_sync_group % len(shares)]
    )


def without_empty(strategy, shares):
    """Returns shares with a sample for each replica, and how many were added.

    Where the last batch leaves replicas without a sample, TensorFlow's convolutions
    give them results of a wrong shape on CPUs. Processes know their own shares only,
    so batches of several processes stay as they are.
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
    """Returns the `tf.TypeSpec` of a tensor, but for how many samples it has."""
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
    """Returns None for the optional that Keras puts where data has no weights.

    TensorFlow has a spec of None, too.
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
    with tf.device(getattr(value, "device", "CPU:0")):  # not to copy all to a GPU
        return tf.convert_to_tensor(value)[(slice(None),) * axis + (slice(begin, end),)]
