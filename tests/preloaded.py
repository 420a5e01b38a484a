# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the server of `fresh` imports before it forks.

No device is used here: CUDA does not survive a fork.
"""

import gc

import quiet

with quiet.no_stderr():
    import keras
    import tensorflow

import pipelines

IMPORTED = keras, tensorflow
pipelines.switch_tuning_off()

# Its forks need not look at a million objects of TensorFlow for garbage, nor copy them.
gc.collect()
gc.freeze()
gc.set_threshold(50_000, 20, 100)
