# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Steps of a model that has a replica on each of several devices.

XLA compiles for one device, and Keras asks it to compile a step with all its replicas.
Here XLA compiles what one replica does. On GPUs that is the whole step, with the sums
of the gradients over all replicas. Replicas on CPUs are compiled only to evaluate,
because XLA has no such sums there.
"""

import contextlib

import keras
import tensorflow as tf

_SUM = tf.distribute.ReduceOp.SUM


def train_step(model):
    """Returns a function that trains a model on a batch, of a share for each replica.

    A share counts by its samples, so a batch that does not divide evenly, or leaves
    replicas without a sample, gives the gradients that it gives on one device.
    """
    strategy, optimizer = model.distribute_strategy, model.optimizer
    trained = []  # whether each variable has a gradient

    def gradients(batch, samples):
        # Keras divides the mean of a share by the number of replicas.
        weight = strategy.num_replicas_in_sync * tf.cast(_count(batch), samples.dtype)
        model.optimizer = recorder = _Recorder(optimizer, weight / samples)
        try:
            model.train_step(batch)
        finally:
            model.optimizer = optimizer
        trained[:] = [each is not None for each in recorder.gradients]
        # A share without samples has zeros, which are no sparse IndexedSlices.
        return [
            tf.convert_to_tensor(each)
            for each in recorder.gradients
            if each is not None
        ]

    def zeros():
        variables = zip(model.trainable_variables, trained)
        return [tf.zeros(each.shape, each.dtype) for each, has in variables if has]

    def replica(batch):
        batch = of_any_size(batch)
        count = _count(batch)
        # No GPU sums integers across processes: TensorFlow keeps int32 on the host.
        samples = _context().all_reduce(_SUM, tf.cast(count, tf.float32))
        own = tf.cond(count > 0, lambda: gradients(batch, samples), zeros)
        own = iter(own)
        own = [next(own) if has else None for has in trained]
        with _without_merging(optimizer) if compiled else contextlib.nullcontext():
            optimizer.apply(own, model.trainable_variables)

    compiled = on_gpus(strategy) and model.jit_compile and not model.run_eagerly
    if compiled:
        replica = compiler(model)(replica)
    return lambda batch: strategy.run(lambda share: replica(share), (batch,))


def test_step(model):
    """Returns a function that evaluates a model on a batch, as `train_step` does."""
    evaluate = compiler(model)(model.test_step)

    def replica(batch):
        batch = of_any_size(batch)

        def evaluated():
            evaluate(batch)
            return True

        tf.cond(_count(batch) > 0, evaluated, lambda: False)

    return lambda batch: model.distribute_strategy.run(replica, (batch,))


def on_gpus(strategy):
    """Whether a strategy has several replicas, and all of them on GPUs."""
    if strategy.num_replicas_in_sync == 1:
        return False
    return all("GPU" in device for device in strategy.extended.worker_devices)


def shares(strategy, batch):
    """Returns a batch divided among the replicas, unless it is already.

    Keras gives each replica the whole of it.
    """
    flat = [each for each in keras.tree.flatten(batch) if each is not None]
    if any(isinstance(each, tf.distribute.DistributedValues) for each in flat):
        return batch
    replicas, samples = strategy.num_replicas_in_sync, len(flat[0])

    def divide(context):
        index = context.replica_id_in_sync_group
        part = slice(samples * index // replicas, samples * (index + 1) // replicas)
        return keras.tree.map_structure(
            lambda each: None if each is None else tf.convert_to_tensor(each)[part],
            batch,
        )

    return strategy.experimental_distribute_values_from_function(divide)


def share(strategy, batch, index=0):
    """Returns what one replica of this process has of a batch."""

    def of_replica(value):
        distributed = isinstance(value, tf.distribute.DistributedValues)
        return (
            strategy.experimental_local_results(value)[index] if distributed else value
        )

    return keras.tree.map_structure(of_replica, batch)


def without_empty_shares(strategy, batch):
    """Returns a batch that has a sample for each replica, and how many it has too many.

    Where the last batch leaves replicas without a sample, TensorFlow's convolutions
    give them results of a wrong shape on CPUs. Processes know their own shares only,
    so batches of several processes stay as they are.
    """
    if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return batch, 0
    replicas = range(strategy.num_replicas_in_sync)
    parts = [share(strategy, batch, index) for index in replicas]
    sample = keras.tree.map_structure(lambda value: value[:1], parts[0])
    empty = [not len(keras.tree.flatten(part)[0]) for part in parts]
    if not any(empty):
        return batch, 0
    parts = [sample if is_empty else part for part, is_empty in zip(parts, empty)]
    full = strategy.experimental_distribute_values_from_function(
        lambda context: parts[context.replica_id_in_sync_group]
    )
    return full, sum(empty)


def of_any_size(batch):
    """Returns a batch whose static shapes leave open how many samples it has.

    Keras weighs the losses of outputs by the static size of a batch, where it is known.
    It puts an empty optional where data has no sample weights; here that is None.
    """

    def any_size(tensor):
        if isinstance(tensor, tf.Tensor) and tensor.shape.rank:
            shape = [None, *tensor.shape[1:]]
            return tf.raw_ops.PlaceholderWithDefault(input=tensor, shape=shape)
        return none_if_optional(tensor)

    return keras.tree.map_structure(any_size, batch)


def compiler(model):
    """Returns what compiles a function of what one device does, as the model asks."""
    if model.run_eagerly:
        return lambda function: function
    return tf.function(
        jit_compile=model.jit_compile, reduce_retracing=True, autograph=False
    )


def _count(batch):
    """Returns the number of samples in a share, on the host."""
    with tf.device("CPU:0"):
        return tf.shape(keras.tree.flatten(batch)[0])[0]


def none_if_optional(tensor):
    """Keras puts an empty optional where data has no sample weights."""
    return None if isinstance(tensor, tf.experimental.Optional) else tensor


class _Recorder:
    """Takes the place of an optimizer in `train_step`, and keeps the gradients."""

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
def _without_merging(optimizer):
    """Lets an optimizer update what one replica has, in a program of that replica.

    Two steps of Keras' optimizers need all replicas to meet outside of such a program:
    counting the iterations, and asking the first replica whether gradients are finite.
    """
    iterations = optimizer.iterations
    own = tf.distribute.get_strategy().experimental_local_results(iterations.value)
    own = own[_index_in_process()]
    iterations.assign_add = lambda value: own.assign_add(tf.cast(value, own.dtype))
    scaled = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    if scaled:
        check_finite = optimizer.check_finite

        def all_finite(gradients):
            wrong = tf.cast(tf.logical_not(check_finite(gradients)), tf.float32)
            return _context().all_reduce(_SUM, wrong) == 0

        optimizer.check_finite = all_finite
    try:
        yield
    finally:
        del iterations.assign_add
        if scaled:
            del optimizer.check_finite


def _context():
    return tf.distribute.get_replica_context()


def _index_in_process():
    """Returns which of the devices of this process the current replica has."""
    devices = tf.distribute.get_strategy().extended.worker_devices
    index = tf.get_static_value(_context().replica_id_in_sync_group)
    return index % len(devices)
