# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The error that ends a command with one line instead of a traceback."""

import contextlib


class CommandError(Exception):
    """An argument, a file or the installation is at fault; the text says which."""


@contextlib.contextmanager
def reported(*errors):
    """Turns `errors` raised inside into a `CommandError` of the same text."""
    try:
        yield
    except errors as error:
        raise CommandError(" ".join(str(error).split())) from error
