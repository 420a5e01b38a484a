# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Compiles, copies and measures models for `tf-capsops quantize`."""

import dataclasses
import pathlib
import tempfile
import warnings

import keras

from tf_capsops import inq
from tf_capsops.cli import evaluate
from tf_capsops.inq.kernels import layers_and_kernels


@dataclasses.dataclass(frozen=True)
class Accuracy:
    """The number of images, not trained on, that a model gets wrong."""

    wrong: int
    images: int

    @classmethod
    def of(cls, model, dataset):
        labels = evaluate.scores(model, dataset.test).argmax(axis=1)
        return cls(int((labels != dataset.test.labels).sum()), len(labels))

    def __str__(self):
        return f"{1 - self.wrong / self.images:.2%} ({self.wrong} wrong)"


class StepLog(keras.callbacks.Callback):
    """Prints and keeps the accuracy at each step, before training goes on.

    In the list of callbacks it must follow the `IncrementalQuantization`.

    Attributes:
      records: for each step a dict of the fraction and of how many images were
        wrong, right after the step and before the next one.
    """

    def __init__(self, steps, dataset, interactive):
        super().__init__()
        self.records = []
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
            print()  # the line of the progress bar is not at its end
        step, steps = len(self.records), len(self._steps.steps)
        print(
            f"step {step} of {steps}, {fraction:.1%} of the weights fixed: {wrong}",
            flush=True,
        )

    def on_epoch_end(self, epoch, logs=None):
        if (epoch + 1) % self._steps.epochs_per_step:
            return
        wrong = Accuracy.of(self.model, self._dataset)
        self.records[-1]["wrong_after_training"] = wrong.wrong


def recompile(model, learning_rate, steps):
    """Compiles a model as it was, for a cosine of the learning rate in every step."""
    schedule = keras.optimizers.schedules.CosineDecayRestarts(
        learning_rate, steps, t_mul=1.0
    )
    optimizer = keras.saving.serialize_keras_object(keras.optimizers.Adam(schedule))
    model.compile_from_config({**model.get_compile_config(), "optimizer": optimizer})


def rehearsed(model, bits):
    """Does with a copy what is done after training, to see whether it can be done.

    Returns:
      The copy, without a loss, with all weights quantized at once; and the bytes of its
      file.

    Raises:
      ValueError: `tf_capsops.inq.convert` refuses the model, or a weight is not finite.
    """
    copy = bare_copy(model)
    for _, kernel in layers_and_kernels(copy):
        kernel.assign(inq.quantize(kernel, bits))
    file_size(converted(copy, bits))
    return copy, file_size(copy)


def converted(model, bits):
    """What `tf_capsops.inq.convert` returns, without its warning.

    The command prints the table of layers, which says the same.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "convert: ")
        return inq.convert(model, bits)


def bare_copy(model):
    """A copy without loss and optimizer, whose state would be saved too."""
    copy = type(model).from_config(model.get_config())
    copy.set_weights(model.get_weights())
    return copy


def file_size(model):
    """The bytes of the model's `.keras` file."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "model.keras"
        model.save(path)
        return path.stat().st_size


def sizes(report):
    """Three lines about the sizes in a report."""
    weights, files = report["bytes_of_weights"], report["bytes_of_file"]
    return (
        f"{report['weights']:,} quantized weights: {weights['float32']:,} bytes as "
        f"float32, {weights['packed']:,} packed ({report['bits']} bits each)\n"
        f"model.keras: {files['model']:,} bytes with the optimizer's state, "
        f"{files['float']:,} without it\n"
        f"codes.keras: {files['codes']:,} bytes without an optimizer, with codes where "
        "an operator takes them"
    )
