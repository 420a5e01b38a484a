# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""What decides how a network comes out of `train`: presets, recipes and options."""

import dataclasses
import types

from tf_capsops.cli import presets, recipes
from tf_capsops.cli.errors import CommandError

# The options, by their names in Python, that change what a recipe fixes.
_CHANGING = (
    "routing",
    "routing_iterations",
    "routing_gradient",
    "reconstruction_weight",
    "epochs",
    "batch_size",
    "learning_rate",
    "distortion",
    "flip",
    "brightness",
    "contrast",
    "erase",
    "class_weight",
    "mixed_precision",
    "validation",
)


def of_recipe(name):
    """Returns the settings that a recipe fixes, of `train` or of `quantize`."""
    recipe = recipes.find(name)
    if recipe.bits:
        trained = of_recipe(recipe.trained)
        epochs = recipes.epochs_per_step(trained["epochs"])
        steps = recipes.quantization_steps(recipe.bits)
        kept = ("batch_size", "learning_rate", "distortion")
        return {
            "trained": trained,
            "bits": recipe.bits,
            "steps": steps,
            "epochs_per_step": epochs,
            "epochs": epochs * len(steps),
            **{key: trained[key] for key in kept},
        }
    return of(types.SimpleNamespace(recipe=name, model=None, preset=None))


def check(args):
    """Checks the options of `train`, as far as that can be done without its data.

    Raises:
      CommandError: if options do not go together.
    """
    usual = {"image_shape": (28, 28, 1), "generated": False, "objects": 1}
    of(args, types.SimpleNamespace(**usual))


def of(args, dataset=None):
    """Returns what `config.json` keeps of a network and of how it is trained.

    Args:
      args: the options of `train`; those that it lacks are not given.
      dataset: what is trained on, from which a preset and its distortion follow where
        there is no recipe.

    Raises:
      CommandError: if options do not go together.
    """
    given = {name: getattr(args, name, None) for name in _CHANGING}
    model, name, preset, routing = _preset(args, dataset)
    _refuse_options_of_others(given, model)
    network = dict(preset.network)
    if model == "capsnet":
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
    if given["class_weight"] and dataset is not None and dataset.objects > 1:
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
        "batch_size": given["batch_size"] or preset.batch_size,
        "learning_rate": given["learning_rate"] or preset.learning_rate,
        "distortion": _distortion(given, preset, dataset).entries,
        "mixed_precision": given["mixed_precision"],
        "validation": given["validation"],
        "class_weight": given["class_weight"],
        **({"margin": margin} if margin else {}),
    }


def _distortion(given, preset, dataset):
    """Returns the preset's `Distortion`, with what options change in it."""
    options = ("distortion", "flip", "brightness", "contrast", "erase")
    changing = [option for option in options if given[option]]
    if changing and dataset is not None and dataset.generated:
        raise CommandError(f"{dataset.name} distorts its images: no --{changing[0]}")
    distortion = preset.distortion
    if given["distortion"]:
        distortion = presets.Distortion(*given["distortion"])
    changes = {option: given[option] for option in changing if option != "distortion"}
    if "flip" in changes:
        changes["flip"] = 0.5
    return dataclasses.replace(distortion, **changes)


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
    model = args.model or "capsnet"
    name = args.preset or presets.fitting(dataset.image_shape)
    if name not in presets.PRESETS[model]:
        known = ", ".join(sorted(presets.PRESETS[model]))
        raise CommandError(f"{model} has the presets {known}, not {name}")
    preset = presets.PRESETS[model][name]
    if dataset.generated:
        # Generated images are shifted as their data set says, and no further.
        preset = dataclasses.replace(preset, distortion=presets.Distortion())
    return model, name, preset, None


def _refuse_options_of_others(given, model):
    """Raises a CommandError for options that a network of this name does not have."""
    iterates = ("capsnet", "matrix_capsnet")
    for option, networks, without in (
        ("routing", iterates[1:], "choice of routing"),
        ("routing_iterations", iterates, "routing that iterates"),
        ("routing_gradient", iterates[1:], "em routing"),
        ("reconstruction_weight", iterates[:1], "reconstructions"),
    ):
        if model not in networks and given[option]:
            raise CommandError(
                f"{model} has no {without}: no --{option.replace('_', '-')}"
            )
