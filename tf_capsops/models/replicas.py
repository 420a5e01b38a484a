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
import functools

import keras
import tensorflow as tf

_SUM = tf.distribute.ReduceOp.SUM


def train_step(model):
    """Returns a function that trains a model on a batch, of a share for each replica.

    A share counts by its samples, so a batch that does not divide evenly, or leaves
    replicas without a sample, gives the gradients that it gives on one device.

    The function's arguments are a batch; `even`, whether all shares have as many
    samples; and `steps`, how many batches are stacked if there are more than one.
    """
    strategy, optimizer = model.distribute_strategy, model.optimizer
    trained = []  # variables, and whether each has a gradient
    updates = {}

    def gradients(batch, samples):
        # Keras divides the mean of a share by the number of replicas.
        weight = strategy.num_replicas_in_sync * tf.cast(_count(batch), samples.dtype)
        model.optimizer = recorder = _Recorder(model, weight / samples)
        try:
            model.train_step(batch)
        finally:
            model.optimizer = optimizer
        trained[:] = [(own, each is not None) for each, own in recorder.applied]
        # A share without samples has zeros, which are no sparse IndexedSlices.
        return [
            tf.convert_to_tensor(each)
            for each, _ in recorder.applied
            if each is not None
        ]

    def zeros():
        return [tf.zeros(each.shape, each.dtype) for each, has in trained if has]

    compiled_gradients = compiler(model)(gradients)

    def in_parts(batch):
        batch = _of_any_size(batch)
        count = _count(batch)
        # No GPU sums integers across processes: TensorFlow keeps int32 on the host.
        samples = _context().all_reduce(_SUM, tf.cast(count, tf.float32))
        own = tf.cond(count > 0, lambda: compiled_gradients(batch, samples), zeros)
        own = iter(own)
        own = [next(own) if has else None for _, has in trained]
        optimizer.apply(own, [variable for variable, _ in trained])

    @compiler(model)
    def whole(batch, steps):
        def step(index):
            model.train_step(_of_any_size(nth(batch, index)))
            return ()

        with _without_merging(optimizer):
            repeat(step, steps)

    def step(batch, even, steps):
        if even and model.jit_compile and on_gpus(strategy):
            strategy.run(whole, (batch, steps))
        else:
            with _compiled_updates(model, updates):
                _run_each(strategy, in_parts, batch, steps)

    return step


def test_step(model):
    """Returns a function that evaluates a model on a batch, as `train_step` does."""
    evaluate = compiler(model)(model.test_step)

    def replica(batch):
        batch = _of_any_size(batch)

        def evaluated():
            evaluate(batch)
            return True

        tf.cond(_count(batch) > 0, evaluated, lambda: False)

    def step(batch, even, steps):
        _run_each(model.distribute_strategy, replica, batch, steps)

    return step


def repeat(step, steps, results=()):
    """Runs `step(0)`, `step(1)` and so on in one loop of a graph.

    A single step is run as `step(None)`.

    Args:
      step: takes an index and returns tensors.
      steps: how many.
      results: tensors like those that a step returns.

    Returns:
      What the last step returned.
    """
    if steps == 1:
        return step(None)
    if tf.executing_eagerly():
        return [step(index) for index in range(steps)][-1]

    def body(index, _):
        return index + 1, step(index)

    # With its limit a constant, XLA knows the number of steps, and no step waits to
    # learn on the host whether there is another one.
    return tf.while_loop(
        lambda index, _: index < steps, body, (0, results), parallel_iterations=1
    )[1]


def nth(batches, index):
    """Returns one of stacked batches, or all if the index is None."""
    if index is None:
        return batches
    return keras.tree.map_structure(
        lambda each: None if each is None else tf.gather(each, index), batches
    )


def _run_each(strategy, step, batch, steps):
    def run(index):
        strategy.run(lambda share: step(nth(share, index)), (batch,))
        return ()

    repeat(run, steps)


def on_gpus(strategy):
    """Whether a strategy has several replicas, all on GPUs of this process."""
    # XLA cannot all-reduce across processes (TensorFlow 2.21).
    return isinstance(strategy, tf.distribute.MirroredStrategy) and (
        strategy.num_replicas_in_sync > 1
        and all("GPU" in device for device in strategy.extended.worker_devices)
    )


def leave_data_whole(strategy):
    """Has a strategy not divide data sets until the returned `ExitStack` is closed.

    Dividing them costs more time on the host than a step of a small network takes on
    two GPUs. `ahead.Feed` divides batches instead.
    """
    stack = contextlib.ExitStack()
    of_one_process = isinstance(strategy, tf.distribute.MirroredStrategy)
    if of_one_process and strategy.num_replicas_in_sync > 1:
        name = "experimental_distribute_dataset"
        setattr(strategy, name, lambda dataset, options=None: dataset)
        stack.callback(vars(strategy).pop, name, None)
    return stack


def parts(strategy, batch):
    """Returns a list of what each replica of this process has of a batch.

    A batch that is not divided among the replicas is the only item of the list.
    """
    batch = keras.tree.map_structure(none_if_optional, batch)
    flat = keras.tree.flatten(batch)
    if any(isinstance(each, tf.distribute.DistributedValues) for each in flat):
        return _local(strategy, batch)
    return [batch]


def shares(strategy, parts, axis=0):
    """Returns a list of what each replica of this process computes on.

    Args:
      strategy: the strategy.
      parts: what `parts` returned. A batch that is not divided is divided evenly.
      axis: the axis of samples.
    """
    replicas = strategy.num_replicas_in_sync
    if len(parts) > 1 or replicas == 1:
        return parts
    (whole,) = parts
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


def joined(strategy, shares):
    """Returns the batch of which the replicas of this process have these shares."""
    if strategy.num_replicas_in_sync == 1:
        return shares[0]
    return strategy.experimental_distribute_values_from_function(
        lambda context: shares[context.replica_id_in_sync_group % len(shares)]
    )


def without_empty_shares(strategy, shares):
    """Returns shares with a sample for each replica, and how many were added.

    Where the last batch leaves replicas without a sample, TensorFlow's convolutions
    give them results of a wrong shape on CPUs. Processes know their own shares only,
    so batches of several processes stay as they are.
    """
    empty = [not samples(share) for share in shares]
    if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy) or not any(
        empty
    ):
        return shares, 0
    full = shares[empty.index(False)]
    sample = keras.tree.map_structure(lambda value: _part(value, 0, 1, 0), full)
    shares = [sample if is_empty else own for own, is_empty in zip(shares, empty)]
    return shares, sum(empty)


def samples(batch, axis=0):
    """Returns the number of samples in a batch."""
    return _first(batch).shape[axis]


def none_if_optional(value):
    """Keras puts an empty optional where data has no sample weights."""
    optional = isinstance(value, (tf.experimental.Optional, tf.OptionalSpec))
    return None if optional else value


def _local(strategy, batch):
    def own(index, value):
        if isinstance(value, tf.distribute.DistributedValues):
            value = strategy.experimental_local_results(value)[index]
        return none_if_optional(value)

    count = len(strategy.extended.worker_devices)
    return [
        keras.tree.map_structure(functools.partial(own, index), batch)
        for index in range(count)
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


def _of_any_size(batch):
    """Returns a batch whose static shapes leave open how many samples it has.

    Keras weighs the losses of outputs by the static size of a batch, where it is known.
    """

    def any_size(tensor):
        if isinstance(tensor, tf.Tensor) and tensor.shape.rank:
            shape = [None, *tensor.shape[1:]]
            return tf.raw_ops.PlaceholderWithDefault(input=tensor, shape=shape)
        return tensor

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
        return tf.shape(_first(batch))[0]


def _first(batch):
    return next(each for each in keras.tree.flatten(batch) if each is not None)


class _Recorder:
    """Takes the place of an optimizer in `train_step`, and keeps the gradients."""

    def __init__(self, model, weight):
        self._optimizer, self._weight = model.optimizer, weight
        self._variables = model.trainable_variables
        self.applied = None

    def __getattr__(self, name):
        return getattr(self._optimizer, name)

    def scale_loss(self, loss):
        loss = self._optimizer.scale_loss(loss)
        return loss * tf.cast(self._weight, loss.dtype)

    def apply_gradients(self, gradients_and_variables):
        if self.applied is not None:
            raise NotImplementedError(
                "train_step applies gradients twice, which models with several "
                "replicas can do only on GPUs, compiled, with even shares"
            )
        self.applied = [*gradients_and_variables]

    def apply(self, gradients, trainable_variables=None):
        self.apply_gradients(zip(gradients, trainable_variables or self._variables))


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
