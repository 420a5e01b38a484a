# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Groups the steps of `fit` on a GPU, and does not wait for their results.

After each execution, Keras converts losses and metrics to numbers. This waits for the
GPU, and only then does Keras launch the next execution. Here Keras gets the logs of the
previous execution instead, so the host can launch the next one immediately. The first
execution of an epoch has no logs. The logs of an epoch come from the metrics at its end
and are exact.
"""

import dataclasses

import keras
import tensorflow as tf

from tf_capsops.models import epochs
from tf_capsops.models.ahead import gpu_of, has_gpus, in_thread
from tf_capsops.models.shares import several_processes

_STEPS = 20  # The most steps of an execution, unless the user chooses their number.
_HOOKS = [
    f"on_{part}batch_{side}" for part in ("", "train_") for side in ("begin", "end")
]


@dataclasses.dataclass(frozen=True)
class Plan:
    """The settings of one `fit`.

    Attributes:
      steps: the number of steps in an execution.
      least: a lower bound of the batches in an epoch, as far as known.
      late: whether Keras gets the logs of the previous execution.
      ahead: whether batches are copied to the GPU before their step.
    """

    steps: int
    least: int = 0
    late: bool = False
    ahead: bool = False


class Bar(keras.callbacks.ProgbarLogger):
    """Keras' progress bar of each epoch's steps, for any `steps_per_execution`.

    The last execution of an epoch may have fewer steps. Keras' own bar counts all
    executions in full, and so runs past its end.
    """

    def on_train_batch_end(self, batch, logs=None):
        run = getattr(self.model.train_function, "run", None)
        if run:  # The model is an `Unrolled`.
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
        """Keeps the logs of an execution, and returns those of the previous one.

        Args:
          logs: the logs of an execution, or a function that returns them.
          left: a lower bound of the batches left in the epoch, None if not known.

        Returns:
          The previous logs. For the first execution of an epoch, an empty dict if
          another follows for certain, and else its own logs.
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
        # A copy from a GPU starts only after all work that was given to it before. So
        # one copy has all logs, and it is started before the next execution.
        packed = _packed([*logs.values()])
        numbers = in_thread(lambda: dict(zip(logs, packed.numpy())))
        return self._later(numbers, left)

    def take_last(self):
        """Returns the logs of an epoch's last execution, once; None if not kept."""
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
    """The state of one `fit` while it runs.

    Args:
      model: a `keras.Model`.
      plan: a `Plan`; None for that of `evaluate` and the methods on a batch.
    """

    def __init__(self, model, plan=None):
        self.plan = plan or Plan(model.steps_per_execution)
        self.logs = Logs(model)
        self.feed = None  # The `Feed` of the current iterator.
        self.steps = 0  # The steps done in this epoch.
        self.epochs = None  # An `Epochs`, in `fit`.

    @property
    def length(self):
        """The batches of an epoch, if one iterator reads all epochs, else None."""
        return self.epochs and self.epochs.length

    @property
    def left(self):
        """A lower bound of the batches left in the epoch, None if not known."""
        if self.length:
            return self.length - self.steps
        return max(0, self.plan.least - self.steps) or None

    def wanted(self):
        """Returns the steps of the next execution, provided there are batches."""
        left = self.length - self.steps if self.length else self.plan.steps
        return min(self.plan.steps, left)

    def close(self):
        if self.epochs:
            self.epochs.close()
        self.leave_feed()

    def leave_feed(self):
        """Closes the current feed, if any."""
        if self.feed:
            self.feed.close()
            # Deleting an iterator may wait for a thread of TensorFlow.
            last, self.feed = [self.feed], None
            in_thread(last.clear)

    def begin_epoch(self):
        self.steps = 0
        self.logs.reset()


def plan(model, arguments, length=None):
    """Returns the `Plan` of a `fit`, and adds a progress bar to its arguments.

    Args:
      model: a `keras.Model`.
      arguments: the arguments of `fit` by name; changed in place.
      length: the batches of an epoch, if one iterator reads all epochs.
    """
    steps, callbacks = model.steps_per_execution, arguments.get("callbacks")
    # Batches must not be taken ahead from a PyDataset, whose workers Keras stops after
    # each epoch, nor from an iterator, which the next `fit` may continue.
    x = arguments.get("x")
    each_once = isinstance(x, keras.utils.PyDataset) or hasattr(x, "__next__")
    # If the data may end, processes ask each other at each batch whether there is one.
    # To ask between the same sums of gradients, all must do so in the main thread.
    asks = several_processes(model.distribute_strategy) and not length
    ahead = has_gpus() and not asks and not each_once
    grouped = model.groups_steps and not model.run_eagerly and gpu_of(model)
    if not grouped or _see_batches(callbacks):
        return Plan(steps, ahead=ahead)
    total, whole = epochs.limit(arguments), epochs.whole_batches(arguments)
    if steps == 1:
        if total and not length:
            # Keras counts whole executions, so their steps must divide the epoch.
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
    """Returns the steps of an execution, for an epoch of so many full-size batches.

    The batches left over at the end of an epoch are trained one at a time, so the
    result leaves as few of them as possible.
    """
    most = max(1, min(_STEPS, batches))
    return min(range(most, most // 2, -1), key=lambda steps: batches % steps)


def _see_batches(callbacks):
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return True
    callbacks = keras.tree.flatten(callbacks or [])
    return any(_sees(callback, hook) for callback in callbacks for hook in _HOOKS)


def _sees(callback, hook):
    """Whether a callback has its own version of a hook, and so must see each batch."""
    if getattr(callback, "groups_steps", False):
        return False
    classes = [keras.callbacks.Callback, keras.callbacks.ProgbarLogger, Bar]
    if getattr(callback, "save_freq", None) == "epoch":
        classes += [keras.callbacks.ModelCheckpoint, keras.callbacks.BackupAndRestore]
    function = getattr(getattr(callback, hook), "__func__", None)
    return all(function is not getattr(each, hook) for each in classes)
