# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Counts what a network gets wrong, at each step of a quantization."""

import dataclasses

import keras

from tf_capsops.cli import evaluation


@dataclasses.dataclass(frozen=True)
class Accuracy:
    """The number of test images that a model gets wrong, among how many."""

    wrong: int
    images: int

    @classmethod
    def of(cls, model, dataset):
        labels = evaluation.scores(model, dataset.test).argmax(axis=1)
        return cls(int((labels != dataset.test.labels).sum()), len(labels))

    def __str__(self):
        return f"{1 - self.wrong / self.images:.2%} ({self.wrong} wrong)"


class StepLog(keras.callbacks.Callback):
    """Prints and keeps the accuracy at each step, before training goes on.

    In the list of callbacks it must follow the `IncrementalQuantization`.

    Args:
      steps: the `IncrementalQuantization`.
      dataset: the data set with the test images.
      records: a list to which it adds a dict for each step: the fraction, and how many
        images are wrong right after the step and after the training that follows.
      interactive: whether the output is a terminal.
    """

    def __init__(self, steps, dataset, records, interactive):
        super().__init__()
        self.records = records
        self._steps = steps
        self._dataset = dataset
        self._interactive = interactive

    def on_epoch_begin(self, epoch, logs=None):
        if self._steps.steps_taken == len(self.records):
            return
        wrong = Accuracy.of(self.model, self._dataset)
        fraction = self._steps.steps[len(self.records)]
        self.records.append({"fraction": fraction, "wrong": wrong.wrong})
        if self._interactive and epoch > 0:
            print()  # ends the line of the progress bar
        step, steps = len(self.records), len(self._steps.steps)
        print(
            f"step {step} of {steps}, {fraction:.1%} of the weights quantized: {wrong}",
            flush=True,
        )

    def on_epoch_end(self, epoch, logs=None):
        if (epoch + 1) % self._steps.epochs_per_step:
            return
        wrong = Accuracy.of(self.model, self._dataset)
        self.records[-1]["wrong_after_training"] = wrong.wrong
