# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Trains a network, from its data to its files: what `tf-capsops train` does.

`run` prepares the data, the network and the run, in this order. Then `fit` trains, and
`_save` writes the results.
"""

import contextlib
import math

import keras
import tensorflow as tf

from tf_capsops import data
from tf_capsops.cli import (
    callbacks,
    distribution,
    figures,
    gone,
    image_sizes,
    networks,
    pipeline,
    plots,
    presets,
    runs,
    train,
)
from tf_capsops.data import folders, pairs, sources
from tf_capsops.errors import INTERRUPTED, CommandError, quoted, reported
from tf_capsops.experiments import recipes
from tf_capsops.models import autoencoder, grouping


def run(args):
    """Trains a new network. Returns the exit status."""
    # Comes before any computation, such as decoding pictures when data is opened.
    strategy = distribution.strategy(args.distribute)

    # The data.
    source, options = train.data(args)
    dataset = networks.open_data(source, **options)
    described = networks.described(dataset)
    if args.recipe:
        recipes.check_data(args.recipe, dataset)
    networks.require_library()
    trained = train.settings(args, dataset)
    changed = args.recipe and train.changes(args.recipe, trained)
    dataset = pipeline.held_out(dataset, args.validation)
    batch_size, steps = trained["batch_size"], _steps(trained, dataset)

    # The network.
    seed = None if args.nondeterministic else args.seed
    repeatable = networks.seed_everything(args.seed, seed is not None)
    model = compiled(trained, dataset, strategy)
    networks.use_xla(model, args.jit or "auto", seed)

    # The run.
    on_gpu = bool(tf.config.list_physical_devices("GPU"))
    whole = min(steps, len(dataset.train) // batch_size)
    at_once = grouping.steps_at_once(whole) if on_gpu else 1
    config = {
        "data": data.absolute(source),
        **described,
        "recipe": args.recipe,
        "changed": changed,
        **trained,
        "jit": model.jit_compile,
        "steps_per_execution": min(steps, args.steps_per_execution or at_once),
        "distribute": args.distribute,
        **repeatable,
    }

    wanted = args.output or runs.ROOT / (args.recipe or dataset.name)
    has_classes = data.is_pictures(source) and not pairs.are_in(source)
    if has_classes and folders.takes_for_class(source, wanted):
        raise CommandError(
            f"{wanted} is in {source}, whose folders are classes: give another --output"
        )
    distribution.check_shares(strategy, len(dataset.train), batch_size)
    with distribution.writing(strategy, lambda: runs.create(wanted)) as directory:
        runs.write_json(directory / runs.CONFIG, config)
        kind, _ = image_sizes.words(dataset.image_shape)
        print(
            f"{dataset.name}: {len(dataset.train)} {kind} for training, "
            f"{len(dataset.test)} for {pipeline.purpose(args.validation)}, "
            f"{dataset.num_classes} classes{_named(described)}\n"
            f"{_title(config)}: {model.count_params():,} parameters, "
            f"{callbacks.counted(config['epochs'], 'epoch')} of "
            f"{callbacks.counted(steps, 'batch')}{_manner(config, strategy)}\n"
            f"{runs.where(directory, wanted)}",
            flush=True,
        )
        distortion = presets.Distortion(**trained["distortion"])
        return fit(model, dataset, directory, config, distortion)


def compiled(trained, dataset, strategy):
    """Returns the network that `train.settings` describes, compiled for a data set.

    Raises:
      CommandError: if the images do not suit it.
    """
    steps = trained["epochs"] * _steps(trained, dataset)
    with strategy.scope(), reported(ValueError):
        model = _made(trained, dataset)
        networks.compile_for(model, trained, steps)
    return model


def _made(trained, dataset):
    """Returns the network that `train.settings` describes, for a data set.

    Raises:
      ValueError: if the images do not suit it; the message names an option that helps.
    """

    def takes(image_shape):
        with contextlib.suppress(ValueError):
            return networks.make(trained, image_shape, dataset.num_classes)

    try:
        return networks.make(trained, dataset.image_shape, dataset.num_classes)
    except ValueError as error:
        network, shape = f"{trained['preset']} {trained['model']}", dataset.image_shape
        multiple = presets.MULTIPLES.get(trained["model"])
        if multiple and any(size % multiple for size in shape[:-1]):
            text, remedy = error, f"--image-size, multiples of {multiple}"
        else:
            images, remedy = f"those of {dataset.name}", "a larger --image-size"
            text = image_sizes.too_small(network, images, shape, takes)
        has_option = isinstance(dataset, data.Pictures) or sources.has_size(
            dataset.name
        )
        if text and has_option:
            text = f"{text}: give {remedy}"
        raise ValueError(text or error) from error


def _steps(config, dataset):
    """Returns how many batches an epoch has."""
    return runs.steps(
        len(dataset.train), config["batch_size"], config["steps_per_epoch"]
    )


def fit(model, dataset, directory, config, distortion, epoch=0, history=None):
    """Trains, saves and reports.

    Args:
      model: a compiled network.
      dataset: the data to train it on and to judge it by.
      directory: the run's directory, for all files.
      config: the content of its `config.json`.
      distortion: a `presets.Distortion` of the training images.
      epoch: how many epochs were trained before.
      history: the history of these epochs, as a Keras `History` has it.

    Returns:
      The exit status.

    Raises:
      CommandError: if another worker ends, an image is gone, or files cannot be
        written.
    """
    strategy = model.distribute_strategy
    epochs, batch_size = config["epochs"], config["batch_size"]
    steps = _steps(config, dataset)
    # Set here, because the model's file would keep it as an argument of `compile`.
    model.steps_per_execution = config["steps_per_execution"]
    batches = pipeline.training_batches(
        *(dataset.train, batch_size, distortion),
        *(config["seed"], config["class_weight"], epoch),
        num_classes=dataset.num_classes,
        steps=steps,
    )
    tests_at_once = distribution.test_batch_size(strategy, len(dataset.test))
    if dataset.has_masks:  # masks take as much memory as images
        tests_at_once = min(tests_at_once, batch_size)
    tests = dataset.test.batches(tests_at_once)
    if config["distribute"]:
        batches, tests = map(distribution.by_samples, (batches, tests))
    clock = callbacks.Clock()
    boards = callbacks.Boards(directory / "tensorboard")
    saved = callbacks.Checkpoints(directory, history or {})
    with callbacks.Hold() as hold, gone.reported("and go on with --resume"):
        try:
            seconds, stopped = hold.fit(
                model,
                batches,
                epochs=epochs,
                steps=steps,
                initial_epoch=epoch,
                # Used only for the curves.
                validation_data=tests,
                callbacks=[clock, callbacks.Draws(config["seed"]), boards, saved],
                part=pipeline.part(config["validation"]),
            )
        except (tf.errors.AbortedError, tf.errors.UnavailableError) as error:
            raise CommandError(
                "another worker has ended, and with it the run: start all of them "
                "again, with --resume, to go on from the last checkpoint"
            ) from error
        made = saved.history, clock, seconds, stopped
        try:
            _save(model, dataset, directory, config, *made)
        except BrokenPipeError:
            raise  # nobody reads the output
        except OSError as error:  # such as a full disk
            text = f"cannot write to {directory}: {error.strerror or error}"
            is_saved = (directory / runs.MODEL).is_file()
            if runs.newest_checkpoint(directory)[1] or not is_saved:
                again = f"`tf-capsops train --resume {quoted(directory)}` goes on"
                text += f"; once that is mended, {again}"
            raise CommandError(text) from error
    return INTERRUPTED if stopped else 0


def _save(model, dataset, directory, config, history, clock, seconds, stopped):
    """Writes the results of a training, finished or stopped, and prints a summary."""
    epochs = config["epochs"]
    judged = pipeline.part(config["validation"])
    callbacks.save_whole(model, directory, runs.MODEL)
    if config["distribute"]:  # the copy draws pictures on one device
        model = keras.saving.load_model(directory / runs.MODEL)
    said = [f"trained in {seconds:.0f} s"]
    if stopped:
        said = [f"\n{callbacks.where(history, epochs, seconds)}"]
        if runs.newest_checkpoint(directory)[1]:
            said[0] += f"; `tf-capsops train --resume {quoted(directory)}` goes on"
    is_finished = history and not stopped
    if history:
        accuracy = callbacks.accuracies(history)[1][-1]
        of = {"part": judged, "images": len(dataset.test)}
        if dataset.has_masks:
            of |= {"pixel_accuracy": accuracy, "dice": history["val_dice"][-1]}
            _, parts = image_sizes.words(dataset.image_shape)
            said.append(
                f"{judged} {parts} right {accuracy:.2%}, Dice {of['dice']:.4f}, the "
                "mean of the classes"
            )
        else:
            of["wrong"] = wrong = round((1 - accuracy) * len(dataset.test))
            said.append(
                f"{judged} accuracy {accuracy:.2%}, error {1 - accuracy:.2%} "
                f"({wrong} of {len(dataset.test)} wrong)"
            )
        said += _failure(history.get("val_loss", history["loss"]))
        if is_finished:
            callbacks.write_result(directory, model, clock, of)
            runs.remove_checkpoints(directory)
    written = [runs.MODEL, runs.CONFIG]
    try:
        if history:
            written.append(runs.HISTORY)
            plots.curves(history, directory / "curves.png", judged)
            written.append("curves.png")
        if isinstance(model, autoencoder.Autoencoder):
            figures.reconstructions(model, dataset, directory / "reconstructions.png")
            written.append("reconstructions.png")
    except OSError as error:  # the run is complete without pictures
        said.append(f"warning: cannot write a picture: {error.strerror or error}")
    written += [runs.RESULT] if is_finished else []
    said.append(f"wrote {directory}: {', '.join(written)}, tensorboard")
    print("\n".join(said))


def _failure(losses):
    """Returns a list with a warning if the last loss is not finite, else empty."""
    finite = [number for number, loss in enumerate(losses, 1) if math.isfinite(loss)]
    first = max(finite, default=0) + 1
    if first > len(losses):
        return []
    return [
        f"warning: the loss has not been finite since epoch {first}: train again with "
        "a lower --learning-rate"
    ]


def _named(described):
    """Says what the classes are called, if there are not too many."""
    names = described.get("classes", [])
    return f": {', '.join(names)}" if 0 < len(names) <= 20 else ""


def _title(config):
    """Says which network is trained, and whether as a recipe has it."""
    recipe, network = config["recipe"], f"{config['preset']} {config['model']}"
    if not recipe:
        return network
    changed = f" but for {', '.join(config['changed'])}" if config["changed"] else ""
    return f"recipe {recipe}{changed}, {network}"


def _manner(config, strategy):
    """Says how the model is trained, as far as that is not the usual way."""
    said = [f", {config['mixed_precision']}"] if config["mixed_precision"] else []
    said += [", with XLA"] if config["jit"] else []
    if config["steps_per_execution"] > 1:
        said.append(f", {config['steps_per_execution']} at a time")
    if config["distribute"]:
        said.append(f", on {strategy.num_replicas_in_sync} devices")
    return "".join(said)
