# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Steps of a model that has a replica on each of several devices.

XLA compiles for one device, and Keras asks it to compile a step with all its replicas.
Here XLA compiles what one replica does: the whole step where TensorFlow can sum
gradients within a compiled program, as on the GPUs of one process. Elsewhere it
compiles the forward and backward pass and the update of each variable, and Keras'
optimizer sums the gradients between them.
"""

import contextlib

import keras
import tensorflow as tf

_SUM = tf.distribute.ReduceOp.SUM


def train_step(model):
    """Returns a function that trains a model on a batch, of a share for each replica.

    A share counts by its samples, so a batch that does not divide evenly, or leaves
    replicas without a sample, gives the gradients that it gives on one device. The
    function's argument `even` says that all shares have the same number of samples.
    """
    strategy, optimizer = model.distribute_strategy, model.optimizer
    trained = []  # whether each variable has a gradient
    updates = {}

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

    compiled_gradients = compiler(model)(gradients)

    def in_parts(batch):
        batch = of_any_size(batch)
        count = _count(batch)
        # No GPU sums integers across processes: TensorFlow keeps int32 on the host.
        samples = _context().all_reduce(_SUM, tf.cast(count, tf.float32))
        own = tf.cond(count > 0, lambda: compiled_gradients(batch, samples), zeros)
        own = iter(own)
        own = [next(own) if has else None for has in trained]
        optimizer.apply(own, model.trainable_variables)

    @compiler(model)
    def whole(batch):
        with _without_merging(optimizer):
            model.train_step(batch)

    def step(batch, even):
        if even and model.jit_compile and on_gpus(strategy):
            strategy.run(lambda share: whole(of_any_size(share)), (batch,))
        else:
            with _compiled_updates(model, updates):
                strategy.run(in_parts, (batch,))

    return step


def test_step(model):
    """Returns a function that evaluates a model on a batch, as `train_step` does."""
    evaluate = compiler(model)(model.test_step)

    def replica(batch):
        batch = of_any_size(batch)

        def evaluated():
            evaluate(batch)
            return True

        tf.cond(_count(batch) > 0, evaluated, lambda: False)

    return lambda batch, even: model.distribute_strategy.run(replica, (batch,))


def on_gpus(strategy):
    """Whether a strategy has several replicas, all on GPUs of this process."""
    # XLA cannot all-reduce across processes (TensorFlow 2.21).
    return isinstance(strategy, tf.distribute.MirroredStrategy) and (
        strategy.num_replicas_in_sync > 1
        and all("GPU" in device for device in strategy.extended.worker_devices)
    )


def are_even(strategy, batch):
    """Whether the replicas of this process have as many samples of a batch each."""
    indices = range(len(strategy.extended.worker_devices))
    if len(indices) == 1:
        return True
    parts = (share(strategy, batch, index) for index in indices)
    return len({len(keras.tree.flatten(part)[0]) for part in parts}) == 1


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
    return tf.get_static_value(_context().replica_id_in_sync_group) % len(devices)


@contextlib.contextmanager
def _compiled_updates(model, functions):
    """Has XLA compile the update of each variable on each device, if the model asks.

    Args:
      model: the model, whose optimizer has another `update_step` meanwhile.
      functions: a dict that keeps what is compiled, for the next step.
    """
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    update = optimizer.update_step

    def compiled(gradient, variable, learning_rate):
        key = id(variable)  # of the one that a device has
        if key not in functions:
            functions[key] = compiler(model)(
                lambda gradient, rate: update(gradient, variable, rate)
            )
        functions[key](gradient, tf.convert_to_tensor(learning_rate))

    if model.jit_compile:
        optimizer.update_step = compiled
    try:
        yield
    finally:
        vars(optimizer).pop("update_step", None)
