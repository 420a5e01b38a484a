# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Times the operators against plain TensorFlow, all in one run."""

from __future__ import annotations

import argparse
import pathlib

from tf_capsops import options
from tf_capsops.bench import cases
from tf_capsops.errors import CommandError, require

DEVICES = ("CPU", "GPU")
DTYPES = ("float32", "float64", "float16", "bfloat16")
DIRECTIONS = ("forward", "forward+backward")
# The names in `networks.NETWORKS` and `layers.LAYERS`, which import TensorFlow.
NETWORKS = (
    *("capsnet", "p_capsnet", "p_capsnet-chen", "efficient_capsnet"),
    *("matrix_capsnet", "deepcaps", "segcaps", "ucaps3d", "unet", "denoiser"),
)
LAYERS = (
    *("Conv2D", "Conv3D", "PrimaryCaps", "DigitCaps", "Length", "Mask", "FakeQuant"),
    *("CapsuleConv1D", "CapsuleConv2D", "CapsuleConv3D"),
    *("CapsuleConv2DTranspose", "CapsuleConv3DTranspose"),
    *("SlimCaps1D", "SlimCaps2D", "SlimCaps3D"),
    *("SlimCaps2DTranspose", "SlimCaps3DTranspose"),
    *("PoseCaps", "ConvCaps2D", "ConvCaps1D", "ConvCaps3D", "ClassCaps", "DenseCaps"),
    *("HighOrderConv2D", "HighOrderConv1D"),
    *("InqConv2D", "InqDepthwiseConv2D", "InqDense"),
    *("InqConv1D", "InqConv3D", "InqConv2DTranspose", "InqConv3DTranspose"),
)


def add_shared(parser: argparse.ArgumentParser, output: str, files: str) -> None:
    """Adds the options that `tf-capsops bench` shares with the papers' benchmarks.

    Args:
        output: The default directory for files.
        files: The files that go there, in words.
    """
    parser.add_argument(
        "--device",
        choices=DEVICES,
        nargs="+",
        help="kinds of devices to measure on (default: all that TensorFlow sees)",
    )
    parser.add_argument(
        "--repeat",
        type=options.int_from(2),
        default=15,
        metavar="N",
        help="samples of each method, at least 2 (default: %(default)s)",
    )
    parser.add_argument(
        "--tf32",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="allow TensorFloat-32 on a GPU, as TensorFlow does unless told otherwise",
    )
    parser.add_argument(
        "--output",
        type=options.path,
        default=pathlib.Path(output),
        metavar="DIRECTORY",
        help=f"where {files} go (default: %(default)s)",
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `tf-capsops bench`."""
    add_shared(parser, "runs/bench", "bench.json and bench.png")
    parser.add_argument(
        "--suite",
        choices=cases.BENCH_SUITES,
        nargs="+",
        default=[cases.ANCHORS],
        help="ops at the sizes of the speed claims (anchors), of layers of published "
        "networks, or at tiny ones that only show that the benchmark works (smoke); "
        "whole training steps of networks, or of tiny ones; every layer, or tiny ones "
        "(default: anchors)",
    )
    parser.add_argument(
        "--op",
        choices=cases.ops(),
        nargs="+",
        default=cases.ops(),
        help="the operators to time (default: all)",
    )
    parser.add_argument(
        "--dtype",
        choices=DTYPES,
        nargs="+",
        default=["float32"],
        help="types to compute in (default: float32)",
    )
    parser.add_argument(
        "--rivals",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="measure rivals, too",
    )
    parser.add_argument(
        "--torch-python",
        metavar="PYTHON",
        help="the Python that has PyTorch, if it is not the one that runs this",
    )
    parser.add_argument(
        "--compile-limit",
        type=options.positive_int,
        default=120,
        metavar="SECONDS",
        help="how long torch.compile may take for a method before it is left out "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--against",
        type=options.path,
        metavar="BENCH_JSON",
        help="compare with an earlier bench.json, and mark what has become slower",
    )
    parser.add_argument(
        "--threads",
        type=options.positive_int,
        nargs="+",
        metavar="N",
        help="threads on the CPU, which run one operation after the other, and no GPU "
        "(default: all cores); of several numbers, each is measured in a process of "
        "its own, and a table compares them",
    )
    group = parser.add_argument_group(f"training steps (--suite {cases.TRAINING})")
    group.add_argument(
        "--model",
        choices=NETWORKS,
        nargs="+",
        default=list(NETWORKS),
        help="the networks to train (default: all)",
    )
    group.add_argument(
        "--jit",
        choices=["off", "on"],
        nargs="+",
        default=["off", "on"],
        help="without and with XLA (default: both)",
    )
    group.add_argument(
        "--steps-per-execution",
        type=options.positive_int,
        nargs="+",
        default=[1, 20],
        metavar="N",
        help="batches that Keras trains on at a time (default: 1 20)",
    )
    group.add_argument(
        "--untuned",
        action="store_true",
        help="also time `fit`, on a data set and on arrays, where `compile` is told "
        "nothing of XLA and steps",
    )
    group.add_argument(
        "--batch-size",
        type=options.positive_int,
        nargs="+",
        metavar="N",
        help="images in a batch, also of layers (default: the network's usual batch)",
    )
    group.add_argument(
        "--image-size",
        type=options.positive_int,
        nargs="+",
        metavar="PIXELS",
        help="the sides of an image or volume, or one number if they are the same "
        "(default: the network's usual sizes)",
    )
    group.add_argument(
        "--gpus",
        type=options.positive_int,
        nargs="+",
        default=[1],
        metavar="N",
        help="GPUs that share each batch, by MirroredStrategy (default: 1)",
    )
    group.add_argument(
        "--start-up",
        action="store_true",
        help="also take the first step of each method in a process of its own, and say "
        "how long its parts take",
    )
    group = parser.add_argument_group(f"layers (--suite {cases.LAYERS})")
    group.add_argument(
        "--layer",
        choices=LAYERS,
        nargs="+",
        default=list(LAYERS),
        help="the layers to time (default: all)",
    )
    group.add_argument(
        "--direction",
        choices=DIRECTIONS,
        nargs="+",
        default=list(DIRECTIONS),
        help="without and with the gradients (default: both)",
    )
    group.add_argument(
        "--bits",
        type=int,
        choices=range(2, 9),
        help="also time each layer with its weights in codes of so many bits",
    )


def check(args: argparse.Namespace) -> None:
    """Checks what can be checked without TensorFlow.

    Raises:
        CommandError: Options do not go together, or a package is missing.
    """
    require("matplotlib", "rich")
    if len(args.threads or []) > 1 and args.against:
        raise CommandError("--against compares with one number of --threads")


def run(args: argparse.Namespace) -> int:
    """Measures and reports. Returns the exit status."""
    from tf_capsops.bench import command

    return command.run(args)
