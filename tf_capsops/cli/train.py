# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Trains a capsule network; writes model, history and pictures to a directory."""

import pathlib
import warnings

from tf_capsops.cli import presets, quantize, recipes, settings
from tf_capsops.cli.errors import CommandError, reported, require
from tf_capsops.cli.train_arguments import add_arguments

__all__ = ["add_arguments", "run"]


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
    from tf_capsops.cli import (
        distribution,
        networks,
        rules,
        runs,
        training,
        validation,
    )

    settings.check(args)
    source = args.data or "digits"
    if args.recipe:
        source = recipes.source(args.recipe, args.data)
    # Before anything is computed, as pictures are when the data is opened.
    strategy = distribution.strategy(args.distribute)

    # The data.
    dataset = runs.open_data(source, **_of_pictures(args))
    if args.recipe:
        recipes.check_data(args.recipe, dataset)
    networks.require_library()
    trained = settings.of(args, dataset)
    epochs, batch_size = trained["epochs"], trained["batch_size"]
    described = runs.described(dataset)
    dataset = validation.held_out(dataset, args.validation)

    # What is random, and where it is computed.
    distribution.check_shares(strategy, len(dataset.train), batch_size)
    seed = None if args.nondeterministic else args.seed
    repeatable = runs.seed_everything(args.seed, seed is not None)
    gpu = bool(tf.config.list_physical_devices("GPU"))

    # The network.
    steps = -(-len(dataset.train) // batch_size)
    with strategy.scope():
        with reported(ValueError):
            model = rules.model(trained, dataset.image_shape, dataset.num_classes)
        rate = schedule(trained["learning_rate"], epochs * steps)
        optimizer = keras.optimizers.Adam(rate)
        loss = rules.loss(trained, epochs * steps)
        model.compile(optimizer, loss=loss, metrics=["accuracy"])
    use_xla(model, args.jit or "auto", seed)

    # The run.
    config = {
        "data": data.absolute(source),
        **described,
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
            f"{dataset.num_classes} classes{_named(described)}\n"
            f"{_title(config)}: {model.count_params():,} parameters, "
            f"{epochs} epochs of {steps} batches{_manner(config, strategy)}",
            flush=True,
        )
        distortion = presets.Distortion(**trained["distortion"])
        return training.train(model, dataset, directory, config, distortion)


def _of_pictures(args):
    """Returns the options that were given for a folder of pictures."""
    names = ("image_size", "color_mode", "test_share", "skip_broken")
    given = {name: getattr(args, name) for name in names}
    given = {name: value for name, value in given.items() if value is not None}
    if "image_size" in given:
        height, *width = given["image_size"]
        if len(width) > 1:
            raise CommandError("--image-size takes one number, or height and width")
        given["image_size"] = (height, *(width or [height]))
    return given


def _named(described):
    """Says what the classes are called, if there are not too many."""
    names = described.get("classes", [])
    return f": {', '.join(names)}" if 0 < len(names) <= 20 else ""


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
    from tf_capsops.cli import (
        checkpoints,
        distribution,
        networks,
        runs,
        training,
        validation,
    )

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
    networks.require_library()
    strategy = distribution.strategy(config["distribute"])
    with strategy.scope():
        model, dataset, _ = runs.open_model(path, training=True)
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
        return training.train(model, dataset, place, config, distortion, epoch, history)


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
