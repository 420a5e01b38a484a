# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Trains a capsule network; writes model, history and pictures to a directory."""

import dataclasses
import sys
import time
import warnings

from tf_capsops.cli import arguments, presets
from tf_capsops.cli.errors import CommandError, reported, require


def add_arguments(parser):
    """Adds the arguments of `tf-capsops train`."""
    parser.add_argument(
        "--data",
        default="digits",
        metavar="digits|mnist|FILE.npz",
        help="what to train on (default: %(default)s)",
    )
    parser.add_argument(
        "--model",
        choices=list(presets.PRESETS),
        default="capsnet",
        help="capsnet, with routing and a decoder, or p_capsnet, of capsule "
        "convolutions only (default: %(default)s)",
    )
    parser.add_argument(
        "--preset",
        choices=sorted({name for each in presets.PRESETS.values() for name in each}),
        help="sizes and schedule; sabour is capsnet's only (default: small or compact, "
        "by the images' size)",
    )
    parser.add_argument("--epochs", type=arguments.positive_int)
    parser.add_argument("--batch-size", type=arguments.positive_int)
    parser.add_argument("--learning-rate", type=arguments.positive_float)
    parser.add_argument(
        "--routing-iterations",
        type=arguments.positive_int,
        help="how often routing computes the class capsules, for capsnet (default: 3)",
    )
    parser.add_argument(
        "--mixed-precision",
        choices=["float16", "bfloat16"],
        help="compute in this type and keep weights in float32; float16 with a scaled "
        "loss (default: float32 throughout)",
    )
    parser.add_argument(
        "--jit",
        choices=["auto", "on", "off"],
        default="auto",
        help="compile with XLA; auto does so where there is a GPU and no --seed "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--steps-per-execution",
        type=arguments.positive_int,
        help="batches from one look at the training to the next; more cost less time "
        "where batches are quick (default: 20 where there is a GPU, else 1)",
    )
    arguments.add_seed(parser)
    arguments.add_output(parser, "DATA")


def run(args):
    """Trains, saves and reports. Returns the exit status."""
    import keras
    import tensorflow as tf

    require("matplotlib", "tensorboard")
    from tf_capsops import models
    from tf_capsops.cli import figures, pipeline, progress, runs
    from tf_capsops.losses import MarginLoss

    if args.routing_iterations and args.model != "capsnet":
        raise CommandError(f"{args.model} has no routing: no --routing-iterations")
    dataset = runs.open_data(args.data)
    runs.require_library()
    preset_name = args.preset or presets.fitting(dataset.image_shape)
    preset = presets.PRESETS[args.model].get(preset_name)
    if preset is None:
        known = ", ".join(sorted(presets.PRESETS[args.model]))
        raise CommandError(f"{args.model} has the presets {known}, not {preset_name}")
    network = preset.network
    if args.model == "capsnet":
        network = {**network, "routing_iterations": args.routing_iterations or 3}
    epochs = args.epochs or preset.epochs
    batch_size = args.batch_size or preset.batch_size
    learning_rate = args.learning_rate or preset.learning_rate
    repeatable = runs.seed_everything(args.seed)
    gpu = bool(tf.config.list_physical_devices("GPU"))

    with reported(ValueError):
        build = getattr(models, args.model)
        model = build(
            dataset.image_shape,
            dataset.num_classes,
            dtype=args.mixed_precision and f"mixed_{args.mixed_precision}",
            **network,
        )
    steps = -(-len(dataset.x_train) // batch_size)
    optimizer = keras.optimizers.Adam(schedule(learning_rate, epochs * steps))
    model.compile(optimizer, loss=MarginLoss(), metrics=["accuracy"])
    use_xla(model, args)
    # Not by `compile`, whose arguments the file of the model keeps.
    model.steps_per_execution = min(
        steps, args.steps_per_execution or (20 if gpu else 1)
    )

    directory = runs.create(args.output or runs.ROOT / dataset.name)
    config = {
        "data": runs.data_name(args.data),
        "model": args.model,
        "preset": preset_name,
        "network": network,
        "epochs": epochs,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "distortion": dataclasses.asdict(preset.distortion),
        "mixed_precision": args.mixed_precision,
        "jit": model.jit_compile,
        "steps_per_execution": model.steps_per_execution,
        **repeatable,
    }
    runs.write_json(directory / runs.CONFIG, config)
    print(
        f"{dataset.name}: {len(dataset.x_train)} images for training, "
        f"{len(dataset.x_test)} for testing, {dataset.num_classes} classes\n"
        f"{preset_name} {args.model}: {model.count_params():,} parameters, "
        f"{epochs} epochs of {steps} batches{_manner(model, args)}",
        flush=True,
    )

    batches = pipeline.training_batches(
        dataset.x_train,
        dataset.y_train,
        batch_size,
        preset.distortion,
        repeatable["seed"],
    )
    if gpu:
        batches = pipeline.copied_ahead(batches, "GPU:0")
    tests = tf.data.Dataset.from_tensor_slices((dataset.x_test, dataset.y_test))
    verbose, shown = progress.callbacks(epochs, steps, sys.stdout.isatty())
    boards = keras.callbacks.TensorBoard(directory / "tensorboard", write_graph=False)
    began = time.perf_counter()
    history = model.fit(
        batches,
        epochs=epochs,
        # The test images steer nothing: they are there for the curves.
        validation_data=tests.batch(256).cache(),
        shuffle=False,
        verbose=verbose,
        callbacks=[*shown, boards],
    )
    seconds = time.perf_counter() - began

    model.save(directory / runs.MODEL)
    runs.write_json(
        directory / "history.json",
        {name: [float(v) for v in values] for name, values in history.history.items()},
    )
    figures.curves(history.history, directory / "curves.png")
    pictures = ["curves.png"]
    if isinstance(model, models.CapsNet):
        pictures.append("reconstructions.png")
        figures.reconstructions(model, dataset, directory / pictures[-1])
    accuracy = progress.accuracies(history.history)[1][-1]
    wrong = round((1 - accuracy) * len(dataset.x_test))
    print(
        f"trained in {seconds:.0f} s\n"
        f"test accuracy {accuracy:.2%}, error {1 - accuracy:.2%} "
        f"({wrong} of {len(dataset.x_test)} wrong)\n"
        f"wrote {directory}: {runs.MODEL}, {runs.CONFIG}, history.json, "
        f"{', '.join(pictures)}, tensorboard"
    )
    return 0


def use_xla(model, args):
    """Switches XLA on or off, unless `--jit auto` leaves that to Keras."""
    if args.jit == "auto":
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras goes on without XLA
        model.jit_compile = args.jit == "on"
    if args.jit == "on" and not model.jit_compile:
        text = f"Keras does not compile this {args.model} with XLA"
        if args.seed is not None:
            text = "Keras does not compile with XLA where --seed makes it deterministic"
        raise CommandError(f"{text}: no --jit on")


def _manner(model, args):
    """Says how the model is trained, where it is not plainly."""
    said = [f", {args.mixed_precision}"] if args.mixed_precision else []
    said += [", with XLA"] if model.jit_compile else []
    if model.steps_per_execution > 1:
        said.append(f", {model.steps_per_execution} at a time")
    return "".join(said)


def schedule(learning_rate, steps):
    """Up from zero in the first twentieth of the steps, then a cosine down to zero."""
    import keras

    warmup = max(1, steps // 20)
    return keras.optimizers.schedules.CosineDecay(
        0.0,
        decay_steps=max(1, steps - warmup),
        warmup_target=learning_rate,
        warmup_steps=warmup,
    )
