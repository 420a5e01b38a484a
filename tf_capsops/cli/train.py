# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Trains a capsule network; writes model, history and pictures to a directory."""

import dataclasses
import pathlib
import sys
import time
import warnings

from tf_capsops.cli import arguments, presets
from tf_capsops.cli.errors import INTERRUPTED, CommandError, reported, require


def add_arguments(parser):
    """Adds the arguments of `tf-capsops train`."""
    parser.add_argument(
        "--data",
        metavar="digits|mnist|FILE.npz",
        help="what to train on (default: digits)",
    )
    parser.add_argument(
        "--model",
        choices=list(presets.PRESETS),
        help="capsnet, with routing and a decoder, or p_capsnet, of capsule "
        "convolutions only (default: capsnet)",
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
        "--reconstruction-weight",
        type=arguments.positive_float,
        help="what the squared error of a reconstruction, summed over an image, counts "
        "beside the margin loss, for capsnet; more for images of few pixels or of "
        "colours, which stay grey (default: 0.0005, or 0.02 for small)",
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
        help="compile with XLA; auto does so where there is a GPU and no --seed "
        "(default: auto)",
    )
    parser.add_argument(
        "--steps-per-execution",
        type=arguments.positive_int,
        help="batches from one look at the training to the next; more cost less time "
        "where batches are quick (default: 20 where there is a GPU, else 1)",
    )
    arguments.add_seed(parser)
    arguments.add_output(parser, "DATA")
    parser.add_argument(
        "--resume",
        metavar="RUN",
        help="go on with a run that was stopped or killed, from its directory, with "
        "the arguments that it was given",
    )


def run(args):
    """Trains, saves and reports. Returns the exit status."""
    require("matplotlib", "tensorboard")
    return _resume(args) if args.resume else _begin(args)


def _begin(args):
    """Trains a new model."""
    import keras
    import tensorflow as tf

    from tf_capsops import models
    from tf_capsops.cli import runs
    from tf_capsops.losses import MarginLoss

    name, source = args.model or "capsnet", args.data or "digits"
    for option in ("routing_iterations", "reconstruction_weight"):
        if name != "capsnet" and getattr(args, option):
            without = {"routing_iterations": "routing"}.get(option, "reconstructions")
            raise CommandError(
                f"{name} has no {without}: no --{option.replace('_', '-')}"
            )
    dataset = runs.open_data(source)
    runs.require_library()
    preset_name = args.preset or presets.fitting(dataset.image_shape)
    preset = presets.PRESETS[name].get(preset_name)
    if preset is None:
        known = ", ".join(sorted(presets.PRESETS[name]))
        raise CommandError(f"{name} has the presets {known}, not {preset_name}")
    network = preset.network
    if name == "capsnet":
        network = {**network, "routing_iterations": args.routing_iterations or 3}
    if args.reconstruction_weight:
        network["reconstruction_weight"] = args.reconstruction_weight
    epochs = args.epochs or preset.epochs
    batch_size = args.batch_size or preset.batch_size
    learning_rate = args.learning_rate or preset.learning_rate
    repeatable = runs.seed_everything(args.seed)
    gpu = bool(tf.config.list_physical_devices("GPU"))

    with reported(ValueError):
        model = getattr(models, name)(
            dataset.image_shape,
            dataset.num_classes,
            dtype=args.mixed_precision and f"mixed_{args.mixed_precision}",
            **network,
        )
    steps = -(-len(dataset.x_train) // batch_size)
    optimizer = keras.optimizers.Adam(schedule(learning_rate, epochs * steps))
    model.compile(optimizer, loss=MarginLoss(), metrics=["accuracy"])
    use_xla(model, args.jit or "auto", args.seed)
    config = {
        "data": runs.data_name(source),
        "model": name,
        "preset": preset_name,
        "network": network,
        "epochs": epochs,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "distortion": dataclasses.asdict(preset.distortion),
        "mixed_precision": args.mixed_precision,
        "jit": model.jit_compile,
        "steps_per_execution": min(
            steps, args.steps_per_execution or (20 if gpu else 1)
        ),
        **repeatable,
    }
    directory = runs.create(args.output or runs.ROOT / dataset.name)
    runs.write_json(directory / runs.CONFIG, config)
    print(
        f"{dataset.name}: {len(dataset.x_train)} images for training, "
        f"{len(dataset.x_test)} for testing, {dataset.num_classes} classes\n"
        f"{preset_name} {name}: {model.count_params():,} parameters, "
        f"{epochs} epochs of {steps} batches{_manner(config)}",
        flush=True,
    )
    return _train(model, dataset, directory, config, preset.distortion, 0)


def _resume(args):
    """Goes on with a run."""
    from tf_capsops.cli import checkpoints, runs

    others = {**vars(args), "command": None, "resume": None}
    given = [name for name, value in others.items() if value is not None]
    if given:
        option = given[0].replace("_", "-")
        raise CommandError(
            f"--resume goes on with the arguments of the run: no --{option}"
        )
    directory = pathlib.Path(args.resume)
    epoch, path = checkpoints.newest(directory)
    if path is None:
        why = "it is trained" if (directory / runs.MODEL).is_file() else "no checkpoint"
        raise CommandError(f"nothing to resume in {directory}: {why}")
    config = {**runs.read_training(directory), **runs.read_execution(directory)}
    model, dataset, _ = runs.open_model(path)
    if not model.compiled:
        raise CommandError(f"{path} was saved without its loss")
    seed = config["seed"] if config["deterministic"] else None
    runs.seed_everything(seed)
    use_xla(model, "on" if config["jit"] else "off", seed)
    print(f"{directory}: on from epoch {epoch} of {config['epochs']}", flush=True)
    return _train(model, dataset, directory, config, config["distortion"], epoch)


def _train(model, dataset, directory, config, distortion, epoch):
    """Trains from an epoch on, saves and reports. Returns the exit status."""
    import keras
    import tensorflow as tf

    from tf_capsops import models
    from tf_capsops.cli import checkpoints, figures, pipeline, progress, runs

    epochs, batch_size = config["epochs"], config["batch_size"]
    steps = -(-len(dataset.x_train) // batch_size)
    # Not by `compile`, whose arguments the file of the model keeps.
    model.steps_per_execution = config["steps_per_execution"]
    batches, counter = pipeline.training_batches(
        dataset.x_train, dataset.y_train, batch_size, distortion, config["seed"]
    )
    if tf.config.list_physical_devices("GPU"):
        batches = pipeline.copied_ahead(batches, "GPU:0")
    tests = tf.data.Dataset.from_tensor_slices((dataset.x_test, dataset.y_test))
    verbose, shown = progress.callbacks(epochs, steps, sys.stdout.isatty())
    boards = keras.callbacks.TensorBoard(directory / "tensorboard", write_graph=False)
    saved = checkpoints.Checkpoints(directory, runs.read_history(directory, epoch))
    began = time.perf_counter()
    stopped = False
    try:
        model.fit(
            batches,
            epochs=epochs,
            initial_epoch=epoch,
            # The test images steer nothing: they are there for the curves.
            validation_data=tests.batch(256).cache(),
            shuffle=False,
            verbose=verbose,
            callbacks=[counter, *shown, boards, saved],
        )
    except KeyboardInterrupt:
        stopped = True
    seconds = time.perf_counter() - began

    model.save(directory / runs.MODEL)
    history = saved.history
    written = [runs.MODEL, runs.CONFIG]
    if history:
        figures.curves(history, directory / "curves.png")
        written += [runs.HISTORY, "curves.png"]
    if isinstance(model, models.CapsNet):
        figures.reconstructions(model, dataset, directory / "reconstructions.png")
        written.append("reconstructions.png")
    said = [f"trained in {seconds:.0f} s"]
    if stopped:
        current = min(len(history.get("loss", [])) + 1, epochs)
        said = [f"\nstopped in epoch {current} of {epochs} after {seconds:.0f} s"]
        if checkpoints.newest(directory)[1]:
            said[0] += f"; `tf-capsops train --resume {directory}` goes on"
    else:
        checkpoints.remove(directory)
    if history:
        accuracy = progress.accuracies(history)[1][-1]
        wrong = round((1 - accuracy) * len(dataset.x_test))
        said.append(
            f"test accuracy {accuracy:.2%}, error {1 - accuracy:.2%} "
            f"({wrong} of {len(dataset.x_test)} wrong)"
        )
    said.append(f"wrote {directory}: {', '.join(written)}, tensorboard")
    print("\n".join(said))
    return INTERRUPTED if stopped else 0


def use_xla(model, jit, seed):
    """Switches XLA "on" or "off", unless "auto" leaves that to Keras."""
    if jit == "auto":
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras goes on without XLA
        model.jit_compile = jit == "on"
    if jit == "on" and not model.jit_compile:
        text = f"Keras does not compile this {model.name} with XLA"
        if seed is not None:
            text = "Keras does not compile with XLA where --seed makes it deterministic"
        raise CommandError(f"{text}: no --jit on")


def _manner(config):
    """Says how the model is trained, where it is not plainly."""
    said = [f", {config['mixed_precision']}"] if config["mixed_precision"] else []
    said += [", with XLA"] if config["jit"] else []
    if config["steps_per_execution"] > 1:
        said.append(f", {config['steps_per_execution']} at a time")
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
