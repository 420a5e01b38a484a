# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""tf.data without what costs more than the small data sets of tests."""

import tensorflow as tf

_applied = tf.data.Dataset._apply_debug_options  # by all that iterates


def _untuned(dataset):
    options = tf.data.Options()
    options.autotune.enabled = False
    return _applied(dataset.with_options(options))


def switch_tuning_off():
    """Switches off the thread that tunes each iterator, in this process.

    The end of an iterator waits for that thread, which may miss that it is to end, and
    then sleeps on: about as long as the iterator has lived, where that was left to the
    garbage collector, and up to a minute.
    """
    tf.data.Dataset._apply_debug_options = _untuned


def switch_optimizing_off():
    """Starts TensorFlow so that it does not optimize the functions of data sets.

    It would do so anew for each iterator, which takes three times as long as the rest.
    Other functions are optimized as ever.
    """
    option = "disable_meta_optimizer"
    tf.config.optimizer.set_experimental_options({option: True})
    tf.config.list_logical_devices()  # starts it
    tf.config.optimizer.set_experimental_options({option: False})
