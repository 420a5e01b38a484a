# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The command line: `python -m tf_capsops`, installed as `tf-capsops`."""

import os
import sys

from tf_capsops import _break
from tf_capsops._version import __version__
from tf_capsops.cli import (
    arguments,
    denoise,
    evaluate,
    info,
    predict,
    quantize,
    reconstruct,
    report,
    train,
)
from tf_capsops.cli.errors import CLOSED, INTERRUPTED, CommandError, require

_COMMANDS = {
    "train": train,
    "evaluate": evaluate,
    "predict": predict,
    "reconstruct": reconstruct,
    "denoise": denoise,
    "quantize": quantize,
    "report": report,
    "info": info,
}


def main(argv=None):
    """Runs one command.

    Args:
      argv: its arguments, without the program's name; None for those of the process.

    Returns:
      The exit status: 0, 1 where `info` finds no usable library, 2 where an argument or
      a file is at fault, after one line that says so, 130 after Ctrl-C, or 141 where
      nobody reads the output any more.
    """
    _break.imports_are_done()
    argv = list(sys.argv[1:] if argv is None else argv)
    try:
        status = _run(argv)
        if sys.stdout is not None:  # closed
            sys.stdout.flush()
        return status
    except BrokenPipeError:
        # Python would complain when it flushes the rest at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CLOSED


def _run(argv):
    """Runs one command, and returns the exit status."""
    try:
        if argv[:1] == ["bench"]:
            return _bench(argv[1:])
        parser = _parser()
        args = parser.parse_args(argv)
        if args.command is None:
            parser.print_help()
            return 0
        return _COMMANDS[args.command].run(args)
    except SystemExit as stop:  # argparse: a mistake, or --help
        return stop.code
    except KeyboardInterrupt:
        print(f"tf-capsops {argv[0]}: stopped", file=sys.stderr)
        return INTERRUPTED
    except CommandError as error:
        print(f"tf-capsops {argv[0]}: error: {error}", file=sys.stderr)
        return 2


def _bench(argv):
    """Runs `tf-capsops bench`, which parses its own arguments, -h included."""
    require("matplotlib", "rich")
    from tf_capsops.bench import main as bench

    return bench(argv)


def _parser():
    parser = arguments.Parser(
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
