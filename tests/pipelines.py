# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""tf.data without the thread that tunes it.

The end of an iterator waits for that thread, which may miss that it is to end, and then
sleeps on: about as long as the iterator has lived, where that was left to the garbage
collector, and up to a minute.
"""

import tensorflow as tf

_applied = tf.data.Dataset._apply_debug_options  # by all that iterates


def _untuned(dataset):
    options = tf.data.Options()
    options.autotune.enabled = False
    return _applied(dataset.with_options(options))


def switch_tuning_off():
    """Switches it off for all data sets of this process."""
    tf.data.Dataset._apply_debug_options = _untuned
