# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The command line's parser, types of its options, and options of several commands.

Commands declare their options before TensorFlow is imported, which takes seconds, so
that help and mistakes do not wait for it: nothing here may import it.
"""

import argparse
import contextlib
import math
import pathlib
import re

from tf_capsops.errors import CommandError, suggestion


class Parser(argparse.ArgumentParser):
    """A parser that suggests the option or choice of the most similar name.

    It reports a mistake in one line, and points to --help in a second.
    """

    def parse_known_args(self, args=None, namespace=None):
        namespace, rest = super().parse_known_args(args, namespace)
        if rest:  # or the main parser reports them, without the command's name
            # The usage shows -h instead of --help.
            options = ["--help", *re.findall(r"--[\w-]+", self.format_usage())]
            wrong = (each.partition("=")[0] for each in rest if each.startswith("-"))
            hints = (suggestion(each, options) for each in wrong)
            hint = next(filter(None, hints), "")
            self.error(f"unrecognized arguments: {' '.join(rest)}{hint}")
        return namespace, rest

    def _print_message(self, message, file=None):
        # argparse would hide the error if nobody reads a help longer than a buffer.
        if message and file is not None:
            file.write(message)

    def error(self, message):
        found = re.search(r"invalid choice: '(.*)' \(choose from (.*)\)", message)
        if found:
            choices = [each.strip("'") for each in found[2].split(", ")]
            message += suggestion(found[1], choices)
        lists = f"`{self.prog} --help` lists the options"
        self.exit(2, f"{self.prog}: error: {message}\n{lists}\n")


def int_from(smallest, end=math.inf):
    """A type of integers of at least `smallest` and below `end`, and of 32 bits."""
    form = f">= {smallest}" if end == math.inf else f"from {smallest} to {end - 1}"
    return _type(_int32, lambda value: smallest <= value < end, f"an integer {form}")


def _int32(text):
    value = int(text)
    if value >= 2**31:  # TensorFlow's own errors about larger ones name no option
        raise argparse.ArgumentTypeError(f"must be at most {2**31 - 1}, got {text!r}")
    return value


def _type(convert, is_good, form):
    def parse(text):
        with contextlib.suppress(ValueError):
            value = convert(text)
            if is_good(value):
                return value
        raise argparse.ArgumentTypeError(f"must be {form}, got {text!r}")

    return parse


def not_empty(text):
    """The type of every argument that names no other: texts, most of them paths."""
    if not text:  # as from an unset variable of a shell
        raise argparse.ArgumentTypeError("must not be empty")
    return text


def path(text):
    """The type of paths, as a `pathlib.Path`."""
    return pathlib.Path(not_empty(text))


positive_int = int_from(1)
seed = int_from(0, 2**31)
float_from_zero = _type(float, lambda value: 0 <= value < math.inf, "a number >= 0")
positive_float = _type(float, lambda value: 0 < value < math.inf, "a number > 0")
share = _type(float, lambda value: 0 < value < 1, "a number between 0 and 1")


DATA = (
    "digits, mnist, fashion_mnist, cifar10, an .npz file, a folder of pictures with a "
    "folder for each class, or with images/ and masks/ (pictures, or NIfTI volumes), "
    "or a folder of idx files; or "
    "multimnist, affine_mnist, shifted_mnist, segmented_mnist or moving_mnist, made "
    "from mnist, or from other digits, as in multimnist:FILE.npz"
)


def add_run(parser, use):
    """Adds a trained model, and the data to use it on."""
    parser.add_argument(
        "model",
        metavar="RUN_OR_MODEL",
        nargs="?",
        help="a run's directory or a .keras file (default: the newest in runs/)",
    )
    parser.add_argument(
        "--data",
        metavar="NAME|FILE.npz|FOLDER",
        help=f"{use}: {DATA} (default: the data of the run)",
    )
    add_skip_broken(parser)


def add_skip_broken(parser):
    """Adds the option to leave out files that are no pictures."""
    parser.add_argument(
        "--skip-broken",
        action="store_const",
        const=True,
        help="leave out files in a folder that are not pictures or are damaged, and "
        "say how many (default: refuse the folder)",
    )


def add_batches(parser, batch_size, rate, learning_rate):
    """Adds the size of batches and the learning rate.

    Args:
      parser: a parser or a group of one.
      batch_size, learning_rate: their defaults, in words.
      rate: which learning rate the option sets, in words.
    """
    parser.add_argument(
        "--batch-size",
        type=positive_int,
        help=f"images in a training batch (default: {batch_size})",
    )
    parser.add_argument(
        "--learning-rate",
        type=positive_float,
        help=f"{rate} (default: {learning_rate})",
    )


def add_seed(parser):
    """Adds the seed that `networks.seed_everything` takes."""
    parser.add_argument(
        "--seed",
        type=seed,
        help="seed of every random choice; giving one also selects deterministic "
        "kernels, so that the run can be repeated exactly (default: 0, and the "
        "fastest kernels)",
    )


def add_nondeterministic(parser):
    """Adds the option to use the fastest kernels even with a seed."""
    parser.add_argument(
        "--nondeterministic",
        action="store_const",
        const=True,
        help="use the fastest kernels, and XLA on a GPU, even with a seed; repeated "
        "runs then differ by rounding",
    )


def add_output(parser, default):
    """Adds the directory that `runs.create` makes."""
    parser.add_argument(
        "--output",
        metavar="runs/NAME",
        help="a new directory; if it exists, a number is added to its name (default: "
        f"runs/{default})",
    )


def add_resume(parser):
    """Adds the run that `resume` goes on with."""
    parser.add_argument(
        "--resume",
        metavar="RUN",
        help="continue a run that was stopped or killed, with its own options; RUN is "
        "its directory",
    )


def refuse_all_but(taken, args, reason, more=""):
    """Checks that no options are given but those that can be used.

    Args:
      taken: the names of the options that can be used.
      args: the parsed arguments; options that are not given are None.
      reason, more: the beginning and the end of the message.

    Raises:
      CommandError: if another one is given, which the message names.
    """
    for name, value in vars(args).items():
        if value is not None and name not in {"command", "command_line", *taken}:
            raise CommandError(f"{reason}: no --{name.replace('_', '-')}{more}")
