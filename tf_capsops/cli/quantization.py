# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Quantizes a trained model: what `tf-capsops quantize` does.

`run` prepares a new run, and `resume` a run that was stopped or killed. Then `_fit`
trains, and `_finish` converts, measures and reports.
"""

import dataclasses
import json
import pathlib
import sys
import zipfile

import keras
import numpy as np

from tf_capsops import data, inq
from tf_capsops.cli import (
    callbacks,
    coded_networks,
    gone,
    networks,
    pipeline,
    runs,
    train,
)
from tf_capsops.cli.callbacks import counted
from tf_capsops.cli.step_log import Accuracy, StepLog
from tf_capsops.errors import INTERRUPTED, CommandError, quoted, reported
from tf_capsops.experiments import recipes
from tf_capsops.inq import activations
from tf_capsops.inq.kernels import layers_in
from tf_capsops.layers.coded import holds_codes

CODES = "codes.keras"
REPORT = "report.json"


def run(args):
    """Quantizes, saves and reports. Returns the exit status."""
    model, dataset, source = networks.open_model(
        args.model, args.data, training=True, skip_broken=args.skip_broken
    )
    if dataset.objects > 1:
        raise CommandError(
            f"quantize takes no models that read {dataset.objects} classes from an "
            "image"
        )
    if any(map(holds_codes, layers_in(model))):
        raise CommandError(
            f"{runs.find(args.model)} holds codes already: give the {runs.MODEL} that "
            "they were made from"
        )
    if not model.compiled:
        raise CommandError(
            f"the {model.name} in {source} was saved without its loss: compile it "
            "before you save it"
        )
    fractions = args.steps or recipes.quantization_steps(
        args.bits, args.straight_through
    )
    trained = runs.read_training(source)
    epochs_per_step = args.epochs_per_step or recipes.epochs_per_step(
        trained["epochs"], args.straight_through
    )
    learning_rate = args.learning_rate or trained["learning_rate"]
    batch_size = args.batch_size or trained["batch_size"]
    distortion = trained["distortion"]
    options = {name: getattr(args, name) for name in recipes.QUANTIZED_WITH}
    steps = _callback(model, args.bits, fractions, epochs_per_step, options)
    rounded, float_bytes = _rehearsed(model, steps, args.routing_bits, dataset.train)
    share = trained["validation"]
    dataset, part = pipeline.held_out(dataset, share), pipeline.part(share)
    batches = runs.steps(len(dataset.train), batch_size, trained["steps_per_epoch"])
    epochs = epochs_per_step * len(steps.steps)
    deterministic = args.seed is not None and not args.nondeterministic
    repeatable = networks.seed_everything(args.seed, deterministic)
    recompile(model, learning_rate, epochs_per_step * batches)
    config = {
        "data": data.absolute(args.data or runs.remembered_data(source)),
        **_recipe(source, args, repeatable["seed"]),
        "source": str(source.resolve()),
        "bits": args.bits,
        **options,
        "routing_bits": args.routing_bits,
        "steps": fractions,
        "epochs_per_step": epochs_per_step,
        "epochs": epochs,
        "batch_size": batch_size,
        "steps_per_epoch": trained["steps_per_epoch"],
        "learning_rate": learning_rate,
        "distortion": distortion.entries,
        "validation": share,
        "class_weight": trained["class_weight"],
        **networks.described(dataset),
        **repeatable,
    }
    name = config["recipe"]
    config["changed"] = name and train.changes(name, config)
    wanted = args.output or runs.ROOT / f"quantize-{dataset.name}"
    directory = runs.create(wanted)
    with runs.in_use(directory):
        runs.write_json(directory / runs.CONFIG, config)
        before = Accuracy.of(model, dataset)
        at_once = Accuracy.of(rounded, dataset)
        del rounded  # frees the memory of its weights
        print(
            f"{dataset.name}: {len(dataset.train)} images for training, "
            f"{len(dataset.test)} for {pipeline.purpose(share)}\n"
            f"{model.name} to {_words(steps, args.routing_bits)}: "
            f"{counted(len(steps.steps), 'step')} of "
            f"{counted(epochs_per_step, 'epoch')} of {counted(batches, 'batch')}\n"
            f"{runs.where(directory, wanted)}\n"
            f"before: {part} accuracy {before}\n"
            f"all weights quantized at once, without training: {at_once}",
            flush=True,
        )
        report = {
            "data": dataset.name,
            "part": part,
            "images": len(dataset.test),
            "bits": args.bits,
            "activation_bits": args.activation_bits,
            "routing_bits": args.routing_bits,
            "seconds": 0.0,
            "wrong_before": before.wrong,
            "wrong_quantized_at_once": at_once.wrong,
            "steps": [],
            "bytes_of_file": {"float": float_bytes},
        }
        config["distortion"] = distortion
        return _fit(model, dataset, directory, config, steps, report)


def resume(directory, epoch, path):
    """Goes on with a run that was stopped or killed. Returns the exit status.

    Args:
      directory: the run's directory.
      epoch: how many epochs it has been trained.
      path: the checkpoint after this epoch.
    """
    config = {
        **runs.read_config(directory),
        **runs.read_training(directory),
        **runs.read_execution(directory, "seed", "deterministic"),
    }
    model, dataset, _ = networks.open_model(path, training=True)
    if not model.compiled:
        raise CommandError(f"{path} was saved without its loss")
    dataset = pipeline.held_out(dataset, config["validation"])
    state, report = _saved(path)
    try:
        bits, fractions = config["bits"], config["steps"]
        options = {name: config[name] for name in recipes.QUANTIZED_WITH}
        steps = _callback(model, bits, fractions, config["epochs_per_step"], options)
    except KeyError as error:
        raise CommandError(f"{directory / runs.CONFIG} has no {error}") from error
    config["epochs"] = steps.epochs_per_step * len(steps.steps)
    networks.seed_everything(config["seed"], config["deterministic"])
    with reported(ValueError):
        steps.resume(state)
    history = runs.read_history(directory, epoch)
    with runs.in_use(directory):
        if runs.newest_checkpoint(directory) != (epoch, path):
            raise CommandError(f"meanwhile another process has trained {directory}")
        print(f"{directory}: on from epoch {epoch} of {config['epochs']}", flush=True)
        return _fit(model, dataset, directory, config, steps, report, epoch, history)


def _saved(path):
    """Returns the state of quantization at a checkpoint, and its report so far."""
    path = runs.checkpoint_state(path)
    errors = OSError, ValueError, KeyError, zipfile.BadZipFile
    try:
        with np.load(path) as arrays:
            state = dict(arrays)
        return state, json.loads(str(state.pop("report")))
    except errors as error:
        raise CommandError(f"cannot read {path}: {error}") from error


def _callback(model, bits, fractions, epochs_per_step, options):
    with reported(ValueError):
        return inq.IncrementalQuantization(
            *(model, bits, fractions, epochs_per_step), **options
        )


def _rehearsed(model, steps, routing_bits, samples):
    """Calls `coded_networks.rehearsed`, whose messages then name our options."""
    try:
        with reported(Exception):  # another author's model may raise anything
            return coded_networks.rehearsed(model, steps, routing_bits, samples)
    except CommandError as error:
        text = str(error).replace("convert: routing_bits: ", "--routing-bits: ")
        raise CommandError(text) from error


def _fit(model, dataset, directory, config, steps, report, epoch=0, history=None):
    """Trains, saves and reports. Returns the exit status.

    Args:
      model, dataset, directory, epoch, history: as for `training.fit`.
      config: the content of `config.json`, with a `presets.Distortion`.
      steps: the `IncrementalQuantization`.
      report: the content of `report.json` as far as it is known.
    """
    epochs, batch_size = config["epochs"], config["batch_size"]
    batches = runs.steps(len(dataset.train), batch_size, config["steps_per_epoch"])
    images = pipeline.training_batches(
        *(dataset.train, batch_size, config["distortion"]),
        *(config["seed"], config["class_weight"], epoch),
        num_classes=dataset.num_classes,
        steps=batches,
    )
    log = StepLog(steps, dataset, report["steps"], sys.stdout.isatty())
    clock = callbacks.Clock()
    before = report["seconds"]

    def state():
        so_far = {**report, "seconds": before + sum(clock.seconds)}
        return {**steps.state(), "report": np.array(json.dumps(so_far))}

    saved = callbacks.Checkpoints(directory, history or {}, state)
    draws = callbacks.Draws(config["seed"])
    again = f"`tf-capsops quantize --resume {quoted(directory)}`"
    with callbacks.Hold() as hold, gone.reported("and go on with --resume"):
        try:
            with reported(ValueError):
                seconds, stopped = hold.fit(
                    model,
                    images,
                    epochs=epochs,
                    steps=batches,
                    initial_epoch=epoch,
                    # Used only to show the progress.
                    validation_data=dataset.test.batches(256),
                    callbacks=[clock, draws, steps, log, saved],
                    part=report["part"],
                )
        finally:
            _keep(directory, model)
        report["seconds"] = before + seconds
        if stopped:
            fixed = (0, *steps.steps)[steps.steps_taken]
            where = callbacks.where(saved.history, epochs, seconds)
            said = f"{where}, with {fixed:.1%} of the weights quantized"
            if runs.newest_checkpoint(directory)[1]:
                said += f"; {again} goes on"
            print(said)
            return INTERRUPTED
        try:
            _finish(model, dataset, directory, steps, clock, report)
        except Exception as error:  # of any kind: the trained network is saved
            text = " ".join(str(error).split()) or type(error).__name__
            raise CommandError(
                f"the quantized network is in {directory / runs.MODEL}, but "
                f"converting and measuring it failed: {text}; {again} tries again"
            ) from error
        runs.remove_checkpoints(directory)
    return 0


def _keep(directory, model):
    """Saves the trained network, and says which files the run has."""
    with reported(OSError):
        callbacks.save_whole(model, directory, runs.MODEL)
    written = runs.MODEL, runs.CONFIG, runs.HISTORY
    written = [name for name in written if (directory / name).is_file()]
    print(f"\nwrote {directory}: {', '.join(written)}", flush=True)


def _recipe(source, args, seed):
    """Returns the entries of `config.json` about the recipe; None if there is none.

    The recipe quantizes runs such as `source` to this many bits. `trained` has the
    settings of the source that the recipe fixes.
    """
    other = {"recipe": None, "trained": None}
    given = source if args.model is None else pathlib.Path(args.model)
    if not (given.is_dir() or given.name == runs.MODEL):
        return other  # the file is not the run's own model
    if args.routing_bits:
        return other
    own = runs.read_config(source)
    if args.data and data.absolute(args.data) != own.get("data"):
        return other
    options = {name: getattr(args, name) for name in recipes.QUANTIZED_WITH}
    name = recipes.quantizing(own.get("recipe"), args.bits, options)
    finished = (source / runs.RESULT).is_file()
    if name is None or not finished or own.get("seed") != seed:
        return other
    fixed = train.settings_of_recipe(name)["trained"]
    return {"recipe": name, "trained": {key: own.get(key) for key in fixed}}


def _finish(model, dataset, directory, steps, clock, report):
    """Converts the quantized model, measures, adds to the report, and prints it."""
    bare = coded_networks.bare_copy(model)  # without rounded activations, as its file
    before = Accuracy(report["wrong_before"], report["images"])
    after = Accuracy.of(bare, dataset)
    activations.move(model, bare)
    routing_bits = report["routing_bits"]
    layers = inq.report(
        bare, **coded_networks.conversion(steps), routing_bits=routing_bits
    )
    with_codes = coded_networks.converted(bare, steps)
    if routing_bits:
        images = coded_networks.calibration_images(dataset.train)
        with_codes = coded_networks.routing_in_few_bits(
            with_codes, routing_bits, images
        )
    with_codes.save(directory / CODES)
    counts = [each.mask.size for each in steps.kernels]
    report["wrong_after"] = after.wrong
    coded = Accuracy.of(with_codes, dataset)
    report["wrong_with_codes"] = coded.wrong
    report["weights"] = sum(counts)
    report["bytes_of_weights"] = {
        "float32": 4 * sum(counts),
        "packed": sum(-(-count * steps.bits // 8) for count in counts),
    }
    report["bytes_in_memory"] = {
        "float": coded_networks.bytes_in_memory(bare),
        "codes": coded_networks.bytes_in_memory(with_codes),
    }
    for key, name in {"model": runs.MODEL, "codes": CODES}.items():
        report["bytes_of_file"][key] = (directory / name).stat().st_size
    report["layers"] = [dataclasses.asdict(each) for each in layers]
    runs.write_json(directory / REPORT, report)
    part = report["part"]
    accuracy = {"part": part, "images": after.images, "wrong": after.wrong}
    accuracy["wrong_with_codes"] = coded.wrong
    callbacks.write_result(directory, model, clock, accuracy)
    print(
        f"quantized in {report['seconds']:.0f} s\n"
        f"after: {part} accuracy {after}; it was {before}\n"
        f"with codes, {_words(steps, routing_bits)}: {coded}\n"
        f"{layers}\n"
        f"{coded_networks.sizes(report)}\n"
        f"wrote {directory}: {CODES}, {REPORT}, {runs.RESULT}"
    )


def recompile(model, learning_rate, steps):
    """Compiles a model again, with a learning rate that falls anew in every step."""
    schedule = keras.optimizers.schedules.CosineDecayRestarts(
        learning_rate, steps, t_mul=1.0
    )
    optimizer = keras.saving.serialize_keras_object(keras.optimizers.Adam(schedule))
    model.compile_from_config({**model.get_compile_config(), "optimizer": optimizer})


def _words(steps, routing_bits):
    """Says the bits of all numbers, as in `5 bits, activations to 8, routing to 4`."""
    words = [f"{steps.bits} bits"]
    rounded = {"activations": steps.activation_bits, "routing": routing_bits}
    words += [f"{name} to {bits}" for name, bits in rounded.items() if bits]
    return ", ".join(words)
