# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Training several batches in an execution, without waiting for the GPU in between."""

import functools
import inspect
import itertools
import warnings

import keras
import tensorflow as tf

from tf_capsops.models import grouping, replicas

_Divided = tf.distribute.DistributedIterator


class Unrolled:
    """Mixed into a `keras.Model`, makes `steps_per_execution` wait for no step.

    Keras' loop over the steps of an execution computes on the GPU whether to go on, and
    copies the answer to the host, which waits for all that was launched before it. Here
    the steps follow each other in one graph, and whether there is another batch is
    asked on the host alone. Weights, losses and metrics are those of Keras' loop.

    Graphs grow with `steps_per_execution`.

    On a GPU, `fit` copies batches ahead, and runs up to 20 steps in an execution if
    `compile` did not ask for more than one. Callbacks that see each batch switch the
    latter off, and so does `groups_steps = False`. The progress bar then moves by as
    many steps, and shows the losses of the execution before.

    Under a strategy of several replicas, as `tf.distribute.MirroredStrategy`, each
    replica's share of a batch counts by its samples. On GPUs XLA compiles the whole
    step of each replica unless `jit_compile` is false. On CPUs it compiles only with
    `jit_compile=True`, and in parts.

    >>> import keras
    >>> import numpy as np
    >>> from tf_capsops.models import Unrolled
    >>> class Model(Unrolled, keras.Sequential):
    ...     pass
    >>> model = Model([keras.Input([3]), keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse", steps_per_execution=4)
    >>> history = model.fit(np.ones([9, 3]), np.ones(9), batch_size=2, verbose=0)
    """

    groups_steps = True  # whether `fit` may run other than `steps_per_execution`
    _next_run = None  # of a `fit` that has not made its function yet

    # `fit`, `evaluate`, `predict` and the methods on a batch call these two with the
    # first batch, on the host and outside of graphs, before anything is computed.

    def check_inputs(self, x):
        """Raises a ValueError if the model does not take such inputs."""

    def check_targets(self, x, y):
        """Raises a ValueError if inputs `x` cannot have the targets `y`, or None."""

    # Keras calls these three at the beginning of each `fit`, `evaluate`, `predict` and
    # `*_on_batch`, and then the functions with an iterator for each execution.

    def make_train_function(self, force=False):
        if self.train_function is None or force:
            self.train_function = _Function(self, self.train_step, replicas.train_step)
        self.train_function.checked = False
        if self._next_run:
            # `fit` has read the number of steps. All else has the user's.
            self.train_function.run, self._next_run = self._next_run, None
            self.steps_per_execution = self._users_steps
        return self.train_function

    def make_test_function(self, force=False):
        if self.test_function is None or force:
            self.test_function = _Function(self, self.test_step, replicas.test_step)
        self.test_function.checked = False
        return self.test_function

    def make_predict_function(self, force=False):
        if self.predict_function is None or force:
            super().make_predict_function(force)
            self.predict_function = _Predictions(self, self.predict_function)
        self.predict_function.checked = False
        return self.predict_function

    @functools.wraps(keras.Model.compile)
    def compile(self, *args, **kwargs):
        bound = inspect.signature(super().compile).bind(*args, **kwargs)
        given = bound.arguments
        if replicas.on_gpus(self.distribute_strategy) and not given.get("run_eagerly"):
            # Keras alone cannot compile replicas, so its default is not to.
            if given.get("jit_compile", "auto") == "auto":
                given["jit_compile"] = True
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Model doesn't support `jit_compile")
                super().compile(*bound.args, **bound.kwargs)
        else:
            super().compile(*args, **kwargs)

    def compile_from_config(self, config):
        if type(self).compile is not Unrolled.compile:
            super().compile_from_config(config)  # warns that it does not know how
            return
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.built:
            self.optimizer.build(self.trainable_variables)

    @functools.wraps(keras.Model.fit)
    def fit(self, *args, **kwargs):
        bound = inspect.signature(super().fit).bind(*args, **kwargs)
        outer = getattr(self.train_function, "run", None)  # a callback may call `fit`
        self._users_steps = self.steps_per_execution
        self._next_run = grouping.Run(self, grouping.plan(self, bound.arguments))
        self.steps_per_execution = self._next_run.plan.steps
        try:
            return super().fit(*bound.args, **bound.kwargs)
        finally:
            self._next_run, self.steps_per_execution = None, self._users_steps
            if isinstance(self.train_function, _Function):
                self.train_function.run = outer

    def reset_metrics(self):
        super().reset_metrics()
        # `fit` does this at the beginning of an epoch.
        run = getattr(self.train_function, "run", None)
        if run:
            run.logs.reset()

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        # Under a strategy, Keras builds metrics with the mean of the shares of a batch,
        # which it takes out of the data. But shares may differ in size, batches of
        # several processes are refused, and a generator gives each batch once.
        # `_Function` builds them with a share of the first batch that it runs.
        pass

    def _build_with(self, share):
        super()._maybe_symbolic_build(data_batch=share)


class _Function:
    """Runs the steps of an execution on batches of an iterator."""

    def __init__(self, model, step, step_of_replicas):
        self.checked = False
        self.run = None  # of the `fit` that calls this
        self._model = model
        self._executions = {}  # by their number of steps
        with model.distribute_strategy.scope():
            distributed = tf.distribute.has_strategy()
        if distributed:
            self._run = self._run_distributed
            several = model.distribute_strategy.num_replicas_in_sync > 1
            if several:
                step = step_of_replicas(model)
            else:
                step = _of_one_replica(_compiled(model, step))
            self._execution = _distributed(model, step)
        else:
            self._run = self._run_alone
            self._step = _compiled(model, step)

    def __call__(self, iterator):
        run = self.run or grouping.Run(self._model)
        logs = self._run(iterator, run)
        on_a_batch = not isinstance(iterator, (tf.data.Iterator, _Divided))
        return run.logs.delay(logs) if run.plan.late and not on_a_batch else logs

    def _run_alone(self, iterator, run):
        if not isinstance(iterator, tf.data.Iterator):  # the one of train_on_batch
            batch = next(iterator)
            self._check(batch)
            return self._step(batch)
        if run.plan.ahead:
            iterator = run.copies.iterator_for(iterator, self._model)
        first = iterator.get_next_as_optional()
        if not first.has_value():
            raise StopIteration
        if not self.checked:
            with tf.device("CPU:0"):
                self._check(first.get_value())
        steps = run.plan.steps
        if steps not in self._executions:
            self._executions[steps] = _unrolled(self._model, self._step, steps)
        return self._executions[steps](first, iterator)

    def _run_distributed(self, iterator, run):
        # In a graph TensorFlow asks all replicas for another batch on their GPUs, and
        # waits for the answers. Here the host takes the batches of an execution first.
        strategy = self._model.distribute_strategy
        divided, plan = isinstance(iterator, _Divided), run.plan
        batches = run.prefetcher.take(iterator, plan.steps, divided and plan.ahead)
        if not batches:
            raise StopIteration
        if not divided:
            batches = [replicas.shares(strategy, batch) for batch in batches]
        if not self.checked:
            share = replicas.share(strategy, batches[0])
            self._check(share)
            self._model._build_with(share)
        of_one_kind = itertools.groupby(
            batches, lambda batch: replicas.are_even(strategy, batch)
        )
        for even, batches in of_one_kind:
            logs = self._execution(list(batches), even)
        return logs

    def _check(self, batch):
        batch = keras.tree.map_structure(replicas.none_if_optional, batch)
        x, y, _ = keras.utils.unpack_x_y_sample_weight(batch)
        self._model.check_inputs(x)
        self._model.check_targets(x, y)
        self.checked = True


class _Predictions:
    """Predicts the batches of an execution by Keras' own function."""

    def __init__(self, model, predict):
        self.checked = False
        self._model = model
        self._predict = predict

    def __call__(self, batches):
        strategy = self._model.distribute_strategy
        several = strategy.num_replicas_in_sync > 1
        if several:
            # Of a batch that is not divided, each replica would predict all samples.
            batches = [replicas.shares(strategy, batch) for batch in batches]
        if not self.checked:
            share = replicas.share(strategy, batches[0])
            x, _, _ = keras.utils.unpack_x_y_sample_weight(share)
            self._model.check_inputs(x)
            self.checked = True
        return self._of_replicas(batches) if several else self._predict(batches)

    def _of_replicas(self, batches):
        strategy = self._model.distribute_strategy
        full = [replicas.without_empty_shares(strategy, batch) for batch in batches]
        if not any(added for _, added in full):
            return self._predict(batches)

        def predict(batch, added):
            outputs = self._predict([batch])
            return keras.tree.map_structure(
                lambda output: output[: len(output) - added], outputs
            )

        outputs = [predict(*each) for each in full]
        return keras.tree.map_structure(lambda *each: tf.concat(each, 0), *outputs)


def _compiled(model, step):
    """Returns a function that runs a step of a model on a batch."""

    def step_on_batch(batch):
        batch = keras.tree.map_structure(replicas.none_if_optional, batch)
        return model.distribute_strategy.run(step, (batch,))

    return replicas.compiler(model)(step_on_batch)


def _of_one_replica(step):
    return lambda batch, even: step(batch)


def _distributed(model, step):
    """Returns a function that takes batches with a share for each replica."""

    def execution(batches, even):
        for batch in batches:
            logs = step(replicas.of_any_size(batch), even)
        return model.get_metrics_result() if logs is None else logs

    return _graph(model, execution)


def _unrolled(model, step, steps):
    """Returns a function that takes up to so many batches of an iterator."""

    def execution(first, iterator):
        logs = step(first.get_value())
        for _ in range(steps - 1):
            logs = _step_if_any(step, iterator.get_next_as_optional(), logs)
        return logs

    return _graph(model, execution)


def _graph(model, execution):
    if model.run_eagerly:
        return execution
    return tf.function(execution, reduce_retracing=True, autograph=False)


def _step_if_any(step, batch, logs):
    return tf.cond(batch.has_value(), lambda: step(batch.get_value()), lambda: logs)
