# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Quantizes a trained model to weights of few bits, in steps with training between."""

import argparse
import dataclasses
import pathlib
import sys

from tf_capsops.cli import arguments, recipes, settings
from tf_capsops.cli.errors import INTERRUPTED, CommandError, reported

CODES = "codes.keras"
REPORT = "report.json"


def add_arguments(parser):
    """Adds the arguments of `tf-capsops quantize`."""
    arguments.add_run(parser, "what to train and evaluate on")
    parser.add_argument(
        "--bits",
        type=int,
        choices=range(2, 9),
        default=5,
        metavar="2..8",
        help="bits of a weight (default: %(default)s)",
    )
    parser.add_argument(
        "--steps",
        type=arguments.positive_float,
        nargs="+",
        metavar="FRACTION",
        help="the part of the weights that is fixed after each step, ending with 1 "
        "(default: 0.5 0.75 0.875 1, and more and smaller steps for 4 bits and "
        "fewer)",
    )
    parser.add_argument(
        "--epochs-per-step",
        type=arguments.positive_int,
        help="default: a tenth of the epochs of the run",
    )
    parser.add_argument(
        "--batch-size",
        type=arguments.positive_int,
        help="default: as the run was trained, or 128",
    )
    parser.add_argument(
        "--learning-rate",
        type=arguments.positive_float,
        help="of Adam at the start of each step, from where it falls to zero (default: "
        "as the run was trained, or 0.001)",
    )
    arguments.add_seed(parser)
    arguments.add_nondeterministic(parser)
    arguments.add_output(parser, "quantize-DATA")


def run(args):
    """Quantizes, saves and reports. Returns the exit status."""
    import keras

    from tf_capsops import data, inq
    from tf_capsops.cli import (
        interruption,
        outcome,
        pipeline,
        progress,
        quantization,
        runs,
        validation,
    )

    model, dataset, source = runs.open_model(
        args.model, args.data, training=True, skip_broken=args.skip_broken
    )
    if dataset.objects > 1:
        raise CommandError(
            f"quantize takes no models that read {dataset.objects} classes from an "
            "image"
        )
    if not model.compiled:
        raise CommandError(
            f"the {model.name} in {source} was saved without its loss: compile it "
            "before you save it"
        )
    fractions = args.steps or recipes.quantization_steps(args.bits)
    if fractions[-1] != 1:
        raise CommandError(f"--steps must end with 1, got {fractions[-1]:g}")
    trained = runs.read_training(source)
    epochs_per_step = args.epochs_per_step
    epochs_per_step = epochs_per_step or recipes.epochs_per_step(trained["epochs"])
    learning_rate = args.learning_rate or trained["learning_rate"]
    batch_size = args.batch_size or trained["batch_size"]
    distortion = trained["distortion"]
    with reported(ValueError):
        steps = inq.IncrementalQuantization(
            model, args.bits, fractions, epochs_per_step
        )
    with reported(Exception):  # whatever a model of somebody else's may raise
        rounded, float_bytes = quantization.rehearsed(model, args.bits)
    share = trained["validation"]
    dataset, part = validation.held_out(dataset, share), validation.part(share)
    batches = -(-len(dataset.train) // batch_size)
    epochs = epochs_per_step * len(steps.steps)
    deterministic = args.seed is not None and not args.nondeterministic
    repeatable = runs.seed_everything(args.seed, deterministic)
    quantization.recompile(model, learning_rate, epochs_per_step * batches)
    config = {
        "data": data.absolute(args.data or runs.remembered_data(source)),
        **_recipe(source, args, repeatable["seed"]),
        "source": str(source.resolve()),
        "bits": args.bits,
        "steps": fractions,
        "epochs_per_step": epochs_per_step,
        "epochs": epochs,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "distortion": distortion.entries,
        "validation": share,
        "class_weight": trained["class_weight"],
        **runs.described(dataset),
        **repeatable,
    }
    name = config["recipe"]
    config["changed"] = name and recipes.changes(config, settings.of_recipe(name))
    tests = dataset.test.batches(256)
    training, counter = pipeline.training_batches(
        *(dataset.train, batch_size, distortion),
        *(repeatable["seed"], deterministic, trained["class_weight"]),
    )
    directory = runs.create(args.output or runs.ROOT / f"quantize-{dataset.name}")
    with runs.in_use(directory):
        runs.write_json(directory / runs.CONFIG, config)
        before = quantization.Accuracy.of(model, dataset)
        at_once = quantization.Accuracy.of(rounded, dataset)
        del rounded  # and the memory that its weights take
        print(
            f"{dataset.name}: {len(dataset.train)} images for training, "
            f"{len(dataset.test)} for {validation.purpose(share)}\n"
            f"{model.name} to {args.bits} bits: {len(steps.steps)} steps of "
            f"{epochs_per_step} epochs of {batches} batches\n"
            f"before: {part} accuracy {before}\n"
            f"all weights quantized at once, without training: {at_once}",
            flush=True,
        )
        interactive = sys.stdout.isatty()
        verbose, shown = progress.callbacks(epochs, batches, interactive, part)
        log = quantization.StepLog(steps, dataset, interactive)
        clock, history = outcome.Clock(), keras.callbacks.History()
        with interruption.Hold() as hold:
            try:
                with reported(ValueError):
                    seconds, stopped = hold.fit(
                        model,
                        training,
                        epochs=epochs,
                        # Used only to show the progress.
                        validation_data=tests,
                        shuffle=False,
                        verbose=verbose,
                        callbacks=[history, clock, counter, *shown, steps, log],
                    )
            finally:
                _keep(directory, model, history)
            if stopped:
                fixed = (0, *steps.steps)[steps.steps_taken]
                print(
                    f"{interruption.where(history.history, epochs, seconds)}, with "
                    f"{fixed:.1%} of the weights fixed"
                )
                return INTERRUPTED
            report = {
                "data": dataset.name,
                "part": part,
                "images": len(dataset.test),
                "bits": args.bits,
                "seconds": seconds,
                "wrong_before": before.wrong,
                "wrong_quantized_at_once": at_once.wrong,
                "steps": log.records,
                "bytes_of_file": {"float": float_bytes},
            }
            try:
                _finish(model, dataset, directory, steps, clock, before, report)
            except Exception as error:  # of whatever kind: the training is not lost
                text = " ".join(str(error).split()) or type(error).__name__
                raise CommandError(
                    f"the quantized network is in {directory / runs.MODEL}, but "
                    f"converting and measuring it failed: {text}"
                ) from error
    return 0


def _keep(directory, model, history):
    """Saves what has been trained, and says where it is."""
    from tf_capsops.cli import runs

    with reported(OSError):
        model.save(directory / runs.MODEL)
        runs.write_json(directory / runs.HISTORY, history.history)
    print(
        f"\nwrote {directory}: {runs.MODEL}, {runs.CONFIG}, {runs.HISTORY}", flush=True
    )


def _recipe(source, args, seed):
    """Names the recipe that quantizes such a run to so many bits, None without one."""
    from tf_capsops import data
    from tf_capsops.cli import outcome, runs

    other = {"recipe": None, "trained": None}
    given = source if args.model is None else pathlib.Path(args.model)
    if not (given.is_dir() or given.name == runs.MODEL):
        return other  # another model of the run
    own = runs.read_config(source)
    if args.data and data.absolute(args.data) != own.get("data"):
        return other
    name = recipes.quantizing(own.get("recipe"), args.bits)
    finished = (source / outcome.RESULT).is_file()
    if name is None or not finished or own.get("seed") != seed:
        return other
    fixed = settings.of_recipe(name)["trained"]
    return {"recipe": name, "trained": {key: own.get(key) for key in fixed}}


def _finish(model, dataset, directory, steps, clock, before, report):
    """Converts the quantized model, measures, adds to the report, and prints it."""
    from tf_capsops import inq
    from tf_capsops.cli import outcome, quantization, runs

    after = quantization.Accuracy.of(model, dataset)
    bare = quantization.bare_copy(model)
    layers = inq.report(bare, steps.bits)
    converted = quantization.converted(bare, steps.bits)
    converted.save(directory / CODES)
    sizes = [each.mask.size for each in steps.kernels]
    report["wrong_after"] = after.wrong
    report["wrong_with_codes"] = quantization.Accuracy.of(converted, dataset).wrong
    report["weights"] = sum(sizes)
    report["bytes_of_weights"] = {
        "float32": 4 * sum(sizes),
        "packed": sum(-(-size * steps.bits // 8) for size in sizes),
    }
    for key, name in {"model": runs.MODEL, "codes": CODES}.items():
        report["bytes_of_file"][key] = (directory / name).stat().st_size
    report["layers"] = [dataclasses.asdict(each) for each in layers]
    runs.write_json(directory / REPORT, report)
    part = report["part"]
    accuracy = {"part": part, "images": after.images, "wrong": after.wrong}
    outcome.write(directory, model, clock, accuracy)
    print(
        f"quantized in {report['seconds']:.0f} s\n"
        f"after: {part} accuracy {after}; it was {before}\n"
        f"{layers}\n"
        f"{quantization.sizes(report)}\n"
        f"wrote {directory}: {CODES}, {REPORT}, {outcome.RESULT}"
    )


def run_recipe(args, train):
    """Quantizes as a recipe has it, after the network's own training.

    A training that was stopped goes on; the quantization itself always starts again.

    Args:
      args: the options of `train`.
      train: trains or resumes by such options and returns the exit status.

    Raises:
      CommandError: if there are other options than data, seed and output.
    """
    from tf_capsops.cli import results, runs

    recipe = recipes.find(args.recipe)
    taken = {"command", "recipe", "data", "seed", "output", "nondeterministic"}
    for name, value in vars(args).items():
        if name not in taken and value is not None:
            raise CommandError(
                f"{args.recipe} quantizes {recipe.trained}: no "
                f"--{name.replace('_', '-')}, which `tf-capsops quantize` may have"
            )
    seed = args.seed or 0
    root = runs.ROOT if args.output is None else pathlib.Path(args.output).parent
    source = results.finished(root, recipe.trained, seed)
    if source is None:
        running = results.running(root, recipe.trained, seed)
        if running is not None:
            raise CommandError(f"another process is training {running}")
        stopped = results.stopped(root, recipe.trained, seed)
        output = None if args.output is None else f"{args.output}-before"
        options = {**vars(args), "recipe": recipe.trained, "output": output}
        if stopped is not None:
            options = {"resume": stopped}
        status = train(argparse.Namespace(**options))
        if status:
            return status
        source = results.finished(root, recipe.trained, seed)
    return run(
        argparse.Namespace(
            model=source,
            data=None,
            skip_broken=None,
            bits=recipe.bits,
            steps=None,
            epochs_per_step=None,
            batch_size=None,
            learning_rate=None,
            seed=args.seed,
            nondeterministic=args.nondeterministic,
            output=args.output or runs.ROOT / args.recipe,
        )
    )
