# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Recipes: everything that a published result is trained with, under one name.

A name such as `p_capsnet_tiny-mnist` has two parts. The second one is a `--data`. The
first one is

* a `--model`, or a model with its preset, such as `p_capsnet_tiny`;
* `em` or `vb`, the rules by which matrix_capsnet routes;
* or `inq` and a number of bits, for a capsnet that is quantized after its training. It
  ends with `a8` if activations have 8 bits and each output channel its own code book.
"""

import dataclasses
import json
import pathlib

from tf_capsops.cli import presets
from tf_capsops.errors import CommandError, suggestion

_SABOUR = "Sabour et al. 2017"

# The shares of the weights that `quantize` has fixed after each step, from Zhou et al.
# (2017), "Incremental Network Quantization": fewer bits take more and smaller steps. We
# added 0.99, and 0.975 for 3 and 4 bits, because no free weights are left to make up
# for the last step.
_QUANTIZATION_STEPS = {
    2: [0.2, 0.4, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.975, 0.99, 1.0],
    3: [0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 0.95, 0.975, 0.99, 1.0],
    4: [0.3, 0.5, 0.8, 0.9, 0.95, 0.975, 0.99, 1.0],
}


# Fields of a recipe that are options of `quantize`, apart from the bits of weights.
QUANTIZED_WITH = ("activation_bits", "per_channel", "straight_through")


@dataclasses.dataclass(frozen=True)
class Paper:
    """A published test error, such as "0.25%", and its source."""

    error: str
    source: str


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A preset, the data to train it on, and changes to the preset.

    Attributes:
      data: a name that `--data` takes.
      model: a network of `presets.PRESETS`, and `preset` one of its presets.
      routing: the rule of matrix_capsnet.
      changes: fields of the preset; entries of `network` are added to those it has.
      paper: the paper's error of one network.
      ensemble: the paper's error of several networks that vote.
      votes: whether the networks of several seeds vote in the report.
      bits: bits of a weight, if the recipe quantizes the network of another recipe. The
        other recipe is `trained`, and `QUANTIZED_WITH` names further options.
    """

    data: str
    model: str
    preset: str
    routing: str | None = None
    changes: dict = dataclasses.field(default_factory=dict)
    paper: Paper | None = None
    ensemble: Paper | None = None
    votes: bool = False
    bits: int | None = None
    activation_bits: int | None = None
    per_channel: bool = False
    straight_through: bool = False
    trained: str | None = None

    def settings(self):
        """Returns the `Preset` with the recipe's changes."""
        preset = presets.PRESETS[self.model][self.preset]
        network = {**preset.network, **self.changes.get("network", {})}
        return dataclasses.replace(preset, **{**self.changes, "network": network})


@dataclasses.dataclass(frozen=True)
class Data:
    """Properties of a data set, which tell it from files of other data.

    A `folder` is the one that `--data` names, or else the folder of the data's name.
    """

    image_shape: tuple
    classes: int
    training: int
    tests: int
    license: str
    generated: bool = False
    folder: bool = False


_MNIST_LICENSE = "CC BY-SA 3.0"
DATA = {
    "digits": Data((8, 8, 1), 10, 1437, 360, "CC BY 4.0"),
    "mnist": Data((28, 28, 1), 10, 60_000, 10_000, _MNIST_LICENSE),
    "fashion_mnist": Data((28, 28, 1), 10, 60_000, 10_000, "MIT"),
    "multimnist": Data((36, 36, 1), 10, 60_000, 10_000, _MNIST_LICENSE, True),
    "affine_mnist": Data((40, 40, 1), 10, 60_000, 10_000, _MNIST_LICENSE, True),
    "segmented_mnist": Data((40, 40, 1), 11, 60_000, 10_000, _MNIST_LICENSE, True),
    "moving_mnist": Data((16, 40, 40, 1), 11, 60_000, 10_000, _MNIST_LICENSE, True),
    # CIFAR-10 as JPEG files in folders of classes below train/ and test/. Networks do
    # not see what the compression loses.
    "cifar10_jpeg": Data((32, 32, 3), 10, 50_000, 10_000, "not stated", folder=True),
}

# Generated images are shifted as their data set says, and no further.
_GENERATED = {"distortion": presets.Distortion()}
# A convnet with pooling, and with as many parameters as the capsnet has.
_PLAIN = {"pool_size": 2, "units": (3258, 192)}


# The networks for small photographs by the names of their recipes, and their budget.
_PHOTOGRAPHS = {
    "capsnet": ("capsnet", "sabour"),
    "p_capsnet": ("p_capsnet", "compact"),
    "em": ("matrix_capsnet", "compact"),
    "vb": ("matrix_capsnet", "compact"),
    "efficient_capsnet": ("efficient_capsnet", "compact"),
    "deepcaps": ("deepcaps", "paper"),
    "convnet": ("convnet", "compact"),
}
_BUDGET = {
    "epochs": 30,
    "batch_size": 128,
    "distortion": presets.Distortion(shift=4.0, flip=0.5),
}
_DEEPCAPS = "Rajasegaran et al. 2019, several networks voting"
# With 3 bits, weights train on by the straight-through estimator.
_IN_8_BITS = {
    bits: {"activation_bits": 8, "per_channel": True, "straight_through": bits < 4}
    for bits in (5, 4, 3)
}
_DRAWN = {"epochs": 10}  # of 60,000 images with masks, which are drawn anew each time


def _of_photographs(name):
    model, preset = _PHOTOGRAPHS[name]
    routing = name if model == "matrix_capsnet" else None
    paper = Paper("7.26%", _DEEPCAPS) if name == "deepcaps" else None
    return Recipe("cifar10_jpeg", model, preset, routing, _BUDGET, paper)


def _quantized(data, preset, bits, **more):
    trained = f"capsnet-{data}"
    return Recipe(data, "capsnet", preset, bits=bits, trained=trained, **more)


RECIPES = {
    "capsnet-digits": Recipe("digits", "capsnet", "small"),
    "p_capsnet-digits": Recipe("digits", "p_capsnet", "small"),
    "efficient_capsnet-digits": Recipe(
        "digits", "efficient_capsnet", "small", votes=True
    ),
    "em-digits": Recipe("digits", "matrix_capsnet", "small", routing="em"),
    "vb-digits": Recipe("digits", "matrix_capsnet", "small", routing="vb"),
    "inq5-digits": _quantized("digits", "small", 5),
    "capsnet-mnist": Recipe(
        "mnist",
        "capsnet",
        "sabour",
        paper=Paper("0.25%", f"{_SABOUR}, table 1"),
    ),
    "capsnet-fashion_mnist": Recipe("fashion_mnist", "capsnet", "sabour"),
    "p_capsnet-mnist": Recipe(
        "mnist",
        "p_capsnet",
        "compact",
        paper=Paper("below 1%", "Chen et al. 2019, abstract, with 3,888 parameters"),
    ),
    "p_capsnet_tiny-mnist": Recipe(
        "mnist",
        "p_capsnet",
        "tiny",
        paper=Paper("below 1%", "Chen et al. 2019, abstract, with 3,888 parameters"),
    ),
    "efficient_capsnet-mnist": Recipe(
        "mnist",
        "efficient_capsnet",
        "compact",
        paper=Paper("0.26%", "Mazzia et al. 2021"),
        ensemble=Paper("0.16%", "Mazzia et al. 2021"),
        votes=True,
    ),
    "efficient_capsnet-fashion_mnist": Recipe(
        "fashion_mnist", "efficient_capsnet", "compact"
    ),
    "em-mnist": Recipe(
        "mnist",
        "matrix_capsnet",
        "compact",
        routing="em",
        # The authors' code turns images as far, and shifts them by random crops.
        changes={"epochs": 40, "distortion": presets.Distortion(2.0, 15.0)},
        paper=Paper("0.44%", "Hinton et al. 2018, section 5"),
    ),
    "vb-mnist": Recipe("mnist", "matrix_capsnet", "compact", routing="vb"),
    "capsnet-multimnist": Recipe(
        "multimnist",
        "capsnet",
        "sabour",
        changes={
            **_GENERATED,
            # Twenty times the paper's, as the loss of its authors' code amounts to.
            "network": {"objects": 2, "reconstruction_weight": 0.01},
            "epochs": 400,
        },
        paper=Paper("5.2%", f"{_SABOUR}, table 1"),
    ),
    "capsnet-affine_mnist": Recipe(
        "affine_mnist",
        "capsnet",
        "sabour",
        changes=_GENERATED,
        paper=Paper("21% on affNIST", f"{_SABOUR}, section 5.2"),
    ),
    "convnet-affine_mnist": Recipe(
        "affine_mnist",
        "convnet",
        "sabour",
        changes={**_GENERATED, "network": _PLAIN},
        paper=Paper("34% on affNIST", f"{_SABOUR}, section 5.2"),
    ),
    "em-affine_mnist": Recipe(
        "affine_mnist",
        "matrix_capsnet",
        "compact",
        routing="em",
        changes=_GENERATED,
    ),
    "vb-affine_mnist": Recipe(
        "affine_mnist",
        "matrix_capsnet",
        "compact",
        routing="vb",
        changes=_GENERATED,
    ),
    "inq5-mnist": _quantized("mnist", "sabour", 5),
    "inq4-mnist": _quantized("mnist", "sabour", 4),
    "inq3-mnist": _quantized("mnist", "sabour", 3),
    **{
        f"inq{bits}a8-{data}": _quantized(data, "sabour", bits, **options)
        for data in ("mnist", "fashion_mnist")
        for bits, options in _IN_8_BITS.items()
    },
    "deepcaps-mnist": Recipe("mnist", "deepcaps", "paper"),
    "deepcaps-fashion_mnist": Recipe(
        "fashion_mnist",
        "deepcaps",
        "paper",
        changes={"distortion": presets.Distortion(shift=2.0, flip=0.5)},
        paper=Paper("5.27%", _DEEPCAPS),
    ),
    **{f"{name}-cifar10_jpeg": _of_photographs(name) for name in _PHOTOGRAPHS},
    "segcaps-segmented_mnist": Recipe(
        "segmented_mnist", "segcaps", "compact", changes=_DRAWN
    ),
    "unet-segmented_mnist": Recipe(
        "segmented_mnist", "unet", "compact", changes=_DRAWN
    ),
    "ucaps3d-moving_mnist": Recipe(
        "moving_mnist", "ucaps3d", "compact", changes=_DRAWN
    ),
}


def find(name, argument="--recipe"):
    """Returns the recipe of a name.

    Args:
      name: the name on the command line.
      argument: the argument that has the name, for the message.

    Raises:
      CommandError: if there is no such recipe.
    """
    if name not in RECIPES:
        if similar := suggestion(name, RECIPES):
            raise CommandError(f"{argument}: there is no recipe {name!r}{similar}")
        if alike := [each for each in RECIPES if name and name in each]:
            known = ", ".join(alike)
            raise CommandError(
                f"{argument}: there is no recipe {name!r}; similar are {known}"
            )
        known = ", ".join(RECIPES)
        raise CommandError(f"{argument} must be one of {known}, got {name!r}")
    return RECIPES[name]


def source(name, given):
    """Returns the data that a recipe is trained on, as `data.load` takes it.

    Args:
      name: the recipe's name.
      given: the value of `--data`: None, the name of the data, or a file or folder with
        the data or with the digits that it is generated from.

    Raises:
      CommandError: if this is the name of other data, or there is no such file.
    """
    wanted = find(name).data
    generated = DATA[wanted].generated
    if given is None and DATA[wanted].folder and not pathlib.Path(wanted).is_dir():
        raise CommandError(
            f"{name} is trained on a folder with train and test in it, and in each of "
            f"them a folder of pictures for each class: name it with --data, or call "
            f"it {wanted}"
        )
    if given in (None, wanted) or (generated and given.startswith(f"{wanted}:")):
        return given or wanted
    is_path = given.endswith(".npz") or pathlib.Path(given).exists()
    if is_path and given not in DATA and wanted != "digits":
        return f"{wanted}:{given}" if generated else given
    raise CommandError(f"{name} is trained on {wanted}, not on {given}")


def check_data(name, dataset):
    """Checks by its sizes that a data set is that of a recipe.

    Raises:
      CommandError: if it is another one; the message says what differs.
    """
    recipe = find(name)
    wanted = DATA[recipe.data]
    for what, ours, theirs in (
        ("images of shape", wanted.image_shape, tuple(dataset.image_shape)),
        ("classes:", wanted.classes, dataset.num_classes),
        ("images for training:", wanted.training, len(dataset.train)),
        ("images for testing:", wanted.tests, len(dataset.test)),
    ):
        if ours != theirs:
            raise CommandError(
                f"{name} is trained on {recipe.data}, which has {what} {ours}; "
                f"{dataset.name} has {theirs}"
            )


def quantizing(trained, bits, options):
    """Returns the name of the recipe that quantizes runs of another, or None.

    Args:
      trained: the name of the other recipe.
      bits: bits of a weight.
      options: a dict of the options in `QUANTIZED_WITH`.
    """
    wanted = {"trained": trained, "bits": bits, **options}
    for name, recipe in RECIPES.items():
        if {key: getattr(recipe, key) for key in wanted} == wanted:
            return name
    return None


def quantization_steps(bits, straight_through=False):
    """Returns the shares of the weights that are quantized after each step."""
    if straight_through:
        return [1.0]
    return _QUANTIZATION_STEPS.get(bits, [0.5, 0.75, 0.875, 1.0])


def epochs_per_step(epochs, straight_through=False):
    """Returns the epochs in a step of `quantize`, after a training of `epochs`."""
    return max(1, epochs * 3 // 10 if straight_through else epochs // 10)


def stated(settings):
    """Returns settings as JSON has them, without those that are None.

    Earlier runs lack settings that were added later.
    """
    return json.loads(json.dumps(settings), object_pairs_hook=_without_none)


def _without_none(pairs):
    return {key: value for key, value in pairs if value is not None}


def changes(settings, fixed):
    """Names the settings that a recipe fixes and that differ in a run."""
    own, usual = stated(settings), stated(fixed)
    return [key for key in fixed if own.get(key) != usual.get(key)]
