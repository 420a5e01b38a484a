# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Has `fit` group its steps and not wait for a GPU, where nobody sees the difference.

Keras converts the losses and metrics of each execution to numbers, and so waits until
the GPU has computed them, before it launches the next execution. What is launched
meanwhile would cost nothing. So here `fit` gets those of the execution before, and the
epoch's own from the metrics at its end.
"""

import contextlib

import keras

from tf_capsops.models.ahead import gpu_of

_STEPS = 20  # in an execution, where the user leaves it to us
_BATCH_HOOKS = [
    f"on_{part}batch_{side}" for part in ("", "train_") for side in ("begin", "end")
]


class Logs:
    """Gives the logs of executions to `fit`, each at the end of the next.

    Not those of a user's own `train_step` that are no metrics: Keras takes the epoch's
    from the last execution.

    Args:
      model: a `keras.Model`.
    """

    def __init__(self, model):
        self._model = model
        self._names = None
        self._before = None

    def forget(self):
        """Gives those of the next execution at its own end."""
        self._before = None

    def late(self, logs):
        """Returns the logs before, and keeps these."""
        if self._names is None:
            self._names = {*self._model.get_metrics_result()}
        before, self._before = self._before, logs
        return logs if before is None or {*logs} != self._names else before


class Bar(keras.callbacks.ProgbarLogger):
    """Keras' progress bar of each epoch's steps, for any `steps_per_execution`.

    The last execution of an epoch may have fewer steps; Keras' own bar counts them in
    full and goes beyond its end.
    """

    def on_train_batch_end(self, batch, logs=None):
        if self.target is not None:
            batch = min(batch, self.target - 1)
        super().on_train_batch_end(batch, logs)


@contextlib.contextmanager
def grouped(model, arguments):
    """Changes the arguments of a `fit`, and `steps_per_execution` while it runs.

    Args:
      model: a `keras.Model`.
      arguments: those of `fit` by name; changed in place.
    """
    callbacks = arguments.get("callbacks")
    if model.run_eagerly or not gpu_of(model) or _see_batches(callbacks):
        yield
        return
    steps = model.steps_per_execution
    if steps == 1:
        # Keras counts whole executions. Where it is told how many steps, these divide.
        total = arguments.get("steps_per_epoch") or 0
        choices = range(_STEPS, 0, -1)
        model.steps_per_execution = next(n for n in choices if total % n == 0)
    callbacks = keras.tree.flatten(callbacks or [])
    if arguments.get("verbose", "auto") and not any(map(_is_bar, callbacks)):
        callbacks = [*callbacks, Bar()]
    arguments["callbacks"] = callbacks
    model._logs_may_be_late = True
    try:
        yield
    finally:
        model._logs_may_be_late = False
        model.steps_per_execution = steps


def _see_batches(callbacks):
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return True
    return any(
        getattr(type(callback), hook) is not getattr(keras.callbacks.Callback, hook)
        for callback in keras.tree.flatten(callbacks or [])
        if not _is_bar(callback) and not _saves_epochs(callback)
        for hook in _BATCH_HOOKS
    )


def _is_bar(callback):
    return isinstance(callback, keras.callbacks.ProgbarLogger)


def _saves_epochs(callback):
    saving = keras.callbacks.ModelCheckpoint, keras.callbacks.BackupAndRestore
    return isinstance(callback, saving) and callback.save_freq == "epoch"
