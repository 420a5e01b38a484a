# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Trains a compiled network, and writes what comes of it to the run's directory."""

import sys

import keras
import tensorflow as tf

from tf_capsops import models
from tf_capsops.cli import (
    checkpoints,
    distribution,
    figures,
    interruption,
    outcome,
    pair_figures,
    pipeline,
    progress,
    runs,
    validation,
)
from tf_capsops.cli.errors import INTERRUPTED, CommandError


def train(model, dataset, directory, config, distortion, epoch=0, history=None):
    """Trains, saves and reports.

    Args:
      model: as it is compiled.
      dataset: what to train it on, and to judge it by.
      directory: the run's, where everything goes.
      config: what its `config.json` has.
      distortion: a `presets.Distortion` of the training images.
      epoch: how many epochs were trained before.
      history: of these, as a Keras `History` has it.

    Returns:
      The exit status.

    Raises:
      CommandError: if another worker ends, or a picture is not there any more.
    """
    strategy = model.distribute_strategy
    epochs, batch_size = config["epochs"], config["batch_size"]
    steps = -(-len(dataset.train) // batch_size)
    # Not by `compile`, whose arguments the file of the model keeps.
    model.steps_per_execution = config["steps_per_execution"]
    batches, counter = pipeline.training_batches(
        *(dataset.train, batch_size, distortion),
        *(config["seed"], config["deterministic"], config["class_weight"]),
    )
    tests = dataset.test.batches(
        distribution.test_batch_size(strategy, len(dataset.test))
    )
    if config["distribute"]:
        batches, tests = (distribution.shared(strategy, d) for d in (batches, tests))
    part = validation.part(config["validation"])
    verbose, shown = progress.callbacks(epochs, steps, sys.stdout.isatty(), part)
    clock = outcome.Clock()
    boards = keras.callbacks.TensorBoard(directory / "tensorboard", write_graph=False)
    saved = checkpoints.Checkpoints(directory, history or {})
    with interruption.Hold() as hold:
        try:
            seconds, stopped = hold.fit(
                model,
                batches,
                epochs=epochs,
                initial_epoch=epoch,
                # Used only for the curves.
                validation_data=tests,
                shuffle=False,
                verbose=verbose,
                callbacks=[clock, counter, *shown, boards, saved],
            )
        except (tf.errors.AbortedError, tf.errors.UnavailableError) as error:
            raise CommandError(
                "another worker has ended, and with it the run: start all of them "
                "again, with --resume, to go on from the last checkpoint"
            ) from error
        except tf.errors.NotFoundError as error:
            raise CommandError(
                f"a picture is gone: {error.message.splitlines()[0]}; put it back, and "
                "go on with --resume"
            ) from error
        _save(model, dataset, directory, config, saved.history, clock, seconds, stopped)
    return INTERRUPTED if stopped else 0


def _save(model, dataset, directory, config, history, clock, seconds, stopped):
    """Writes what a training has made, as far as it came, and says so."""
    epochs = config["epochs"]
    part = validation.part(config["validation"])
    model.save(directory / runs.MODEL)
    if config["distribute"]:  # pictures are drawn by one device
        model = keras.saving.load_model(directory / runs.MODEL)
    written = [runs.MODEL, runs.CONFIG]
    if history:
        figures.curves(history, directory / "curves.png", part)
        written += [runs.HISTORY, "curves.png"]
    if isinstance(model, models.CapsNet):
        draw = pair_figures if dataset.objects > 1 else figures
        draw.reconstructions(model, dataset, directory / "reconstructions.png")
        written.append("reconstructions.png")
    said = [f"trained in {seconds:.0f} s"]
    if stopped:
        said = [f"\n{interruption.where(history, epochs, seconds)}"]
        if checkpoints.newest(directory)[1]:
            said[0] += f"; `tf-capsops train --resume {directory}` goes on"
    if history:
        accuracy = progress.accuracies(history)[1][-1]
        wrong = round((1 - accuracy) * len(dataset.test))
        said.append(
            f"{part} accuracy {accuracy:.2%}, error {1 - accuracy:.2%} "
            f"({wrong} of {len(dataset.test)} wrong)"
        )
        if not stopped:
            of = {"part": part, "images": len(dataset.test), "wrong": wrong}
            outcome.write(directory, model, clock, of)
            checkpoints.remove(directory)
            written.append(outcome.RESULT)
    said.append(f"wrote {directory}: {', '.join(written)}, tensorboard")
    print("\n".join(said))
