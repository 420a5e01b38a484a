# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Shows the progress of training on a terminal and in a log."""

import keras

from tf_capsops.models.grouping import Bar

_LABELS = {
    "lengths_accuracy": "train_accuracy",
    "val_lengths_accuracy": "test_accuracy",
    "accuracy": "train_accuracy",
    "val_accuracy": "test_accuracy",
    "psnr": "train_psnr",
    "loss": "loss",
}


def accuracies(history):
    """The accuracies in a Keras `History.history`: in training, and on other images.

    A model of several outputs puts the name of one before that of the metric.
    """
    name = "lengths_accuracy" if "lengths_accuracy" in history else "accuracy"
    return history[name], history[f"val_{name}"]


class StepBar(Bar):
    """A progress bar of each epoch's steps, which shows although `verbose` is 0."""

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


def callbacks(epochs, steps, interactive, part="test"):
    """Returns a Keras `verbose` value and the callbacks that show the progress.

    Args:
      epochs: how many there will be.
      steps: batches an epoch.
      interactive: whether the output is a terminal.
      part: what the images are called that are not trained on.
    """
    if not interactive:
        return 0, [EpochLine(max(1, epochs // 20), part)]
    if steps < 100:
        return 0, [EpochBar(part)]
    return 0, [StepBar()]
