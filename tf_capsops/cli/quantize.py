# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Quantizes a trained model to weights of few bits, in steps with training between."""

import dataclasses
import sys
import time
import warnings

from tf_capsops.cli import arguments

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
        default=[0.5, 0.75, 0.875, 1.0],
        metavar="FRACTION",
        help="the part of the weights that is fixed after each step, ending with 1 "
        "(default: 0.5 0.75 0.875 1)",
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
    parser.add_argument(
        "--seed", type=arguments.seed, default=0, help="default: %(default)s"
    )
    arguments.add_output(parser, "quantize-DATA")


def run(args):
    """Quantizes, saves and reports. Returns the exit status."""
    import keras

    from tf_capsops import inq
    from tf_capsops.cli import pipeline, progress, quantization, runs
    from tf_capsops.cli.errors import CommandError, reported

    model, dataset, source = runs.open_model(args.model, args.data)
    if not model.compiled:
        raise CommandError(
            f"the {model.name} in {source} was saved without its loss: compile it "
            "before you save it"
        )
    if args.steps[-1] != 1:
        raise CommandError(f"--steps must end with 1, got {args.steps[-1]:g}")
    trained = runs.read_training(source)
    epochs_per_step = args.epochs_per_step or max(1, trained["epochs"] // 10)
    learning_rate = args.learning_rate or trained["learning_rate"]
    batch_size = args.batch_size or trained["batch_size"]
    distortion = trained["distortion"]
    with reported(ValueError):
        steps = inq.IncrementalQuantization(
            model, args.bits, args.steps, epochs_per_step
        )
    batches = -(-len(dataset.x_train) // batch_size)
    epochs = epochs_per_step * len(steps.steps)
    keras.utils.set_random_seed(args.seed)
    quantization.recompile(model, learning_rate, epochs_per_step * batches)

    directory = runs.create(args.output or runs.ROOT / f"quantize-{dataset.name}")
    config = {
        "data": runs.data_name(args.data or runs.remembered_data(source)),
        "source": str(source.resolve()),
        "bits": args.bits,
        "steps": args.steps,
        "epochs_per_step": epochs_per_step,
        "epochs": epochs,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "distortion": dataclasses.asdict(distortion),
        "seed": args.seed,
    }
    runs.write_json(directory / runs.CONFIG, config)
    before = quantization.Accuracy.of(model, dataset)
    at_once = quantization.rounded_at_once(model, dataset, args.bits)
    print(
        f"{dataset.name}: {len(dataset.x_train)} images for training, "
        f"{len(dataset.x_test)} for testing\n"
        f"{model.name} to {args.bits} bits: {len(steps.steps)} steps of "
        f"{epochs_per_step} epochs of {batches} batches\n"
        f"before: test accuracy {before}\n"
        f"all weights quantized at once, without training: {at_once}",
        flush=True,
    )
    float_bytes = quantization.file_size(quantization.bare_copy(model))
    interactive = sys.stdout.isatty()
    verbose, shown = progress.callbacks(epochs, batches, interactive)
    log = quantization.StepLog(steps, dataset, interactive)
    tests = quantization.test_batches(dataset)
    training, counter = pipeline.training_batches(
        dataset.x_train, dataset.y_train, batch_size, distortion, args.seed
    )
    began = time.perf_counter()
    with reported(ValueError):
        model.fit(
            training,
            epochs=epochs,
            # The test images steer nothing: they are there for the progress.
            validation_data=tests,
            shuffle=False,
            verbose=verbose,
            callbacks=[counter, *shown, steps, log],
        )
    seconds = time.perf_counter() - began

    after = quantization.Accuracy.of(model, dataset)
    model.save(directory / runs.MODEL)
    bare = quantization.bare_copy(model)
    layers = inq.report(bare, args.bits)
    with warnings.catch_warnings():
        # The table of layers, which is printed below, says all that it warns of.
        warnings.filterwarnings("ignore", "convert: ")
        converted = inq.convert(bare, args.bits)
    converted.save(directory / CODES)
    in_codes = quantization.Accuracy.of(converted, dataset)
    kernels = sum(each.mask.size for each in steps.kernels)
    report = {
        "data": dataset.name,
        "images": len(dataset.x_test),
        "bits": args.bits,
        "seconds": seconds,
        "wrong_before": before.wrong,
        "wrong_quantized_at_once": at_once.wrong,
        "steps": log.records,
        "wrong_after": after.wrong,
        "wrong_with_codes": in_codes.wrong,
        "weights": kernels,
        "bytes_of_weights": {
            "float32": 4 * kernels,
            "packed": sum(
                -(-each.mask.size * args.bits // 8) for each in steps.kernels
            ),
        },
        "bytes_of_file": {
            "float": float_bytes,
            "codes": (directory / CODES).stat().st_size,
        },
        "layers": [dataclasses.asdict(each) for each in layers],
    }
    runs.write_json(directory / REPORT, report)
    print(
        f"quantized in {seconds:.0f} s\n"
        f"after: test accuracy {after}; it was {before}\n"
        f"{layers}\n"
        f"{quantization.sizes(report)}\n"
        f"wrote {directory}: {runs.MODEL}, {CODES}, {runs.CONFIG}, {REPORT}"
    )
    return 0
