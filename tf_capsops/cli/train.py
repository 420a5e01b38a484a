# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Trains a capsule network; writes model, history and pictures to a directory."""

import pathlib
import sys
import warnings

from tf_capsops.cli import arguments, presets, quantize, recipes, settings
from tf_capsops.cli.errors import INTERRUPTED, CommandError, reported, require


def add_arguments(parser):
    """Adds the arguments of `tf-capsops train`."""
    parser.add_argument(
        "--recipe",
        metavar="NAME",
        help="everything that a result is trained with, options of one's own aside: "
        f"{', '.join(recipes.RECIPES)}",
    )
    parser.add_argument(
        "--data",
        metavar="NAME|FILE.npz",
        help=f"what to train on: {arguments.DATA} (default: that of the recipe, or "
        "digits)",
    )
    parser.add_argument(
        "--validation",
        type=arguments.share,
        metavar="SHARE",
        help="hold out this share of the training images, the same ones in every run, "
        "and judge by them instead of the test images; for choosing options (default: "
        "train on all, and test)",
    )
    parser.add_argument(
        "--model",
        choices=list(presets.PRESETS),
        help="capsnet, with routing and a decoder; p_capsnet, of capsule convolutions "
        "only; matrix_capsnet, with any --routing; efficient_capsnet, with "
        "self-attention routing; or convnet, without capsules (default: capsnet)",
    )
    parser.add_argument(
        "--routing",
        choices=["em", "vb", "dynamic", "inverted-attention", "self-attention"],
        help="the rule by which matrix_capsnet routes (default: em)",
    )
    parser.add_argument(
        "--preset",
        choices=sorted({name for each in presets.PRESETS.values() for name in each}),
        help="sizes and schedule; sabour for capsnet and convnet only (default: small "
        "or compact, by the images' size)",
    )
    parser.add_argument("--epochs", type=arguments.positive_int)
    parser.add_argument("--batch-size", type=arguments.positive_int)
    parser.add_argument("--learning-rate", type=arguments.positive_float)
    parser.add_argument(
        "--distortion",
        type=arguments.float_from_zero,
        nargs=3,
        metavar=("PIXELS", "DEGREES", "ZOOM"),
        help="shift, turn and zoom each training image by random amounts up to these; "
        "2 15 0.1 makes it up to a tenth larger or smaller (default: as the preset "
        "has it, such as 2 0 0 for sabour)",
    )
    parser.add_argument(
        "--routing-iterations",
        type=arguments.positive_int,
        help="how often routing computes the parents, for capsnet (default: 3) and "
        "matrix_capsnet (default: 2)",
    )
    parser.add_argument(
        "--routing-gradient",
        choices=["all", "last"],
        help="the iterations of em routing that gradients flow through; with last, "
        "training takes less time (default: all)",
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
    parser.add_argument(
        "--distribute",
        choices=["mirrored", "multiworker"],
        help="divide every batch among all GPUs, or where there is none all logical "
        "CPUs, of this process or of all processes that TF_CONFIG names (default: "
        "one device)",
    )
    arguments.add_seed(parser)
    arguments.add_nondeterministic(parser)
    arguments.add_output(parser, "RECIPE or runs/DATA")
    parser.add_argument(
        "--resume",
        metavar="RUN",
        help="go on with a run that was stopped or killed, from its directory, with "
        "the arguments that it was given",
    )


def run(args):
    """Trains, saves and reports. Returns the exit status."""
    require("matplotlib", "tensorboard")
    if args.resume:
        return _resume(args)
    if args.recipe and recipes.find(args.recipe).bits:
        return quantize.run_recipe(args, run)
    return _begin(args)


def _begin(args):
    """Trains a new model."""
    import keras
    import tensorflow as tf

    from tf_capsops import data
    from tf_capsops.cli import distribution, rules, runs, validation

    source = args.data or "digits"
    if args.recipe:
        source = recipes.source(args.recipe, args.data)
    settings.check(args)
    dataset = runs.open_data(source)
    if args.recipe:
        recipes.check_data(args.recipe, dataset)
    runs.require_library()
    trained = settings.of(args, dataset)
    epochs, batch_size = trained["epochs"], trained["batch_size"]
    dataset = validation.held_out(dataset, args.validation)
    strategy = distribution.strategy(args.distribute)
    distribution.check_shares(strategy, len(dataset.train), batch_size)
    seed = None if args.nondeterministic else args.seed
    repeatable = runs.seed_everything(args.seed, seed is not None)
    gpu = bool(tf.config.list_physical_devices("GPU"))

    steps = -(-len(dataset.train) // batch_size)
    with strategy.scope():
        with reported(ValueError):
            model = rules.model(trained, dataset.image_shape, dataset.num_classes)
        rate = schedule(trained["learning_rate"], epochs * steps)
        optimizer = keras.optimizers.Adam(rate)
        loss = rules.loss(trained, epochs * steps)
        model.compile(optimizer, loss=loss, metrics=["accuracy"])
    use_xla(model, args.jit or "auto", seed)
    config = {
        "data": data.absolute(source),
        "recipe": args.recipe,
        "changed": _changed(args.recipe, trained),
        **trained,
        "jit": model.jit_compile,
        "steps_per_execution": min(
            steps, args.steps_per_execution or (20 if gpu else 1)
        ),
        "distribute": args.distribute,
        **repeatable,
    }

    def create():
        return runs.create(args.output or runs.ROOT / (args.recipe or dataset.name))

    with distribution.writing(strategy, create) as directory:
        runs.write_json(directory / runs.CONFIG, config)
        print(
            f"{dataset.name}: {len(dataset.train)} images for training, "
            f"{len(dataset.test)} for {validation.purpose(args.validation)}, "
            f"{dataset.num_classes} classes\n"
            f"{_title(config)}: {model.count_params():,} parameters, "
            f"{epochs} epochs of {steps} batches{_manner(config, strategy)}",
            flush=True,
        )
        distortion = presets.Distortion(**trained["distortion"])
        return _train(model, dataset, directory, config, distortion, 0, {})


def _changed(recipe, trained):
    """Names what is not as the recipe has it; None where there is no recipe."""
    return recipe and recipes.changes(trained, settings.of_recipe(recipe))


def _title(config):
    """Says which network is trained, and whether as a recipe has it."""
    recipe, network = config["recipe"], f"{config['preset']} {config['model']}"
    if not recipe:
        return network
    changed = f" but for {', '.join(config['changed'])}" if config["changed"] else ""
    return f"recipe {recipe}{changed}, {network}"


def _resume(args):
    """Goes on with a run."""
    from tf_capsops.cli import checkpoints, distribution, runs, validation

    others = {**vars(args), "command": None, "resume": None}
    given = [name for name, value in others.items() if value is not None]
    if given:
        option = given[0].replace("_", "-")
        raise CommandError(
            f"--resume goes on with the arguments of the run: no --{option}"
        )
    directory = pathlib.Path(args.resume)
    if not directory.is_dir():
        raise CommandError(f"--resume takes a run's directory, and {directory} is none")
    epoch, path = checkpoints.newest(directory)
    if path is None:
        why = "it is trained" if (directory / runs.MODEL).is_file() else "no checkpoint"
        raise CommandError(f"nothing to resume in {directory}: {why}")
    config = {**runs.read_training(directory), **runs.read_execution(directory)}
    history = runs.read_history(directory, epoch)
    runs.require_library()
    strategy = distribution.strategy(config["distribute"])
    with strategy.scope():
        model, dataset, _ = runs.open_model(path)
    if not model.compiled:
        raise CommandError(f"{path} was saved without its loss")
    dataset = validation.held_out(dataset, config["validation"])
    distribution.check_shares(strategy, len(dataset.train), config["batch_size"])
    seed = config["seed"] if config["deterministic"] else None
    runs.seed_everything(config["seed"], config["deterministic"])
    use_xla(model, "on" if config["jit"] else "off", seed)
    with distribution.writing(strategy, lambda: directory) as place:
        print(f"{directory}: on from epoch {epoch} of {config['epochs']}", flush=True)
        distortion = config["distortion"]
        return _train(model, dataset, place, config, distortion, epoch, history)


def _train(model, dataset, directory, config, distortion, epoch, history):
    """Trains from an epoch on, saves and reports. Returns the exit status."""
    import keras
    import tensorflow as tf

    from tf_capsops.cli import (
        checkpoints,
        distribution,
        interruption,
        outcome,
        pipeline,
        progress,
        validation,
    )

    strategy = model.distribute_strategy
    epochs, batch_size = config["epochs"], config["batch_size"]
    steps = -(-len(dataset.train) // batch_size)
    # Not by `compile`, whose arguments the file of the model keeps.
    model.steps_per_execution = config["steps_per_execution"]
    batches, counter = pipeline.training_batches(
        *(dataset.train, batch_size, distortion),
        *(config["seed"], config["deterministic"]),
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
    saved = checkpoints.Checkpoints(directory, history)
    with interruption.Hold() as hold:
        try:
            seconds, stopped = hold.fit(
                model,
                batches,
                epochs=epochs,
                initial_epoch=epoch,
                # They steer nothing: they are there for the curves.
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
        _save(model, dataset, directory, config, saved.history, clock, seconds, stopped)
    return INTERRUPTED if stopped else 0


def _save(model, dataset, directory, config, history, clock, seconds, stopped):
    """Writes what a training has made, as far as it came, and says so."""
    import keras

    from tf_capsops import models
    from tf_capsops.cli import (
        checkpoints,
        figures,
        interruption,
        outcome,
        pair_figures,
        progress,
        runs,
        validation,
    )

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


def use_xla(model, jit, seed):
    """Switches XLA "on" or "off", unless "auto" leaves that to Keras."""
    import tensorflow as tf

    wanted = jit == "on"
    if jit == "auto":
        if model.distribute_strategy.num_replicas_in_sync == 1:
            return
        # Keras then uses none, for it would compile all replicas together.
        wanted = bool(tf.config.list_physical_devices("GPU"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras goes on without XLA
        model.jit_compile = wanted
    if jit == "on" and not model.jit_compile:
        text = f"Keras does not compile this {model.name} with XLA"
        if seed is not None:
            text = "Keras does not compile with XLA where --seed makes it deterministic"
        raise CommandError(f"{text}: no --jit on")


def _manner(config, strategy):
    """Says how the model is trained, where it is not plainly."""
    said = [f", {config['mixed_precision']}"] if config["mixed_precision"] else []
    said += [", with XLA"] if config["jit"] else []
    if config["steps_per_execution"] > 1:
        said.append(f", {config['steps_per_execution']} at a time")
    if config["distribute"]:
        said.append(f", on {strategy.num_replicas_in_sync} devices")
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
