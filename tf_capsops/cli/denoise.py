# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Learns to denoise photographs with a different filter at every pixel.

It trains on one photograph and is tested on another, against a plain network of as many
parameters and against classic filters at their best. This module has the options;
`denoising` does the rest.
"""

from tf_capsops import options
from tf_capsops.errors import require

PHOTOGRAPHS = ("china", "flower")


def add_arguments(parser):
    """Adds the arguments of `tf-capsops denoise`."""
    parser.add_argument(
        "--train",
        choices=PHOTOGRAPHS,
        default=PHOTOGRAPHS[0],
        help="scikit-learn's photograph to train on; the other one is for testing "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--noise",
        type=options.positive_float,
        default=25.0,
        help="standard deviation of the Gaussian noise, for pixels from 0 to 255 "
        "(default: %(default)g)",
    )
    parser.add_argument(
        "--epochs",
        type=options.positive_int,
        default=45,
        help="how long to train each network, in epochs of 20 batches (default: "
        "%(default)s)",
    )
    options.add_seed(parser)
    options.add_output(parser, "denoise")


def check(args):
    """Checks what can be checked without TensorFlow; raises a CommandError."""
    require("matplotlib", "scipy", "sklearn")


def run(args):
    """Trains both networks, compares and draws. Returns the exit status."""
    from tf_capsops.cli import denoising

    return denoising.run(args)
