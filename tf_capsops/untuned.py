# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Data sets without the thread that tunes them."""

import tensorflow as tf


def untuned(data_set):
    """Returns a `tf.data.Dataset` that TensorFlow does not tune while it is read.

    At its end, an iterator waits for the thread that tunes it, which goes on sleeping:
    for 0.15 s on average after an epoch of MNIST, which is half the time that a GPU
    takes to train on it, and up to a minute after a long epoch (TensorFlow 2.21).
    Without tuning, `tf.data.AUTOTUNE` means as many threads as there are, up to 16.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return data_set.with_options(options)
