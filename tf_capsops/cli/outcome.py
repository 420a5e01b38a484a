# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a finished run came to: result.json, beside its model."""

import resource
import statistics
import time

import keras
import tensorflow as tf

from tf_capsops.cli import progress, runs
from tf_capsops.cli.errors import CommandError
from tf_capsops.machine import label, machine

RESULT = "result.json"
_KEPT = (
    "part",
    "images",
    "wrong",
    "parameters",
    "seconds_per_epoch",
    "peak_bytes",
)


class Clock(keras.callbacks.Callback):
    """Takes the time of every epoch, with what is done at its end.

    Attributes:
      seconds: of each epoch that this process trained.
    """

    def __init__(self):
        super().__init__()
        self.seconds = []

    def on_epoch_begin(self, epoch, logs=None):
        self._began = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        self.seconds.append(time.perf_counter() - self._began)


def write(directory, model, clock, accuracy):
    """Writes result.json: accuracy, size, time, memory and machine of a run.

    Args:
      directory: the run's.
      model: as it was trained.
      clock: the `Clock` that saw it.
      accuracy: a dict of "part", "images" and "wrong".
    """
    peak = {"host": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
    if tf.config.list_physical_devices("GPU"):
        peak["gpu"] = tf.config.experimental.get_memory_info("GPU:0")["peak"]
    # The first epoch also traces and compiles.
    seconds = clock.seconds[1:] or clock.seconds
    content = {
        **accuracy,
        "parameters": model.count_params(),
        # None where a resumed run had no epoch left to train.
        "seconds_per_epoch": statistics.median(seconds) if seconds else None,
        "peak_bytes": peak,
        "machine": machine(),
    }
    runs.write_json(directory / RESULT, content)


def read(directory):
    """Returns a finished run's result.json, with the images it got wrong by epoch.

    The machine has its name instead of its description.

    Raises:
      CommandError: if the file, or the history beside it, is missing or another one.
    """
    result = runs.read_json(directory / RESULT)
    history = runs.read_json(directory / runs.HISTORY)
    try:
        on, images = result["machine"], result["images"]
        accuracies = progress.accuracies(history)[1]
        return {
            **{key: result[key] for key in _KEPT},
            "machine": label(on),
            "commit": on["commit"],
            "date": on["date"],
            "tensorflow": on["versions"]["tensorflow"],
            "wrong_by_epoch": [round((1 - each) * images) for each in accuracies],
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CommandError(f"{directory} does not hold the outcome of a run") from error
