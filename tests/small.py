# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""A capsule network that takes little time, for tests of what is done with it."""

from tf_capsops import models

_SIZES = {
    "filters": 4,
    "kernel_size": 3,
    "primary_channels": 2,
    "primary_kernel_size": 3,
    "decoder_units": (8,),
}


def capsnet(shape=(8, 8, 1), classes=3, **changes):
    """Returns a CapsNet of few parameters; changes are arguments of its own."""
    return models.capsnet(shape, classes, **{**_SIZES, **changes})
