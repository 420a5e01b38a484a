# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Draws a network's routing, and the reconstructions of a capsnet, as PNG files.

They show routing coefficients, and for a capsnet reconstructions and perturbations of
each dimension of a capsule. For a capsnet that holds codes, they show reconstructions
only.
"""

import functools
import pathlib

from tf_capsops import options
from tf_capsops.cli import kept, runs
from tf_capsops.errors import CommandError, make_directory, reported, require


def add_arguments(parser):
    """Adds the arguments of `tf-capsops reconstruct`."""
    options.add_run(parser, "whose test images to draw")
    parser.add_argument(
        "--output",
        metavar="DIRECTORY",
        help="where the files go; existing ones are kept (default: next to the model)",
    )
    parser.add_argument(
        "--beside",
        metavar="RUN_OR_MODEL",
        nargs="+",
        default=[],
        help="other networks that read the same images; comparison.png shows the "
        "routing of all of them for ten images",
    )
    parser.add_argument(
        "--images",
        type=options.positive_int,
        default=40,
        help="test images in reconstructions.png, for capsnet (default: %(default)s)",
    )
    parser.add_argument(
        "--routing",
        type=options.int_from(0),
        nargs="?",
        const=0,
        metavar="NUMBER",
        help="draw instead, as routing.png, which parts of one test image are routed "
        "to its classes, on its pixels (default: the first one, 0)",
    )


def check(args):
    """Checks what can be checked without TensorFlow; raises a CommandError."""
    require("matplotlib")
    for target in (args.model, *args.beside):
        runs.find(target)


def run(args):
    """Draws the figures. Returns the exit status."""
    from tf_capsops.cli import figures, networks
    from tf_capsops.models.autoencoder import Autoencoder

    parts = args.routing is not None
    model, dataset, directory = networks.open_model(
        args.model, args.data, skip_broken=args.skip_broken, takes_masks=parts
    )
    if parts:
        return _draw(args, directory, _of_parts(args, model, dataset, directory))
    draws, routes = isinstance(model, Autoencoder), _routes(model)
    redraws = networks.redraws(model)
    if not (redraws or routes):
        raise CommandError(
            f"the {model.name} in {directory} has no decoder to reconstruct images, "
            "and no routing to draw: give another network"
        )
    pictures = {}
    if redraws:
        reconstructions = functools.partial(figures.reconstructions, count=args.images)
        pictures["reconstructions"] = reconstructions
    if draws:
        pictures["perturbations"] = figures.perturbations
    if routes:
        pictures["coefficients"] = figures.coefficients
    pictures = {
        stem: functools.partial(draw, model, dataset) for stem, draw in pictures.items()
    }
    if args.beside:
        models = _beside(args, model, dataset, directory)
        pictures["comparison"] = functools.partial(figures.comparison, models, dataset)
    return _draw(args, directory, pictures)


def _draw(args, directory, pictures):
    """Draws pictures, by functions that take their paths. Returns the exit status."""
    output = pathlib.Path(args.output) if args.output else directory
    make_directory(output)
    with reported(OSError):
        for stem, draw in pictures.items():
            path, is_there = kept.write({"{}.png": draw}, output, stem)
            print(f"{path} is there already" if is_there else f"wrote {path}")
    return 0


def _of_parts(args, model, dataset, directory):
    """Returns a function that draws the routing of one image, by its file's stem."""
    from tf_capsops.cli import parts
    from tf_capsops.models import SegCaps

    if args.beside:
        raise CommandError("--routing draws one network: no --beside")
    if not isinstance(model, SegCaps) or model.num_classes == 1:
        _check_routes(model, directory)
    if args.routing >= len(dataset.test):
        raise CommandError(
            f"--routing must be one of {len(dataset.test)} test images from 0 on, got "
            f"{args.routing}"
        )
    draw = functools.partial(parts.draw, model, dataset, number=args.routing)
    return {"routing": draw}


def _routes(model):
    """Whether a model has `routing_coefficients` to draw."""
    from tf_capsops.layers.routed import Routed
    from tf_capsops.models import CapsNet, CapsuleClassifier

    if isinstance(model, CapsuleClassifier):
        return any(isinstance(layer, Routed) for layer in model.layers)
    return isinstance(model, CapsNet)


def _check_routes(model, directory):
    """Raises a CommandError if a model has no routing to draw."""
    if not _routes(model):
        raise CommandError(
            f"the {model.name} in {directory} has no routing to draw: give another "
            "network"
        )


def _beside(args, model, dataset, directory):
    """Returns the models to compare, by the names of their directories."""
    from tf_capsops.cli import networks

    models = {directory.name: model}
    _check_routes(model, directory)
    for target in args.beside:
        other, others_data, where = networks.open_model(
            target, args.data, skip_broken=args.skip_broken
        )
        _check_routes(other, where)
        runs.check_same(dataset, directory, others_data, where)
        if where.name in models:
            raise CommandError(
                f"--beside names networks by their directories, and {where.name} is "
                "there twice"
            )
        models[where.name] = other
    return models
