# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Each of CapsuleMoments' CUDA kernels, forced by name."""

import numpy as np
import paths
import pytest
import tensorflow as tf
from descriptions import DTYPES
from descriptions.capsule_moments import OP, draw

import tf_capsops
from tf_capsops.ops.capsule_moments import NORMALIZATIONS


def _normalized(*names):
    return [f"{name}_{each}" for name in names for each in NORMALIZATIONS]


# All take poses of 4x4 and of 4x5, up to 32 parents, and all optional inputs.
_ALL = _normalized("matrices", "coordinates", "rows_of_warps", "equal_shares")
CASES = {
    "mma": _ALL,
    "general": [
        *(*_ALL, *_normalized("primes", "beyond", "empty_batch", "no_channels")),
        *("parents_33", "pose_2_17_6", "pose_1_1_7"),
    ],
}
REFUSALS = [
    ("primes_parents", "poses are not 4x4 or 4x5 and weights not of 4 columns"),
    ("no_parents_all", "out_channels is not from 1 to 32"),
    ("empty_batch_none", "there are no votes"),
]
OPS = "CapsuleMoments", "CapsuleMomentsGrad"


def _runs(kernel):
    narrow = [dtype for dtype in DTYPES if dtype != tf.float64]
    return paths.runs(
        dict.fromkeys(OPS, kernel),
        CASES[kernel],
        DTYPES if kernel == "general" else narrow,
        float32=(False, True) if kernel == "mma" else (False,),
    )


if paths.WITH_GPU:
    RUNS = [run for kernel in CASES for run in _runs(kernel)]

    @paths.every([*RUNS, *paths.planned_for_others(_runs("mma"))])
    def test_forced(run):
        paths.assert_close(OP, run)

    @pytest.mark.parametrize("normalize", NORMALIZATIONS)
    def test_samples_of_several_rounds(normalize):
        """A batch of 96, which takes several rounds, next to 24 batches of 4."""
        named = draw(
            tf.float32,
            {
                "poses": (96, 8, 8, 32, 4, 4),
                "activations": (96, 8, 8, 32),
                "weights": (3, 3, 32, 32, 4, 4),
                "bias": (96, 6, 6, 32),
                "precision": (96, 6, 6, 32, 4, 4),
            },
        )
        shared = {"weights": named.pop("weights")}

        def results(start, stop):
            part = {name: array[start:stop] for name, array in named.items()} | shared
            with tf.GradientTape() as tape:
                tape.watch(part)
                moments = tf_capsops.capsule_moments(
                    **part, order=2, normalize=normalize
                )
            grads = tape.gradient(moments, part)
            return [*moments, *(grads[name] for name in named)], grads["weights"]

        parts = [results(i, i + 4) for i in range(0, 96, 4)]
        each, weights = results(0, 96)
        expected = [tf.concat(samples, 0) for samples in zip(*[p[0] for p in parts])]
        expected.append(tf.add_n([part[1] for part in parts]))
        for found, wanted in zip([*each, weights], expected, strict=True):
            scale = tf.reduce_max(tf.abs(wanted))
            np.testing.assert_allclose(found / scale, wanted / scale, atol=1e-5)

    @pytest.mark.parametrize("op", OPS)
    @pytest.mark.parametrize("name, why", REFUSALS)
    def test_a_forced_kernel_says_why_it_cannot(op, name, why):
        paths.assert_refused(OP, op, "mma", name, tf.float32, why)
