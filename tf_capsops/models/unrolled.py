# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Trains on several batches per execution, without waiting for the GPU in between."""

import functools
import inspect
import warnings

import keras
import tensorflow as tf

from tf_capsops.models import grouping, replicas, shares
from tf_capsops.models.ahead import Feed
from tf_capsops.models.epochs import Epochs
from tf_capsops.models.loop import compiler, nth, repeat, shorten_first_step
from tf_capsops.models.replica_metrics import Metrics, has_own

_ITERATORS = tf.data.Iterator, tf.distribute.DistributedIterator


class Unrolled:
    """A mixin for a `keras.Model` that speeds up training with `steps_per_execution`.

    After each step of an execution, Keras' loop computes on the GPU whether to go on,
    and copies the answer to the host. This waits for all earlier work. Here the batches
    of an execution are stacked, and the number of steps is known in advance, so nothing
    waits. XLA compiles the whole loop. Weights, losses and metrics are those of Keras.

    On a GPU, `fit` copies batches ahead. It also runs up to 20 steps per execution,
    unless `compile` asked for more than one. The progress bar then moves by as many
    steps, and shows the losses of the previous execution. Two things switch this off:
    callbacks that see each batch and do not have `groups_steps = True`, and a model
    with `groups_steps = False`.

    With a strategy of several replicas, such as `tf.distribute.MirroredStrategy`, each
    replica's share of a batch is weighted by its number of samples, also in the logs of
    your own `train_step` or `test_step`. On GPUs, XLA compiles the whole loop of each
    replica unless `jit_compile` is false. On CPUs, it compiles only with
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

    groups_steps = True  # Whether `fit` may choose the steps of an execution.
    _next_run = None  # The `Run` of a `fit` that has no training function yet.

    # `fit`, `evaluate`, `predict` and the methods on a batch call the next two with the
    # first batch, on the host and outside of graphs, before anything is computed.

    def check_inputs(self, x):
        """Raises a ValueError if the model does not take inputs `x`."""

    def check_targets(self, x, y):
        """Raises a ValueError if inputs `x` cannot have the targets `y`, or None."""

    # Keras calls the next three at the beginning of each `fit`, `evaluate`, `predict`
    # and `*_on_batch`. It calls their results with an iterator for each execution.

    def make_train_function(self, force=False):
        if self.train_function is None or force:
            # A callback may ask for another function in the middle of a `fit`.
            run = getattr(self.train_function, "run", None)
            self.train_function = _Function(self, self.train_step, replicas.train_step)
            self.train_function.run = run
        self.train_function.checked = False
        if self._next_run:
            # Keras has read the number of steps for this `fit`. Everything else must
            # see the user's number.
            self.train_function.run, self._next_run = self._next_run, None
            self.train_function.run.epochs.close()
            self.steps_per_execution = self._users_steps
        return self.train_function

    def make_test_function(self, force=False):
        if self.test_function is None or force:
            self.test_function = _Function(self, self.test_step, replicas.test_step)
        self.test_function.checked = False
        self.test_function.run = grouping.Run(self)
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
            # Keras itself cannot compile replicas, so its default is not to compile.
            if given.get("jit_compile", "auto") == "auto":
                given["jit_compile"] = True
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Model doesn't support `jit_compile")
                super().compile(*bound.args, **bound.kwargs)
        else:
            super().compile(*args, **kwargs)
        # Reading `self.jit_compile` instead would already resolve "auto".
        jit = given.get("jit_compile", "auto")
        if jit and tf.config.list_physical_devices("GPU"):
            shorten_first_step()

    def compile_from_config(self, config):
        if type(self).compile is not Unrolled.compile:
            super().compile_from_config(config)  # Warns that it cannot compile.
            return
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.built:
            self.optimizer.build(self.trainable_variables)

    @functools.wraps(keras.Model.fit)
    def fit(self, *args, **kwargs):
        bound = inspect.signature(super().fit).bind(*args, **kwargs)
        outer = getattr(self.train_function, "run", None)  # A callback may call `fit`.
        self._users_steps = self.steps_per_execution
        ours = type(self).make_train_function is Unrolled.make_train_function
        epochs = Epochs(self.distribute_strategy, bound.arguments, ours)
        run = grouping.Run(self, grouping.plan(self, bound.arguments, epochs.length))
        run.epochs = epochs
        self._next_run, self.steps_per_execution = run, run.plan.steps
        epochs.begin()
        try:
            return super().fit(*bound.args, **bound.kwargs)
        finally:
            run.close()
            self._next_run, self.steps_per_execution = None, self._users_steps
            if isinstance(self.train_function, _Function):
                self.train_function.run = outer

    @functools.wraps(keras.Model.evaluate)
    def evaluate(self, *args, **kwargs):
        try:
            return super().evaluate(*args, **kwargs)
        finally:
            if getattr(self.test_function, "run", None):
                self.test_function.run.close()

    def get_metrics_result(self):
        run = getattr(self.train_function, "run", None)
        # `fit` asks for the metrics of an epoch once, after its last execution.
        return (run and run.logs.take_last()) or super().get_metrics_result()

    def reset_metrics(self):
        if not Metrics(self).reset():
            super().reset_metrics()
        # `fit` resets metrics at the beginning of an epoch.
        run = getattr(self.train_function, "run", None)
        if run:
            run.begin_epoch()

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        # With a strategy, Keras takes a batch out of the data and builds metrics with
        # the mean of its shares. But shares may differ in size, batches of several
        # processes are rejected, and a generator yields each batch only once. So
        # `_Function` builds metrics with a share of the first batch that it runs.
        pass

    def _build_with(self, spec):
        # Without this, the first step would create variables, and be traced again.
        flat = [each for each in keras.tree.flatten(spec) if each is not None]
        known = all(each.shape.rank is not None for each in flat)
        usual = self.built and not any(
            has_own(self, step) for step in ("train_step", "test_step")
        )
        with self.distribute_strategy.scope():
            if known and (usual or tf.distribute.has_strategy()):
                self._symbolic_build(data_batch=spec)


class _Function:
    """Runs the steps of an execution on batches of an iterator."""

    def __init__(self, model, step, step_of_replicas):
        self.checked = False
        self.run = None  # The `Run` of the `fit` or `evaluate` that calls this.
        self._model = model
        if model.distribute_strategy.num_replicas_in_sync > 1:
            self._make = functools.partial(_of_replicas, model, step_of_replicas)
        else:
            self._make = functools.partial(_alone, model, step)
        self._execute = None  # A function that runs groups, once the model is built.

    def __call__(self, iterator):
        run = self.run or grouping.Run(self._model)
        steps, on_data = 0, isinstance(iterator, _ITERATORS)
        if not on_data:  # The iterator is that of train_on_batch.
            feed = Feed(self._model, iterator, 1, None, False, self._check)
        else:
            if run.feed is None or run.feed.source is not iterator:
                plan, model = run.plan, self._model
                run.leave_feed()
                steps_of = plan.steps, run.length
                run.feed = Feed(model, iterator, *steps_of, plan.ahead, self._check)
            feed = run.feed
        wanted = run.wanted() if on_data else run.plan.steps
        while steps < wanted and (group := feed.next()):
            if not self._execute:
                self._model._build_with(group.spec)
                self._execute = self._make()
            logs = self._execute(group)
            steps += group.steps
        if not steps:
            raise StopIteration
        run.steps += steps if on_data else 0
        if run.plan.late and on_data:
            return run.logs.delay(logs, run.left)
        return logs() if callable(logs) else logs

    def _check(self, batch):
        # Only a user's own step takes such a batch.
        ones_own = isinstance(batch, tuple) and len(batch) > 3
        if not self.checked and not ones_own:
            x, y, _ = keras.utils.unpack_x_y_sample_weight(batch)
            self._model.check_inputs(x)
            self._model.check_targets(x, y)
        self.checked = True


class _Predictions:
    """Predicts the batches of an execution with Keras' own function."""

    def __init__(self, model, predict):
        self.checked = False
        self._model = model
        self._predict = predict

    def __call__(self, batches):
        strategy = self._model.distribute_strategy
        parts = [shares.parts(strategy, batch) for batch in batches]
        divided = [shares.divide(strategy, each) for each in parts]
        if not self.checked:
            x, _, _ = keras.utils.unpack_x_y_sample_weight(divided[0][0])
            self._model.check_inputs(x)
            self.checked = True
        if strategy.num_replicas_in_sync == 1:
            return self._predict(batches)
        full = [shares.without_empty(strategy, each) for each in divided]
        batches = [shares.join(strategy, each) for each, _ in full]
        if not any(added for _, added in full):
            return self._predict(batches)

        def predict(batch, added):
            outputs = self._predict([batch])
            return keras.tree.map_structure(
                lambda output: output[: len(output) - added], outputs
            )

        outputs = [predict(batch, added) for batch, (_, added) in zip(batches, full)]
        return keras.tree.map_structure(lambda *each: tf.concat(each, 0), *outputs)


def _alone(model, step):
    """Returns a function that runs a step of a model on the batches of a group."""
    traced, results = set(), ()

    @compiler(model)
    def one(batch):
        return model.distribute_strategy.run(step, (batch,))

    @compiler(model)
    def many(batches, steps):
        zeros = keras.tree.map_structure(
            lambda result: tf.zeros(result.shape, result.dtype), results
        )
        return repeat(lambda index: one(nth(batches, index)), steps, zeros)

    def execute(group):
        nonlocal results
        (batch,) = group.shares
        spec = tuple(keras.tree.flatten(group.spec))
        in_graphs = not (model.run_eagerly or tf.config.functions_run_eagerly())
        if in_graphs and spec not in traced:
            # Tracing uses the spec of the data set, with its unknown sizes. It is done
            # outside of a loop, because the first step creates optimizer variables.
            results = one.get_concrete_function(group.spec).structured_outputs
            traced.add(spec)
        if group.steps > 1 and all(map(_has_shape, keras.tree.flatten(results))):
            return many(batch, group.steps)
        return repeat(lambda index: one(nth(batch, index)), group.steps)

    return execute


def _of_replicas(model, step_of_replicas):
    """Returns a function that runs a step of all replicas on the batches of a group.

    It returns the logs, or a function that computes them.
    """
    step, strategy = step_of_replicas(model), model.distribute_strategy
    several, traced = shares.several_processes(strategy), set()

    metrics = Metrics(model)

    def steps_of(shares, even, steps):
        """Returns the user's logs, the metrics, or {} if the host sums the metrics."""
        logs = step(shares, even, steps)
        if not logs and metrics.are_sums:
            return {}
        found = model.get_metrics_result()
        return found if not logs or {*logs} == {*found} else logs

    if not model.run_eagerly:
        steps_of = tf.function(steps_of, reduce_retracing=True, autograph=False)

    def execute(group):
        if several and not model.run_eagerly and group.steps not in traced:
            # Processes number their collective sums while tracing. So all must trace
            # the same functions, even if shares differ in size in only one of them.
            spec = keras.tree.map_structure(shares.spec_of_any_size, group.shares)
            steps_of.get_concrete_function(spec, True, group.steps)
            traced.add(group.steps)
        logs = steps_of(group.shares, group.even or several, group.steps)
        return logs if logs or not metrics.are_sums else metrics.later()

    return execute


def _has_shape(result):
    return result is not None and result.shape.is_fully_defined()
