# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Keeps what a training run needs to go on after it was stopped or killed."""

import os
import re
import time

import keras

from tf_capsops.cli import runs

# Files in writing.
_PARTIAL_MODEL, _PARTIAL_HISTORY = "partial.keras", f"partial-{runs.HISTORY}"
_PAUSE = 20  # times as long as saving took, until it is done again


class Checkpoints(keras.callbacks.Callback):
    """Saves history and model at the end of epochs.

    Files are complete whenever the process is killed: each is written under another
    name first. The history is written every epoch; the model after the first one, and
    then as soon as saving it takes less than a twentieth of the time.

    Attributes:
      history: lists of a number an epoch, by name, as a Keras `History` has them.
    """

    def __init__(self, directory, history):
        super().__init__()
        self.history = history
        self._directory = directory
        self._due = 0.0

    def on_epoch_end(self, epoch, logs=None):
        # In one step, for Ctrl-C may come in between.
        self.history = {
            name: [*self.history.get(name, []), float(value)]
            for name, value in (logs or {}).items()
        }
        partial = self._directory / _PARTIAL_HISTORY
        runs.write_json(partial, self.history)
        os.replace(partial, self._directory / runs.HISTORY)
        began = time.monotonic()
        if began < self._due:
            return
        partial = self._directory / _PARTIAL_MODEL
        self.model.save(partial)
        before = _found(self._directory)
        os.replace(partial, self._directory / f"checkpoint-{epoch + 1}.keras")
        for path in before.values():
            path.unlink()
        now = time.monotonic()
        self._due = now + _PAUSE * (now - began)


def newest(directory):
    """Returns the number of epochs that a run's last checkpoint has, and its file.

    They are 0 and None where there is none.
    """
    return max(_found(directory).items(), default=(0, None))


def remove(directory):
    """Removes a run's checkpoints, and what a kill left of files in writing."""
    names = _PARTIAL_HISTORY, _PARTIAL_MODEL
    for path in (*_found(directory).values(), *(directory / name for name in names)):
        path.unlink(missing_ok=True)


def _found(directory):
    paths = directory.glob("checkpoint-*.keras")
    matches = ((re.fullmatch(r"checkpoint-(\d+)\.keras", p.name), p) for p in paths)
    return {int(match[1]): path for match, path in matches if match}
