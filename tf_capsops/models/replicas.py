# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Steps of a model that has a replica on each of several devices.

XLA compiles for one device, but Keras would ask it to compile a step of all replicas.
Here XLA compiles the work of one replica:

* the whole step, if TensorFlow can sum gradients within a compiled program, as on the
  GPUs of one process;
* otherwise the forward and backward pass, and the update of each variable. Keras'
  optimizer sums the gradients in between.
"""

import contextlib
import warnings

import keras
import tensorflow as tf

from tf_capsops.models import shares
from tf_capsops.models.loop import compiler, nth, repeat
from tf_capsops.models.replica_metrics import has_own
from tf_capsops.models.replica_sums import overlapped

_SUM = tf.distribute.ReduceOp.SUM


def train_step(model):
    """Returns a function that trains a model on a batch with a share for each replica.

    A share is weighted by its number of samples. So the gradients are those of a single
    device, even if a batch does not divide evenly or leaves replicas without a sample.

    The function's arguments are the shares of the replicas of this process; `even`,
    whether all have equally many samples; and `steps`, the number of batches, which are
    stacked if there are more than one. It returns the logs of the last step if the user
    has overridden `train_step`, and otherwise nothing.
    """
    strategy, optimizer = model.distribute_strategy, model.optimizer
    logs = _Logs(model, "train_step")
    jit = _may_use_xla(model)
    trained = []  # Pairs of a variable and whether it has a gradient.
    updates = {}

    def gradients(batch, samples):
        # Keras divides the mean of a share by the number of replicas.
        weight = strategy.num_replicas_in_sync * tf.cast(_count(batch), samples.dtype)
        model.optimizer = recorder = _Recorder(model, weight / samples)
        try:
            found = logs.weighted(batch)
        finally:
            model.optimizer = optimizer
        trained[:] = [(own, each is not None) for each, own in recorder.applied]
        # The zeros of a share without samples are dense, so no gradient may be sparse
        # IndexedSlices.
        return [
            tf.convert_to_tensor(each)
            for each, _ in recorder.applied
            if each is not None
        ], found

    def zeros():
        own = [tf.zeros(each.shape, each.dtype) for each, has in trained if has]
        return own, logs.zeros()

    compiled_gradients = compiler(model, jit)(gradients)

    def in_parts(batch):
        batch = _of_any_size(batch)
        count = _count(batch)
        # GPUs cannot sum int32 across processes, because TensorFlow keeps it on the
        # host.
        samples = _context().all_reduce(_SUM, tf.cast(count, tf.float32))
        own, found = tf.cond(
            count > 0, lambda: compiled_gradients(batch, samples), zeros
        )
        own = iter(own)
        own = [next(own) if has else None for _, has in trained]
        optimizer.apply(own, [variable for variable, _ in trained])
        return found

    @compiler(model, jit)
    def whole(batch, steps):
        with _without_merging(optimizer), overlapped(model):
            return repeat(
                lambda index: logs.weighted(_of_any_size(nth(batch, index))),
                steps,
                logs.of_loop,
            )

    def step(shares, even, steps):
        if even and jit and on_gpus(strategy):
            return logs.mean(
                strategy.run(lambda: whole(shares[_index_in_process()], steps))
            )
        with _compiled_updates(model, updates) if jit else contextlib.nullcontext():
            return _run_each(logs, in_parts, shares, steps)

    return step


def test_step(model):
    """Returns a function that evaluates a model on a batch, as `train_step` does."""
    logs = _Logs(model, "test_step")
    evaluate = compiler(model, _may_use_xla(model))(logs.weighted)

    def replica(batch):
        batch = _of_any_size(batch)
        return tf.cond(_count(batch) > 0, lambda: evaluate(batch), logs.zeros)

    def step(shares, even, steps):
        return _run_each(logs, replica, shares, steps)

    return step


def _run_each(logs, step, shares, steps):
    def run(index):
        return logs.strategy.run(lambda: step(nth(shares[_index_in_process()], index)))

    return logs.mean(repeat(run, steps, logs.of_loop))


def _may_use_xla(model):
    """Whether the model asks for XLA, and XLA can compile the work of a replica.

    A program of XLA cannot use a variable of another device.
    """
    if not model.jit_compile:
        return False
    local = model.distribute_strategy.experimental_local_results
    replicas = len(model.distribute_strategy.extended.worker_devices)
    variables = *model.variables, *model.metrics_variables
    outside = [each for each in variables if len(local(each.value)) != replicas]
    if outside:
        warnings.warn(
            f"{outside[0].path} was made outside of the strategy's scope, so training "
            "does without XLA, which is slower: make metrics within the scope",
            stacklevel=2,
        )
    return not outside


def on_gpus(strategy):
    """Whether a strategy has several replicas, all on GPUs of this process."""
    # XLA cannot all-reduce across processes (TensorFlow 2.21).
    return isinstance(strategy, tf.distribute.MirroredStrategy) and (
        strategy.num_replicas_in_sync > 1
        and all("GPU" in device for device in strategy.extended.worker_devices)
    )


def _of_any_size(batch):
    """Returns a batch whose static shapes do not tell the number of samples.

    Keras weights the losses of outputs by the static size of a batch, if it is known.
    """

    def any_size(tensor):
        if isinstance(tensor, tf.Tensor) and tensor.shape.rank:
            shape = [None, *tensor.shape[1:]]
            return tf.raw_ops.PlaceholderWithDefault(input=tensor, shape=shape)
        return tensor

    return keras.tree.map_structure(any_size, batch)


def _count(batch):
    """Returns the number of samples in a share, on the host."""
    with tf.device("CPU:0"):
        return tf.shape(shares.first(batch))[0]


class _Logs:
    """The logs of a step that the user has overridden, as means over a batch.

    The steps of Keras and of this package return metrics, which the model has anyway.
    Their logs are dropped.

    Args:
      model: the model.
      step: the name of its step.
    """

    def __init__(self, model, step):
        self.strategy = model.distribute_strategy
        self._step = getattr(model, step)
        self._last = None  # The logs of a share.
        # The results of steps in a loop; None for a user's step before it is traced.
        self.of_loop = None if has_own(model, step) else ()

    def weighted(self, batch):
        """Runs the step; returns logs times samples, and the number of samples."""
        logs = self._step(batch)
        if self.of_loop is not None:
            return ()
        samples = tf.cast(_count(batch), tf.float32)
        self._last = keras.tree.map_structure(
            lambda each: samples * tf.cast(each, tf.float32), logs
        )
        return self._last, samples

    def zeros(self):
        """Returns the result of `weighted` for a share without samples.

        `weighted` must have been called before.
        """
        if self.of_loop is not None:
            return ()
        zeros = keras.tree.map_structure(lambda each: tf.zeros(each.shape), self._last)
        return zeros, tf.zeros([])

    def mean(self, shares):
        """Returns the logs of a batch from the results of `weighted` for its shares."""
        if not shares:
            return {}
        logs, samples = keras.tree.map_structure(
            lambda each: self.strategy.reduce(_SUM, each, axis=None), shares
        )
        return keras.tree.map_structure(lambda each: each / samples, logs)


class _Recorder:
    """Replaces the optimizer during `train_step`, and records the gradients."""

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
            raise ValueError(
                "train_step applies gradients twice, which models with several "
                "replicas can do only on GPUs, compiled, with even shares"
            )
        self.applied = [*gradients_and_variables]

    def apply(self, gradients, trainable_variables=None):
        self.apply_gradients(zip(gradients, trainable_variables or self._variables))


@contextlib.contextmanager
def _without_merging(optimizer):
    """Lets an optimizer update variables in the compiled program of one replica.

    Two steps of Keras' optimizers synchronize replicas outside of such a program, and
    are replaced here: counting the iterations, and asking the first replica whether
    gradients are finite.
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
    """Returns the index of the current replica's device in this process."""
    devices = tf.distribute.get_strategy().extended.worker_devices
    return tf.get_static_value(_context().replica_id_in_sync_group) % len(devices)


@contextlib.contextmanager
def _compiled_updates(model, functions):
    """Makes XLA compile the update of each variable on each device.

    Args:
      model: the model; its optimizer's `update_step` is replaced in this context.
      functions: a dict that keeps the compiled functions for the next step.
    """
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    update = optimizer.update_step

    def compiled(gradient, variable, learning_rate):
        key = id(variable)  # Each device has its own variable.
        if key not in functions:
            functions[key] = compiler(model)(
                lambda gradient, rate: update(gradient, variable, rate)
            )
        functions[key](gradient, tf.convert_to_tensor(learning_rate))

    optimizer.update_step = compiled
    try:
        yield
    finally:
        vars(optimizer).pop("update_step", None)
