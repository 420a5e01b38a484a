# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Capsule-network operators for TensorFlow, with kernels for CPUs and GPUs."""

from tf_capsops import _break  # before all others

# A command of ours reads its arguments first, and imports the rest only if they are
# good, because importing TensorFlow takes seconds.
if not _break.IS_COMMAND:
    from tf_capsops._api import *  # noqa: F403
    from tf_capsops._api import __all__  # noqa: F401
