# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the server of `fresh` imports before it forks.

No device is used here: CUDA does not survive a fork.
"""

import pathlib
import runpy

_console = pathlib.Path(__file__).parents[1] / "tf_capsops" / "_console.py"
with runpy.run_path(str(_console))["_without_log_lines"]():
    import keras
    import tensorflow

IMPORTED = keras, tensorflow
