# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Trains a capsule network; writes model, history and pictures to a directory.

Here are the options and what follows from them; `training` does the rest.
"""

import collections
import dataclasses
import types

from tf_capsops import options
from tf_capsops.cli import presets
from tf_capsops.errors import CommandError, require
from tf_capsops.experiments import recipes


def add_arguments(parser):
    """Adds the arguments of `tf-capsops train`."""
    _add_data(parser.add_argument_group("data"))
    _add_network(parser.add_argument_group("network"))
    _add_schedule(parser.add_argument_group("training"))
    _add_distortions(parser.add_argument_group("random changes of training images"))
    _add_execution(parser.add_argument_group("execution"))
    options.add_output(parser, "RECIPE or runs/DATA")
    parser.add_argument(
        "--resume",
        metavar="RUN",
        help="go on with a run that was stopped or killed, from its directory, with "
        "the arguments that it was given",
    )


def _add_data(group):
    group.add_argument(
        "--data",
        metavar="NAME|FILE.npz|FOLDER",
        help=f"what to train on: {options.DATA} (default: that of the recipe, or "
        "digits)",
    )
    group.add_argument(
        "--image-size",
        type=options.positive_int,
        nargs="+",
        metavar="PIXELS",
        help="resize the pictures of a folder to this height and width, or height "
        "alone if they are the same (default: the size that all pictures have)",
    )
    group.add_argument(
        "--color-mode",
        choices=["grayscale", "rgb"],
        help="convert the pictures of a folder to grey or to colour (default: what all "
        "pictures are)",
    )
    group.add_argument(
        "--test-share",
        type=options.share,
        metavar="SHARE",
        help="test with this share of each class of a folder that has no train/ and "
        "test/, the same pictures in every run (default: 0.2)",
    )
    options.add_skip_broken(group)
    group.add_argument(
        "--validation",
        type=options.share,
        metavar="SHARE",
        help="hold out this share of the training images, the same ones in every run, "
        "and judge by them instead of the test images; for choosing options (default: "
        "train on all, and test)",
    )


def _add_network(group):
    group.add_argument(
        "--recipe",
        metavar="NAME",
        help="everything that a result is trained with, options of one's own aside: "
        f"{', '.join(recipes.RECIPES)}",
    )
    group.add_argument(
        "--model",
        choices=list(presets.PRESETS),
        help="capsnet or deepcaps, with routing and a decoder; p_capsnet, of capsule "
        "convolutions only; matrix_capsnet, with any --routing; efficient_capsnet, of "
        "self-attention routing; or convnet, without capsules; for masks of classes "
        "segcaps, ucaps3d for volumes, or unet, without capsules (default: capsnet, or "
        "for masks segcaps or ucaps3d)",
    )
    group.add_argument(
        "--routing",
        choices=presets.RULES,
        help="the rule by which matrix_capsnet routes (default: em)",
    )
    group.add_argument(
        "--preset",
        choices=sorted({name for each in presets.PRESETS.values() for name in each}),
        help="sizes and schedule; sabour for capsnet and convnet, chen and tiny for "
        "p_capsnet, paper for deepcaps and networks for masks (default: small, compact "
        "or large, by the images' size)",
    )
    group.add_argument(
        "--routing-iterations",
        type=options.positive_int,
        help="how often routing computes the parents, for capsnet and deepcaps "
        "(default: 3) and matrix_capsnet (default: 2)",
    )
    group.add_argument(
        "--routing-gradient",
        choices=["all", "last"],
        help="the iterations of em routing that gradients flow through; with last, "
        "training takes less time (default: all)",
    )
    group.add_argument(
        "--reconstruction-weight",
        type=options.positive_float,
        help="what the squared error of a reconstruction, summed over an image, counts "
        "beside the margin loss, for capsnet and segcaps; more for images of few "
        "pixels or of colours, which stay grey (default: as the preset has it, such as "
        "0.0005 for compact)",
    )


def _add_schedule(group):
    preset = "as the preset has it"
    group.add_argument(
        "--epochs",
        type=options.positive_int,
        help=f"how often to train on every image (default: {preset})",
    )
    rate = "the highest; it rises from zero in the first twentieth of the training, and"
    options.add_batches(group, preset, f"{rate} then falls to zero", preset)
    group.add_argument(
        "--class-weight",
        choices=["balanced"],
        help="balanced: let classes of few images count as much in the loss as those "
        "of many (default: all images count alike)",
    )


def _add_distortions(group):
    group.add_argument(
        "--distortion",
        type=options.float_from_zero,
        nargs=3,
        metavar=("PIXELS", "DEGREES", "ZOOM"),
        help="shift, turn and zoom by up to these amounts; 2 15 0.1 makes an image up "
        "to a tenth larger or smaller (default: as the preset has it, such as 2 0 0 "
        "for sabour)",
    )
    group.add_argument(
        "--flip",
        action="store_const",
        const=True,
        help="exchange left and right in half of the images",
    )
    group.add_argument(
        "--brightness",
        type=options.share,
        metavar="SHARE",
        help="make images brighter or darker, by up to this share of the way from "
        "black to white",
    )
    group.add_argument(
        "--contrast",
        type=options.share,
        metavar="SHARE",
        help="raise or lower the contrast by up to this share",
    )
    group.add_argument(
        "--erase",
        type=options.share,
        metavar="SHARE",
        help="paint over a rectangle of up to this share of the image's area",
    )


def _add_execution(group):
    group.add_argument(
        "--mixed-precision",
        choices=["float16", "bfloat16"],
        help="compute in this type and keep weights in float32; float16 with a scaled "
        "loss (default: float32 throughout)",
    )
    group.add_argument(
        "--jit",
        choices=["auto", "on", "off"],
        help="compile with XLA; auto does so where there is a GPU and no --seed "
        "(default: auto)",
    )
    group.add_argument(
        "--steps-per-execution",
        type=options.positive_int,
        help="batches from one look at the training to the next; more cost less time "
        "where batches are quick (default: up to 20 where there is a GPU, else 1)",
    )
    group.add_argument(
        "--distribute",
        choices=["mirrored", "multiworker"],
        help="divide every batch among all GPUs, or where there is none all logical "
        "CPUs, of this process or of all processes that TF_CONFIG names (default: "
        "one device)",
    )
    options.add_seed(group)
    options.add_nondeterministic(group)


def check(args):
    """Checks what can be checked without data and TensorFlow; raises a CommandError."""
    require("matplotlib", "tensorboard")
    usual = {"name": "the data set", "image_shape": (28, 28, 1), "generated": False}
    usual |= {"objects": 1, "has_masks": presets.read_masks(args.model, args.preset)}
    settings(args, None if args.recipe else types.SimpleNamespace(**usual))
    data(args)


def run(args):
    """Trains, saves and reports. Returns the exit status."""
    from tf_capsops.cli import training

    return training.run(args)


def data(args):
    """Returns what to train on, as `data.load` takes it: its name, and options.

    Raises:
      CommandError: if it is other data than that of the recipe, or an image has more
        sizes than two.
    """
    names = ("image_size", "color_mode", "test_share", "skip_broken")
    given = {name: getattr(args, name) for name in names}
    given = {name: value for name, value in given.items() if value is not None}
    if "image_size" in given:
        height, *width = given["image_size"]
        if len(width) > 1:
            raise CommandError("--image-size takes one number, or height and width")
        given["image_size"] = (height, *(width or [height]))
    if args.recipe:
        return recipes.source(args.recipe, args.data), given
    return args.data or "digits", given


def settings(args, dataset=None):
    """Returns what `config.json` keeps of a network and of how it is trained.

    Args:
      args: the options of `train`; those that it lacks are not given.
      dataset: what is trained on, from which a preset and its distortion follow where
        there is no recipe.

    Raises:
      CommandError: if options do not go together.
    """
    given = collections.defaultdict(lambda: None, vars(args))
    model, name, preset, routing = _preset(args, dataset)
    _refuse_options_of_others(given, model)
    _check_targets(given, model, dataset)
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


def settings_of_recipe(name):
    """Returns the settings that a recipe fixes, of `train` or of `quantize`."""
    recipe = recipes.find(name)
    if not recipe.bits:
        return settings(types.SimpleNamespace(recipe=name, model=None, preset=None))
    trained = settings_of_recipe(recipe.trained)
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


def changes(name, config):
    """Names the settings of a run that are not those of its recipe."""
    return recipes.changes(config, settings_of_recipe(name))


def _distortion(given, preset, dataset):
    """Returns the preset's `Distortion`, with what options change in it."""
    known = ("distortion", "flip", "brightness", "contrast", "erase")
    changing = [option for option in known if given[option]]
    if changing and dataset is not None and dataset.has_masks:
        raise CommandError(
            f"{dataset.name} has masks, and distortion does not move the masks: no "
            f"--{changing[0]}"
        )
    if changing and dataset is not None and dataset.generated:
        raise CommandError(f"{dataset.name} distorts its images: no --{changing[0]}")
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


def _check_targets(given, model, dataset):
    """Raises a CommandError if a network does not read what a data set has."""
    segments = model in presets.SEGMENTERS
    if dataset is None or dataset.has_masks == segments:
        if segments and given["class_weight"]:
            raise CommandError(
                f"{model} reads a class for each pixel: no --class-weight"
            )
        return
    if segments:
        raise CommandError(
            f"{model} reads masks, and {dataset.name} has a class for each image"
        )
    raise CommandError(
        f"{model} reads one class from an image, and {dataset.name} has masks: give "
        f"--model {', '.join(presets.SEGMENTERS)}"
    )


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
