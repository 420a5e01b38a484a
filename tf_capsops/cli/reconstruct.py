# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Draws pictures of a capsnet as PNG files.

They show reconstructions, perturbations of each dimension of a capsule, and routing
coefficients.
"""

import functools
import pathlib

from tf_capsops.cli import arguments
from tf_capsops.cli.errors import CommandError, reported, require


def add_arguments(parser):
    """Adds the arguments of `tf-capsops reconstruct`."""
    arguments.add_run(parser, "whose test images to draw")
    parser.add_argument(
        "--output",
        metavar="DIRECTORY",
        help="where the files go; existing ones are kept (default: beside the model)",
    )
    parser.add_argument(
        "--images",
        type=arguments.positive_int,
        default=40,
        help="test images in reconstructions.png (default: %(default)s)",
    )


def run(args):
    """Draws the figures. Returns the exit status."""
    require("matplotlib")
    from tf_capsops.cli import figures, runs
    from tf_capsops.models import CapsNet

    model, dataset, directory = runs.open_model(args.model, args.data)
    if not isinstance(model, CapsNet):
        raise CommandError(
            f"the {model.name} in {directory} has no decoder to reconstruct images: "
            "give a capsnet"
        )
    output = pathlib.Path(args.output) if args.output else directory
    reconstructions = functools.partial(figures.reconstructions, count=args.images)
    with reported(OSError):
        output.mkdir(parents=True, exist_ok=True)
        for stem, draw in (
            ("reconstructions", reconstructions),
            ("perturbations", figures.perturbations),
            ("coefficients", figures.coefficients),
        ):
            partial = output / f"partial-{stem}.png"
            draw(model, dataset, partial)
            print(_keep(partial, output, stem))
    return 0


def _keep(partial, directory, stem):
    """Names a picture `stem`.png, with a number where another one has that name.

    Returns:
      What was done. A picture that is there already is not kept twice.
    """
    number = 1
    while True:
        name = f"{stem}.png" if number == 1 else f"{stem}-{number}.png"
        path = directory / name
        if not path.exists():
            partial.rename(path)
            return f"wrote {path}"
        if path.read_bytes() == partial.read_bytes():
            partial.unlink()
            return f"{path} is there already"
        number += 1
