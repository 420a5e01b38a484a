# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The command line: `python -m tf_capsops`, installed as `tf-capsops`."""

import argparse
import sys

from tf_capsops._version import __version__
from tf_capsops.cli import denoise, evaluate, info, quantize, reconstruct, train
from tf_capsops.cli.errors import CommandError

_COMMANDS = {
    "train": train,
    "evaluate": evaluate,
    "reconstruct": reconstruct,
    "denoise": denoise,
    "quantize": quantize,
    "info": info,
}


def main(argv=None):
    """Runs one command.

    Args:
      argv: its arguments, without the program's name; None for those of the process.

    Returns:
      The exit status: 0, 1 where `info` finds no usable library, or 2 where an argument
      or a file is at fault, after one line that says so.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    if argv[:1] == ["bench"]:
        # bench parses its own arguments, -h included.
        from tf_capsops.bench import main as bench

        return bench(argv[1:])
    parser = _parser()
    try:
        args = parser.parse_args(argv)
    except SystemExit as stop:
        return stop.code
    if args.command is None:
        parser.print_help()
        return 0
    try:
        return _COMMANDS[args.command].run(args)
    except CommandError as error:
        print(f"tf-capsops {args.command}: error: {error}", file=sys.stderr)
        return 2


def _parser():
    parser = argparse.ArgumentParser(
        prog="tf-capsops", description="Capsule networks in TensorFlow."
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, module in _COMMANDS.items():
        summary = module.__doc__.splitlines()[0]
        command = commands.add_parser(name, help=summary, description=summary)
        module.add_arguments(command)
    commands.add_parser("bench", help="Times the operators against plain TensorFlow.")
    return parser


if __name__ == "__main__":
    sys.exit(main())
