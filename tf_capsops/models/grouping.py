# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Groups the steps of `fit` on a GPU, and does not wait for their results.

After each execution Keras converts losses and metrics to numbers, which waits until the
GPU has computed them, and only then launches the next execution. Passing the logs of
the previous execution instead lets the host launch the next one at once; the first one
of an epoch has none. The logs of an epoch come from the metrics at its end, and are
exact.
"""

import dataclasses

import keras
import tensorflow as tf

from tf_capsops.models import epochs
from tf_capsops.models.ahead import gpu_of, has_gpus, in_thread
from tf_capsops.models.shares import several_processes

_STEPS = 20  # the most in an execution, where the user leaves it to us
_HOOKS = [
    f"on_{part}batch_{side}" for part in ("", "train_") for side in ("begin", "end")
]


@dataclasses.dataclass(frozen=True)
class Plan:
    """How a `fit` runs.

    Attributes:
      steps: how many make an execution.
      late: whether Keras gets the logs of the execution before.
      least: how many batches an epoch has at least, as far as that is known.
      ahead: whether batches are copied to the GPU before their step.
    """

    steps: int
    least: int = 0
    late: bool = False
    ahead: bool = False


class Bar(keras.callbacks.ProgbarLogger):
    """Keras' progress bar of each epoch's steps, for any `steps_per_execution`.

    The last execution of an epoch may have fewer steps. Keras' own bar counts them in
    full and goes beyond its end.
    """

    def on_train_batch_end(self, batch, logs=None):
        run = getattr(self.model.train_function, "run", None)
        if run:  # a model of ours
            batch = run.steps - 1
        elif self.target is not None:
            batch = min(batch, self.target - 1)
        super().on_train_batch_end(batch, logs)


class Logs:
    """Delays the logs of executions by one.

    If `train_step` returns anything other than the model's metrics, logs are not
    delayed, because Keras then takes the epoch's logs from the last execution.

    Args:
      model: a `keras.Model`.
    """

    def __init__(self, model):
        self._model = model
        self._names = None
        self._before = None
        self._last = None

    def reset(self):
        """Forgets the executions so far."""
        self._before = self._last = None

    def delay(self, logs, left):
        """Returns the logs of the execution before, and keeps these.

        Args:
          logs: the logs of an execution, or a function that returns them.
          left: how many batches of the epoch follow at least, None if not known.

        Returns:
          An empty dict in the first execution of several of an epoch. In one that may
          be the only one, its own logs.
        """
        if callable(logs):
            logs = in_thread(logs)
            if left == 0:
                self._last = logs
            return self._later(logs, left)
        if self._names is None:
            self._names = {*self._model.get_metrics_result()}
        if not isinstance(logs, dict) or {*logs} != self._names:
            return logs
        if not all(map(_is_scalar, logs.values())):
            return logs
        # A copy from a GPU starts when this has done all that it was given before, so
        # there is one for all logs, and it begins before the next execution.
        packed = _packed([*logs.values()])
        numbers = in_thread(lambda: dict(zip(logs, packed.numpy())))
        return self._later(numbers, left)

    def take_last(self):
        """Returns the logs of an epoch's last execution once, None if not kept."""
        last, self._last = self._last, None
        return last and last.result()

    def _later(self, own, left):
        before, self._before = self._before, own
        if not before and left:
            return {}
        return (before or own).result()


def _is_scalar(value):
    return isinstance(value, tf.Tensor) and value.shape.rank == 0


@tf.function(reduce_retracing=True)
def _packed(scalars):
    return tf.stack([tf.cast(scalar, tf.float32) for scalar in scalars])


class Run:
    """One `fit`, with what it holds while it runs.

    Args:
      model: a `keras.Model`.
      plan: a `Plan`; by default that of `evaluate` and the methods on a batch.
    """

    def __init__(self, model, plan=None):
        self.plan = plan or Plan(model.steps_per_execution)
        self.logs = Logs(model)
        self.feed = None  # of the iterator of an epoch
        self.steps = 0  # in this epoch
        self.epochs = None  # an `Epochs`, of `fit`

    @property
    def length(self):
        """The batches of an epoch, if one iterator has all epochs, else None."""
        return self.epochs and self.epochs.length

    @property
    def left(self):
        """How many batches of the epoch follow at least, None if not known."""
        if self.length:
            return self.length - self.steps
        return max(0, self.plan.least - self.steps) or None

    def wanted(self):
        """Returns how many steps the next execution has, if there are batches."""
        left = self.length - self.steps if self.length else self.plan.steps
        return min(self.plan.steps, left)

    def close(self):
        if self.epochs:
            self.epochs.close()
        self.leave_feed()

    def leave_feed(self):
        """Takes no more of its batches."""
        if self.feed:
            self.feed.close()
            # An iterator's end may wait for a thread of TensorFlow's.
            last, self.feed = [self.feed], None
            in_thread(last.clear)

    def begin_epoch(self):
        self.steps = 0
        self.logs.reset()


def plan(model, arguments, length=None):
    """Returns how a `fit` is to run; adds a progress bar to its arguments.

    Args:
      model: a `keras.Model`.
      arguments: those of `fit` by name; changed in place.
      length: the batches of an epoch, if one iterator has all epochs.
    """
    steps, callbacks = model.steps_per_execution, arguments.get("callbacks")
    # Keras stops the workers of a PyDataset at the end of each epoch, and an iterator
    # may serve the next `fit`, too.
    x = arguments.get("x")
    each_once = isinstance(x, keras.utils.PyDataset) or hasattr(x, "__next__")
    # Processes ask each other at each batch of data that ends whether there is one. All
    # do that between the same sums of gradients only if they do it in the same thread.
    asks = several_processes(model.distribute_strategy) and not length
    ahead = has_gpus() and not asks and not each_once
    grouped = model.groups_steps and not model.run_eagerly and gpu_of(model)
    if not grouped or _see_batches(callbacks):
        return Plan(steps, ahead=ahead)
    total, whole = epochs.limit(arguments), epochs.whole_batches(arguments)
    if steps == 1:
        if total and not length:
            # Keras counts whole executions, so their steps must divide the epoch's.
            steps = next(n for n in range(_STEPS, 0, -1) if total % n == 0)
        else:
            steps = steps_at_once(total or whole or _STEPS)
    callbacks = keras.tree.flatten(callbacks or [])
    has_bar = any(isinstance(c, keras.callbacks.ProgbarLogger) for c in callbacks)
    if arguments.get("verbose", "auto") and not has_bar:
        callbacks.append(Bar())
    arguments["callbacks"] = callbacks
    least = min(whole or 0, total or whole or 0)
    return Plan(steps, late=True, least=least, ahead=ahead)


def steps_at_once(batches):
    """Returns how many steps make an execution, if an epoch has so many whole batches.

    Batches that are left over at the end of an epoch are trained on one at a time, so
    as few as possible are.
    """
    most = max(1, min(_STEPS, batches))
    return min(range(most, most // 2, -1), key=lambda steps: batches % steps)


def _see_batches(callbacks):
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return True
    callbacks = keras.tree.flatten(callbacks or [])
    return any(_sees(callback, hook) for callback in callbacks for hook in _HOOKS)


def _sees(callback, hook):
    """Whether a callback has a hook other than these, which need not see each batch."""
    if getattr(callback, "groups_steps", False):
        return False
    classes = [keras.callbacks.Callback, keras.callbacks.ProgbarLogger, Bar]
    if getattr(callback, "save_freq", None) == "epoch":
        classes += [keras.callbacks.ModelCheckpoint, keras.callbacks.BackupAndRestore]
    function = getattr(getattr(callback, hook), "__func__", None)
    return all(function is not getattr(each, hook) for each in classes)
