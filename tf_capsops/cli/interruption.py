# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C that waits until nothing is half done."""

import signal
import sys
import threading
import time

import keras


class Hold(keras.callbacks.Callback):
    """In its `with` block Ctrl-C waits for the end of a batch or of the block.

    Python raises KeyboardInterrupt wherever it happens to be, also while a model is
    being written. There it was sometimes lost, and once the process crashed soon
    after. `fit` ends after the current batch. A second Ctrl-C does not wait.
    """

    def __init__(self):
        super().__init__()
        self._asked = False
        self._before = None

    def __enter__(self):
        # Somebody else's handler, or none as under nohup, stays.
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

    def fit(self, model, *args, callbacks, **kwargs):
        """Calls `model.fit`, until it or Ctrl-C ends it.

        Returns:
          The seconds that it took, and whether it was stopped.
        """
        began = time.perf_counter()
        stopped = False
        try:
            model.fit(*args, callbacks=[*callbacks, self], **kwargs)
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


def where(history, epochs, seconds):
    """Says how far a training came that was stopped.

    Args:
      history: of its epochs, as a Keras `History` has it.
      epochs: how many there should have been.
      seconds: what it took.
    """
    current = min(len(history.get("loss", [])) + 1, epochs)
    return f"stopped in epoch {current} of {epochs} after {seconds:.0f} s"
