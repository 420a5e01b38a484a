# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Names files that were there when a data set was opened, and are gone later."""

import contextlib
import re

import tensorflow as tf

from tf_capsops.data import volumes
from tf_capsops.errors import CommandError

# A path comes after the name of an iterator, of a function, or of both.
_MISSING = re.compile(
    r"(?:Iterator::\S+: |\}\} (?!Error))(?:\{\{.*?\}\} )?(.*?); No such file"
)


@contextlib.contextmanager
def reported(then):
    """Turns what TensorFlow says of a lost picture or volume into a `CommandError`.

    Args:
      then: what to do when the file is there again.
    """
    try:
        yield
    except tf.errors.NotFoundError as error:
        found = _MISSING.search(error.message)
        if not found:
            raise
        raise CommandError(
            f"a picture is gone: {found[1]}; put it back, {then}"
        ) from error
    except tf.errors.InvalidArgumentError as error:
        fault = volumes.fault(error)
        if not fault:
            raise
        raise CommandError(
            f"a volume is gone or damaged: {fault}; put it back, {then}"
        ) from error
