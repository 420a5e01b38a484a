# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""NumPy float64 reference of routing by agreement.

Shapes: input [batch, in_caps, in_dim] (b i k), weights [in_caps, out_caps, out_dim,
in_dim] (i j d k), logits [in_caps, out_caps] (i j), output [batch, out_caps, out_dim].
"""

import numpy as np

from reference import capsule_prediction, squash


def forward(inputs, weights, logits, iterations, epsilon=1e-7):
    """Returns the output capsules after `iterations` computations of them."""
    predictions = capsule_prediction.forward(inputs, weights)
    logits = np.broadcast_to(np.asarray(logits, np.float64), predictions.shape[:3])
    for iteration in range(iterations):
        outputs = squash.forward(
            np.einsum("bij,bijd->bjd", _softmax(logits), predictions), epsilon=epsilon
        )
        if iteration + 1 < iterations:
            logits = logits + np.einsum("bijd,bjd->bij", predictions, outputs)
    return outputs


def _softmax(logits):
    """Softmax over the output capsules, the last axis."""
    exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)
