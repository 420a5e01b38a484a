# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Keras callbacks: progress, times, checkpoints, and a Ctrl-C that waits."""

import os
import resource
import signal
import statistics
import sys
import threading
import time

import keras
import numpy as np
import tensorflow as tf

from tf_capsops.cli import runs
from tf_capsops.machine import machine
from tf_capsops.models.grouping import Bar

_PAUSE = 20  # The pause after a save, in multiples of the time that the save took.
_LABELS = {
    "lengths_accuracy": "train_accuracy",
    "val_lengths_accuracy": "test_accuracy",
    "accuracy": "train_accuracy",
    "val_accuracy": "test_accuracy",
    "dice": "train_dice",
    "val_dice": "test_dice",
    "psnr": "train_psnr",
    "loss": "loss",
}


def accuracies(history):
    """Returns the accuracies in a Keras `History.history`: training, then validation.

    A model with several outputs prefixes the metric's name with the output's name.
    """
    name = "lengths_accuracy" if "lengths_accuracy" in history else "accuracy"
    return history[name], history[f"val_{name}"]


class Boards(keras.callbacks.TensorBoard):
    """Writes the loss and metrics of each epoch for TensorBoard.

    Keras' own class also hooks into every batch, for data that this class does not
    write. Each execution of steps would then have to deliver its losses before the next
    one begins.
    """

    on_train_batch_begin = keras.callbacks.Callback.on_train_batch_begin
    on_train_batch_end = keras.callbacks.Callback.on_train_batch_end

    def __init__(self, directory):
        super().__init__(directory, write_graph=False)


class StepBar(Bar):
    """A progress bar of each epoch's steps, which is shown even if `verbose` is 0."""

    def set_params(self, params):
        super().set_params({**params, "verbose": 1})


class EpochBar(keras.callbacks.Callback):
    """One progress bar over all epochs, for epochs too short for bars of their own."""

    def __init__(self, part="test"):
        super().__init__()
        self._part = part

    def on_train_begin(self, logs=None):
        names = [_label(key, self._part) for key in _LABELS]
        self._bar = keras.utils.Progbar(
            self.params["epochs"], stateful_metrics=names, unit_name="epoch"
        )

    def on_epoch_end(self, epoch, logs=None):
        logs = logs or {}
        keys = [key for key in _LABELS if key in logs]
        values = [(_label(key, self._part), logs[key]) for key in keys]
        self._bar.update(epoch + 1, values)


class EpochLine(keras.callbacks.Callback):
    """Prints one line every few epochs, for output that is not a terminal."""

    def __init__(self, every, part="test"):
        super().__init__()
        self._every = every
        self._part = part

    def on_epoch_end(self, epoch, logs=None):
        epochs = self.params["epochs"]
        if (epoch + 1) % self._every and epoch + 1 < epochs:
            return
        values = [f"epoch {epoch + 1}/{epochs}"]
        for key in _LABELS:
            if key in (logs or {}):
                values.append(f"{_label(key, self._part)} {logs[key]:.4f}")
        print("  ".join(values), flush=True)


def _label(key, part):
    return _LABELS[key].replace("test", part)


def progress(epochs, steps, interactive, part="test"):
    """Returns a Keras `verbose` value and the callbacks that show the progress.

    Args:
      epochs: number of epochs.
      steps: batches per epoch.
      interactive: whether the output is a terminal.
      part: name of the images that are not trained on, "test" or "validation".
    """
    if not interactive:
        return 0, [EpochLine(max(1, epochs // 20), part)]
    if steps < 100:
        return 0, [EpochBar(part)]
    return 0, [StepBar()]


class Clock(keras.callbacks.Callback):
    """Measures how long each epoch takes, including validation.

    Attributes:
      seconds: a list with the time of each epoch that this process trained.
    """

    def __init__(self):
        super().__init__()
        self.seconds = []

    def on_epoch_begin(self, epoch, logs=None):
        self._began = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        self.seconds.append(time.perf_counter() - self._began)

    def median(self):
        """Returns the median seconds of an epoch, or None if there was none.

        The first epoch, which also traces and compiles, counts only if it is alone.
        """
        seconds = self.seconds[1:] or self.seconds
        return statistics.median(seconds) if seconds else None


def write_result(directory, model, clock, accuracy):
    """Writes result.json: accuracy, size, time, memory and machine of a run.

    Args:
      directory: the run's directory.
      model: the trained model.
      clock: the `Clock` of its training.
      accuracy: a dict of "part", "images" and "wrong"; or for masks of "part",
        "images", "pixel_accuracy" and "dice".
    """
    peak = {"host": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
    if tf.config.list_physical_devices("GPU"):
        peak["gpu"] = tf.config.experimental.get_memory_info("GPU:0")["peak"]
    content = {
        **accuracy,
        "parameters": model.count_params(),
        # None if a resumed run had no epoch left to train.
        "seconds_per_epoch": clock.median(),
        "peak_bytes": peak,
        "machine": machine(),
    }
    runs.write_json(directory / runs.RESULT, content)


class Draws(keras.callbacks.Callback):
    """Seeds random layers, such as dropout, at each epoch by the seed and its number.

    A resumed run thus draws the same numbers, although Keras' files do not keep the
    states of the generators.
    """

    def __init__(self, seed):
        super().__init__()
        self._seed = seed

    def on_epoch_begin(self, epoch, logs=None):
        weights = {id(weight) for weight in self.model.weights}
        states = [each for each in self.model.variables if id(each) not in weights]
        for index, state in enumerate(states):
            drawn = np.random.SeedSequence((self._seed, epoch, index))
            state.assign(drawn.generate_state(2))


class Checkpoints(keras.callbacks.Callback):
    """Saves history and model at the end of epochs.

    Files are complete even if the process is killed: history and model are written
    under other names and then renamed. The history is written every epoch; the model
    after the first epoch, and then often enough for saving to take at most a twentieth
    of the time.

    Args:
      directory: the run's directory.
      history: the history of earlier epochs.
      state: a function that returns a dict of arrays to save with each model, or None.
        Their file is written before the model's, and never read without it.

    Attributes:
      history: lists with one number per epoch, by name, as in a Keras `History`.
    """

    def __init__(self, directory, history, state=None):
        super().__init__()
        self.history = history
        self._directory = directory
        self._state = state
        self._due = 0.0

    def on_epoch_end(self, epoch, logs=None):
        # All entries are replaced at once, because Ctrl-C may come at any time.
        self.history = {
            name: [*self.history.get(name, []), float(value)]
            for name, value in (logs or {}).items()
        }
        try:
            self._write(epoch + 1)
        except OSError as error:  # such as a full disk: training goes on
            print(
                f"\nwarning: no checkpoint after epoch {epoch + 1}: {error}",
                file=sys.stderr,
                flush=True,
            )

    def _write(self, epoch):
        """Writes the history and, if it is due, the model after `epoch` epochs."""
        partial = self._directory / runs.PARTIAL_HISTORY
        runs.write_json(partial, self.history)
        os.replace(partial, self._directory / runs.HISTORY)
        began = time.monotonic()
        if began < self._due:
            return
        before = runs.checkpoints(self._directory)
        path = self._directory / f"checkpoint-{epoch}.keras"
        if self._state:
            with runs.checkpoint_state(path).open("wb") as file:
                np.savez(file, **self._state())
        save_whole(self.model, self._directory, path.name)
        for path in before.values():
            runs.remove_checkpoint(path)
        now = time.monotonic()
        self._due = now + _PAUSE * (now - began)


def save_whole(model, directory, name):
    """Saves a model in a directory; a file of this name is never incomplete."""
    partial = directory / runs.PARTIAL_MODEL
    try:
        model.save(partial)
        os.replace(partial, directory / name)
    finally:
        partial.unlink(missing_ok=True)


class Hold(keras.callbacks.Callback):
    """In its `with` block Ctrl-C waits for the end of a batch or of the block.

    `fit` ends after the current batch. A second Ctrl-C does not wait. Without this
    class, Python raises KeyboardInterrupt anywhere, even while a model is written:
    there it was sometimes lost, and once the process crashed soon after.
    """

    groups_steps = True  # its hooks read no logs

    def __init__(self):
        super().__init__()
        self._asked = False
        self._before = None

    def __enter__(self):
        # Any other handler stays, and so does SIGINT that the parent has ignored.
        if (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        ):
            self._before = signal.signal(signal.SIGINT, self._ask)
        return self

    def __exit__(self, kind, error, traceback):
        if self._before:
            signal.signal(signal.SIGINT, self._before)
        if kind is None:
            self._raise_if_asked()

    def fit(self, model, batches, *, epochs, steps, callbacks, part="test", **options):
        """Calls `model.fit` and shows the progress; Ctrl-C ends it early.

        Args:
          model: a compiled model.
          batches: training batches without an end, which are used in this order.
          epochs: number of epochs in all.
          steps: batches per epoch.
          callbacks: the callbacks of the run.
          part: name of the images that are not trained on, "test" or "validation".
          **options: other arguments of Keras' `fit`.

        Returns:
          The seconds that it took, and whether it was stopped.
        """
        verbose, shown = progress(epochs, steps, sys.stdout.isatty(), part)
        options |= {
            "epochs": epochs,
            "steps_per_epoch": steps,
            "shuffle": False,
            "verbose": verbose,
        }
        began = time.perf_counter()
        stopped = False
        try:
            model.fit(batches, callbacks=[*shown, *callbacks, self], **options)
        except KeyboardInterrupt:
            stopped = True
        return time.perf_counter() - began, stopped

    def on_train_batch_end(self, batch, logs=None):
        self._raise_if_asked()

    def on_test_batch_end(self, batch, logs=None):
        self._raise_if_asked()

    def _ask(self, number, frame):
        if self._asked:
            signal.default_int_handler(number, frame)
        self._asked = True
        print("\nstopping; Ctrl-C again stops at once", file=sys.stderr, flush=True)

    def _raise_if_asked(self):
        if self._asked:
            self._asked = False
            raise KeyboardInterrupt


def counted(number, noun):
    """Returns a number and its noun, with a regular plural: `1 epoch`, `2 batches`."""
    end = "" if number == 1 else "es" if noun.endswith("tch") else "s"
    return f"{number} {noun}{end}"


def where(history, epochs, seconds):
    """Says how far a stopped training got.

    Args:
      history: the history of its epochs, as a Keras `History` has it.
      epochs: how many epochs were planned.
      seconds: how long it took.
    """
    current = min(len(history.get("loss", [])) + 1, epochs)
    return f"stopped in epoch {current} of {epochs} after {seconds:.0f} s"
