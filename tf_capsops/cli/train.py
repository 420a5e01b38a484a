# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Trains a capsule network; writes model, history and pictures to a directory.

This module works out the settings from the options; `training` does the rest.
"""

import collections
import dataclasses
import os
import pathlib
import types

from tf_capsops.cli import presets, train_options
from tf_capsops.errors import CommandError, require
from tf_capsops.experiments import recipes

add_arguments = train_options.add_arguments


def check(args):
    """Checks what can be checked without data and TensorFlow; raises a CommandError."""
    require("matplotlib", "tensorboard")
    usual = {"name": "the data set", "image_shape": (28, 28, 1), "generated": False}
    usual |= {
        "standardized": False,
        "objects": 1,
        "has_masks": presets.read_masks(args.model, args.preset),
    }
    if args.model in presets.OF_VOLUMES:
        usual["image_shape"] = 28, 28, 28, 1
    settings(args, None if args.recipe else types.SimpleNamespace(**usual))
    source, _ = data(args)
    _check_is_there(source)


def run(args):
    """Trains, saves and reports. Returns the exit status."""
    from tf_capsops.cli import training

    return training.run(args)


def data(args):
    """Returns what to train on, as `data.load` takes it: its name, and options.

    Raises:
      CommandError: if the data is not that of the recipe, or `--image-size` has too
        many numbers.
    """
    names = ("image_size", "color_mode", "test_share", "skip_broken")
    given = {name: getattr(args, name) for name in names}
    given = {name: value for name, value in given.items() if value is not None}
    if "image_size" in given:
        size = given["image_size"]
        if len(size) > (3 if _has_volumes(args.data) else 2):
            raise CommandError(
                "--image-size takes one number, or height and width, or depth, height "
                "and width of a folder of volumes"
            )
        given["image_size"] = tuple(size) if len(size) > 1 else size[0]
    if args.recipe:
        return recipes.source(args.recipe, args.data), given
    return args.data or "digits", given


def _check_is_there(source):
    """Raises a CommandError if a path of data leads nowhere; a name is checked later.

    Args:
      source: as `data.load` takes it: a path, which may follow `NAME:`.
    """
    file = source.partition(":")[2] or source
    is_path = "/" in file or pathlib.Path(file).suffix
    if is_path and not any(os.path.exists(each) for each in (source, file)):
        raise CommandError(f"no data at {file!r}: there is no such file or folder")


def _has_volumes(source):
    """Whether what `--data` says is a folder of NIfTI volumes with masks."""
    folder = pathlib.Path(source or "digits")
    files = (*folder.glob("images/*"), *folder.glob("train/images/*"))
    return any(file.name.lower().endswith((".nii", ".nii.gz")) for file in files)


def settings(args, dataset=None):
    """Returns the entries of `config.json` for a network and its training.

    Args:
      args: the options of `train`; attributes that it lacks count as not given.
      dataset: the data set, which decides on preset and distortion if there is no
        recipe.

    Raises:
      CommandError: if options do not go together.
    """
    given = collections.defaultdict(lambda: None, vars(args))
    model, name, preset, routing = _preset(args, dataset)
    _refuse_options_of_others(given, model)
    _check_targets(model, dataset)
    network = dict(preset.network)
    if model in ("capsnet", "deepcaps"):
        network["routing_iterations"] = given["routing_iterations"] or 3
    if dataset is not None and dataset.objects > 1:
        if model != "capsnet":
            raise CommandError(
                f"{model} reads one class from an image, and images of {dataset.name} "
                f"show {dataset.objects}: give --model capsnet"
            )
        network["objects"] = dataset.objects
    if given["reconstruction_weight"]:
        network["reconstruction_weight"] = given["reconstruction_weight"]
    several = dataset is not None and dataset.objects > 1
    if given["class_weight"] and several:
        raise CommandError(
            f"images of {dataset.name} show {dataset.objects} classes: no "
            "--class-weight"
        )
    if model == "matrix_capsnet":
        routing = given["routing"] or routing or "em"
    margin = presets.LAST_MARGINS.get((name, routing))
    gradient = given["routing_gradient"]
    if gradient and routing != "em":
        raise CommandError(f"{routing} is not em routing: no --routing-gradient")
    return {
        "model": model,
        "preset": name,
        "network": network,
        "routing": routing,
        "routing_iterations": given["routing_iterations"] if routing else None,
        "routing_gradient": gradient if gradient != "all" else None,
        "epochs": given["epochs"] or preset.epochs,
        "steps_per_epoch": given["steps_per_epoch"],
        "batch_size": given["batch_size"] or preset.batch_size,
        "learning_rate": given["learning_rate"] or preset.learning_rate,
        "distortion": _distortion(given, preset, dataset).entries,
        "mixed_precision": given["mixed_precision"],
        "validation": given["validation"],
        "class_weight": given["class_weight"],
        **({"margin": margin} if margin else {}),
    }


def settings_of_recipe(name):
    """Returns the settings that a recipe fixes, of `train` or of `quantize`."""
    recipe = recipes.find(name)
    if not recipe.bits:
        return settings(types.SimpleNamespace(recipe=name, model=None, preset=None))
    trained = settings_of_recipe(recipe.trained)
    epochs = recipes.epochs_per_step(trained["epochs"], recipe.straight_through)
    steps = recipes.quantization_steps(recipe.bits, recipe.straight_through)
    kept = ("batch_size", "learning_rate", "distortion")
    # Only those that are set: runs of other recipes may lack them.
    rounding = {key: getattr(recipe, key) for key in recipes.QUANTIZED_WITH}
    return {
        "trained": trained,
        "bits": recipe.bits,
        **{key: value for key, value in rounding.items() if value},
        "steps": steps,
        "epochs_per_step": epochs,
        "epochs": epochs * len(steps),
        **{key: trained[key] for key in kept},
    }


def changes(name, config):
    """Names the settings in which a run differs from its recipe."""
    return recipes.changes(config, settings_of_recipe(name))


def _distortion(given, preset, dataset):
    """Returns the preset's `Distortion` with the changes that options ask for."""
    known = ("distortion", "elastic", "flip", "brightness", "contrast", "erase")
    changing = [option for option in known if given[option]]
    if changing and dataset is not None and dataset.generated:
        raise CommandError(f"{dataset.name} distorts its images: no --{changing[0]}")
    clipping = [option for option in changing if option in ("brightness", "contrast")]
    if clipping and dataset is not None and dataset.standardized:
        raise CommandError(
            f"--{clipping[0]} keeps images in 0 to 1, which those of {dataset.name} "
            "exceed"
        )
    distortion = preset.distortion
    if given["distortion"]:
        distortion = presets.Distortion(*given["distortion"])
    amounts = {option: given[option] for option in changing if option != "distortion"}
    if "flip" in amounts:
        amounts["flip"] = 0.5
    return dataclasses.replace(distortion, **amounts)


def _preset(args, dataset):
    """Returns a model, the name of its preset, the `Preset`, and a rule or None."""
    if args.recipe:
        for option in ("model", "preset"):
            if getattr(args, option):
                raise CommandError(
                    f"the recipe {args.recipe} has a {option} of its own: no --{option}"
                )
        recipe = recipes.find(args.recipe)
        return recipe.model, recipe.preset, recipe.settings(), recipe.routing
    usual = "capsnet"
    if dataset.has_masks:
        usual = "ucaps3d" if len(dataset.image_shape) == 4 else "segcaps"
    model = args.model or usual
    name = args.preset or presets.fitting(dataset.image_shape)
    if name not in presets.PRESETS[model]:
        known = ", ".join(sorted(presets.PRESETS[model]))
        raise CommandError(f"{model} has the presets {known}, not {name}")
    preset = presets.PRESETS[model][name]
    if dataset.generated:
        # Generated images are shifted as their data set says, and no further.
        preset = dataclasses.replace(preset, distortion=presets.Distortion())
    return model, name, preset, None


def _check_targets(model, dataset):
    """Raises a CommandError if a network does not read what a data set has."""
    if dataset is None:
        return
    segments = model in presets.SEGMENTERS
    has_volumes = len(dataset.image_shape) == 4
    if segments and not dataset.has_masks:
        reads, has = "masks", "a class for each image"
    elif dataset.has_masks and not segments:
        reads, has = "one class from an image", "masks"
    elif segments and (model in presets.OF_VOLUMES) != has_volumes:
        reads, has = ("images", "volumes") if has_volumes else ("volumes", "images")
    else:
        return
    fitting = (
        name
        for name in presets.SEGMENTERS
        if (name in presets.OF_VOLUMES) == has_volumes
    )
    remedy = f": give --model {' or '.join(fitting)}" if dataset.has_masks else ""
    raise CommandError(f"{model} reads {reads}, and {dataset.name} has {has}{remedy}")


def _refuse_options_of_others(given, model):
    """Raises a CommandError for options that a network of this name does not have."""
    iterates = "matrix_capsnet", "capsnet", "deepcaps"
    drawing = *iterates[1:], "segcaps", "ucaps3d"
    for option, networks, without in (
        ("routing", iterates[:1], "choice of routing"),
        ("routing_iterations", iterates, "routing that iterates"),
        ("routing_gradient", iterates[:1], "em routing"),
        ("reconstruction_weight", drawing, "reconstructions"),
    ):
        if model not in networks and given[option]:
            raise CommandError(
                f"{model} has no {without}: no --{option.replace('_', '-')}"
            )
