# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""`tf-capsops train` by the recipe of a quantized network: trains, then quantizes."""

import argparse
import pathlib

from tf_capsops import options
from tf_capsops.cli import quantize, resume, runs, train
from tf_capsops.errors import CommandError
from tf_capsops.experiments import recipes


def check(args):
    """Checks what can be checked without TensorFlow; raises a CommandError."""
    taken = {"recipe", "data", "seed", "nondeterministic", "output"}
    reason = f"{args.recipe} quantizes {recipes.find(args.recipe).trained}"
    more = ", which `tf-capsops quantize` may have"
    options.refuse_all_but(taken, args, reason, more)
    train.check(args)


def run(args):
    """Quantizes a network by a recipe, after training it unless a run has done so.

    A stopped training is resumed. The quantization always begins anew; use `--resume`
    to go on with a stopped one.

    Raises:
      CommandError: if another process is training the network.
    """
    from tf_capsops.experiments import results

    recipe, seed = recipes.find(args.recipe), args.seed or 0
    root = runs.ROOT if args.output is None else pathlib.Path(args.output).parent
    trained = root, recipe.trained, seed
    source = results.finished(*trained)
    if source is None:
        running, stopped = results.running(*trained), results.stopped(*trained)
        if running is not None:
            raise CommandError(f"another process is training {running}")
        if stopped is not None:
            status = resume.run(argparse.Namespace(resume=stopped))
        else:
            output = None if args.output is None else f"{args.output}-before"
            other = {"recipe": recipe.trained, "output": output}
            status = train.run(argparse.Namespace(**{**vars(args), **other}))
        if status:
            return status
        source = results.finished(*trained)
    parser = options.Parser()
    quantize.add_arguments(parser)
    given = [source, "--bits", recipe.bits]
    given += ["--output", args.output or runs.ROOT / args.recipe]
    given += [] if args.seed is None else ["--seed", args.seed]
    given += ["--nondeterministic"] if args.nondeterministic else []
    for name in recipes.QUANTIZED_WITH:
        value, option = getattr(recipe, name), f"--{name.replace('_', '-')}"
        given += [option] if value is True else [option, value] if value else []
    return quantize.run(parser.parse_args([*map(str, given)]))
