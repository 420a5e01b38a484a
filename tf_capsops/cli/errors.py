# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The error that ends a command with one line instead of a traceback."""

import contextlib
import importlib.util

INTERRUPTED = 130  # the exit status after Ctrl-C, as shells have it

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
    except errors as error:
        raise CommandError(" ".join(str(error).split())) from error


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
