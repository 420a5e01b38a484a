# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The error that ends a command with one line instead of a traceback."""

import contextlib
import difflib
import importlib.util
import re
import shlex

# Exit statuses, as shells have them: after Ctrl-C, and when the output has no reader.
INTERRUPTED = 130
CLOSED = 141

# What TensorFlow adds to the text of an op's error in an eager call.
_NAMES_OF_OPS = re.compile(r"\{\{function_node \S+\}\} | \[Op:\w+\] name:.*")

# The optional packages, by the names that they are imported by.
_PACKAGES = {
    "matplotlib": "matplotlib",
    "rich": "rich",
    "scipy": "SciPy",
    "sklearn": "scikit-learn",
    "tensorboard": "TensorBoard",
}


class CommandError(Exception):
    """An argument, a file or the installation is at fault; the text says which."""


@contextlib.contextmanager
def reported(*errors):
    """Turns `errors` raised inside into a `CommandError` of the same text."""
    try:
        yield
    except BrokenPipeError:
        raise  # nobody reads the output, and `main` ends the command
    except errors as error:
        text = str(error)
        if isinstance(error, OSError) and error.filename:
            text = f"{error.filename}: {error.strerror}"
        text = _NAMES_OF_OPS.sub("", " ".join(text.split()))
        raise CommandError(text) from error


def quoted(path):
    """Returns a path as a shell takes it."""
    return shlex.quote(str(path))


def make_directory(path):
    """Makes a directory, with those above it, unless it is there already.

    Raises:
      CommandError: if that fails.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandError(
            f"cannot make the directory {path}: {error.strerror}"
        ) from error


def suggestion(word, known):
    """Returns the end of a message that asks for the most similar of the known words.

    It is empty if none is similar.
    """
    similar = difflib.get_close_matches(word, known, 1, 0.7)
    return f"; did you mean {similar[0]}?" if similar else ""


def require(*modules):
    """Checks that optional packages are installed, before work begins.

    Raises:
      CommandError: if one is not; the text says how to install it.
    """
    missing = [
        _PACKAGES[name] for name in modules if importlib.util.find_spec(name) is None
    ]
    if missing:
        raise CommandError(
            f"this needs {' and '.join(missing)}: run "
            "`pip install 'tf-capsops[demo]'`, or install "
            f"{'it' if len(missing) == 1 else 'them'} by hand"
        )
