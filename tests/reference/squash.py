# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""NumPy float64 reference of squash: equation 1 of Sabour et al. (2017)."""

import numpy as np


def forward(vectors, axis=-1, epsilon=1e-7):
    """Returns `s |s|^2 / (1 + |s|^2) / sqrt(|s|^2 + epsilon)`."""
    vectors = np.asarray(vectors, np.float64)
    squared = np.sum(vectors**2, axis=axis, keepdims=True)
    return vectors * squared / (1 + squared) / np.sqrt(squared + epsilon)


def backward(grad, vectors, axis=-1, epsilon=1e-7):
    """Returns the gradient of `sum(grad * forward(vectors))` by vectors."""
    vectors = np.asarray(vectors, np.float64)
    squared = np.sum(vectors**2, axis=axis, keepdims=True)
    root = np.sqrt(squared + epsilon)
    scale = squared / (1 + squared) / root
    by_squared = 1 / (1 + squared) ** 2 / root - scale / (2 * (squared + epsilon))
    agreement = np.sum(grad * vectors, axis=axis, keepdims=True)
    return scale * grad + 2 * by_squared * agreement * vectors
