# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The command line: `python -m tf_capsops`, installed as `tf-capsops`.

A command is a module with four parts:

* the first line of its docstring is its help;
* `add_arguments(parser)` declares its options;
* `check(args)` raises a `CommandError` for wrong arguments. Like `add_arguments`, it
  does without TensorFlow, which takes seconds to import;
* `run(args)` does the work and returns the exit status.
"""

import errno
import os
import sys

import tf_capsops
from tf_capsops import _break, options
from tf_capsops._version import __version__
from tf_capsops.bench import options as bench
from tf_capsops.cli import (
    attack,
    denoise,
    evaluate,
    info,
    predict,
    quantize,
    reconstruct,
    resume,
    train,
)
from tf_capsops.errors import CLOSED, INTERRUPTED, CommandError, reported
from tf_capsops.experiments import quantized, recipes, report

_FULL = errno.ENOSPC, errno.EDQUOT, errno.EIO  # errors of a full or failed disk
_COMMANDS = {
    "train": train,
    "evaluate": evaluate,
    "predict": predict,
    "reconstruct": reconstruct,
    "attack": attack,
    "denoise": denoise,
    "quantize": quantize,
    "report": report,
    "bench": bench,
    "info": info,
}


def main(argv=None):
    """Runs one command.

    Args:
      argv: its arguments, without the program's name; None for those of the process.

    Returns:
      The exit status:

      * 0 if all went well;
      * 1 if `info` finds no usable library, or `report` or `bench` did not do all;
      * 2 if an argument or a file is at fault, or the disk or the memory is full; one
        line says so;
      * 130 after Ctrl-C;
      * 141 if nobody reads the output any more.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    try:
        status = _run(argv)
        if sys.stdout is not None:  # it is None if it is closed
            sys.stdout.flush()
        return status
    except BrokenPipeError:
        _drop_output()
        return CLOSED
    except OSError as error:
        if error.filename is not None or error.errno not in _FULL:
            raise
        _drop_output()
        name = argv[0] if argv else "--help"
        print(f"tf-capsops {name}: error: {error.strerror}", file=sys.stderr)
        return 2


def _drop_output():
    """Drops unwritten output, about which Python would complain when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(argv):
    """Runs one command, and returns the exit status."""
    try:
        parser = make_parser()
        args = parser.parse_args(argv)
        if args.command is None:
            parser.print_help()
            return 0
        args.command_line = argv[1:]
        command = _module(args)
        command.check(args)
        with reported(ImportError):  # TensorFlow is missing
            from tf_capsops import _api
        # Code that comes with a model finds the package as in any other process.
        vars(tf_capsops).update({name: getattr(_api, name) for name in _api.__all__})
        _break.imports_are_done()
        return command.run(args)
    except SystemExit as stop:  # argparse: a mistake, or --help
        return stop.code
    except KeyboardInterrupt:
        print(f"tf-capsops {argv[0]}: stopped", file=sys.stderr)
        return INTERRUPTED
    except CommandError as error:
        print(f"tf-capsops {argv[0]}: error: {error}", file=sys.stderr)
        return 2
    except Exception as error:
        if not _is_out_of_memory(error):
            raise
        said = "out of memory: smaller images or smaller batches need less"
        print(f"tf-capsops {argv[0]}: error: {said}", file=sys.stderr)
        return 2


def _is_out_of_memory(error):
    """Whether Python, TensorFlow or XLA found no memory for an array."""
    parts = "OOM when allocating", "ut of memory"
    return isinstance(error, MemoryError) or any(part in str(error) for part in parts)


def _module(args):
    """Returns the module of a command; two kinds of training have their own."""
    if args.command in ("train", "quantize") and args.resume:
        return resume
    if args.command == "train" and args.recipe and recipes.find(args.recipe).bits:
        return quantized
    return _COMMANDS[args.command]


def make_parser():
    """Returns the parser of the whole command line."""
    parser = options.Parser(
        prog="tf-capsops", description="Capsule networks in TensorFlow."
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, module in _COMMANDS.items():
        summary = module.__doc__.splitlines()[0]
        command = commands.add_parser(name, help=summary, description=summary)
        command.register("type", None, options.not_empty)
        module.add_arguments(command)
    return parser


if __name__ == "__main__":
    sys.exit(main())
