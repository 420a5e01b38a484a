# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Quantizes a trained model to weights of few bits, in steps with training in between.

This module has the options; `quantization` does the rest.
"""

from tf_capsops import options
from tf_capsops.cli import runs
from tf_capsops.errors import CommandError


def add_arguments(parser):
    """Adds the arguments of `tf-capsops quantize`."""
    options.add_run(parser, "what to train and evaluate on")
    parser.add_argument(
        "--bits",
        type=int,
        choices=range(2, 9),
        metavar="2..8",
        help="bits per weight (default: 5)",
    )
    for name, text in (
        ("activation", "inputs of layers and outputs of capsules, also in training"),
        ("routing", "the arrays of routing by agreement, in codes.keras"),
    ):
        parser.add_argument(
            f"--{name}-bits",
            type=int,
            choices=range(2, 9),
            metavar="2..8",
            help=f"bits of {text} (default: floating point)",
        )
    parser.add_argument(
        "--per-channel",
        action="store_const",
        const=True,
        help="give each output channel of a kernel its own code book, which helps with "
        "few bits",
    )
    parser.add_argument(
        "--straight-through",
        action="store_const",
        const=True,
        help="go on training after the last step, and let weights move from code to "
        "code; there is then one step by default. Helps with 3 bits and fewer",
    )
    parser.add_argument(
        "--steps",
        type=options.positive_float,
        nargs="+",
        metavar="FRACTION",
        help="the part of the weights that is quantized after each step, ending with 1 "
        "(default: 0.5 0.75 0.875 1, and more and smaller steps for 4 bits and "
        "fewer; 1 with --straight-through)",
    )
    parser.add_argument(
        "--epochs-per-step",
        type=options.positive_int,
        help="how often to train on every image in a step (default: a tenth of the "
        "epochs of the run, three tenths with --straight-through)",
    )
    rate = "the learning rate at the start of each step; it falls to zero by its end"
    trained = "as the run was trained, or"
    options.add_batches(parser, f"{trained} 128", rate, f"{trained} 0.001")
    options.add_seed(parser)
    options.add_nondeterministic(parser)
    options.add_output(parser, "quantize-DATA")
    options.add_resume(parser)


def check(args):
    """Checks what can be checked without TensorFlow; raises a CommandError."""
    if args.steps and args.steps[-1] != 1:
        raise CommandError(f"--steps must end with 1, got {args.steps[-1]:g}")
    if args.steps and args.steps != sorted(set(args.steps)):
        given = " ".join(f"{each:g}" for each in args.steps)
        raise CommandError(f"--steps must be fractions that rise, got {given}")
    runs.find(args.model)


def run(args):
    """Quantizes, saves and reports. Returns the exit status."""
    from tf_capsops.cli import quantization

    args.bits = args.bits or 5
    args.per_channel = bool(args.per_channel)
    args.straight_through = bool(args.straight_through)
    return quantization.run(args)
