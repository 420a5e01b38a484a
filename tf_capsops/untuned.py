# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Data sets without the thread that tunes them."""

import tensorflow as tf


def untuned(data_set):
    """Returns a `tf.data.Dataset` that TensorFlow does not tune while it is read.

    The end of an iterator waits for the thread that tunes it, which sleeps on: for 0.15
    s on average at the end of an epoch of MNIST, half of what a GPU takes to train on
    it, and up to a minute after a long one (TensorFlow 2.21). `tf.data.AUTOTUNE` then
    means as many threads as there are, up to 16.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return data_set.with_options(options)
