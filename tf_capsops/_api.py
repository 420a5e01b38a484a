# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The public names of the package, and the registration of its ops."""

import contextlib

from tf_capsops import (
    _console,  # noqa: F401, before TensorFlow
    _library,
    inq,
    layers,
    losses,
    metrics,
    models,
    routing,
)
from tf_capsops._library import library_path
from tf_capsops._portable import portable
from tf_capsops._version import __version__
from tf_capsops.ops.capsule_conv import capsule_conv2d, capsule_conv2d_bias_relu
from tf_capsops.ops.capsule_conv_nd import (
    capsule_conv1d,
    capsule_conv2d_transpose,
    capsule_conv3d,
    capsule_conv3d_transpose,
)
from tf_capsops.ops.capsule_conv_routing import capsule_conv_routing
from tf_capsops.ops.capsule_moments import capsule_moments, moment_shares
from tf_capsops.ops.capsule_prediction import capsule_prediction
from tf_capsops.ops.capsule_routing import capsule_routing, routing_coefficients
from tf_capsops.ops.high_order_conv import high_order_conv2d
from tf_capsops.ops.inq_conv import inq_conv2d
from tf_capsops.ops.inq_conv_int8 import inq_conv2d_int8
from tf_capsops.ops.squash import squash

__all__ = [
    "__version__",
    "capsule_conv1d",
    "capsule_conv2d",
    "capsule_conv2d_bias_relu",
    "capsule_conv2d_transpose",
    "capsule_conv3d",
    "capsule_conv3d_transpose",
    "capsule_conv_routing",
    "capsule_moments",
    "capsule_prediction",
    "capsule_routing",
    "high_order_conv2d",
    "inq",
    "inq_conv2d",
    "inq_conv2d_int8",
    "layers",
    "library_path",
    "losses",
    "metrics",
    "models",
    "moment_shares",
    "portable",
    "routing",
    "routing_coefficients",
    "squash",
]

# Registers the ops, so that a SavedModel with these ops loads. Without a usable library
# the rest of the package still works, and every op says what is wrong.
with contextlib.suppress(ImportError):
    _library.load()
