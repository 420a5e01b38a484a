# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Reports files that have disappeared since a data set was opened."""

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
    """Turns TensorFlow's error about a lost picture or volume into a `CommandError`.

    Args:
      then: what to do once the file is back, as the end of the message.
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
