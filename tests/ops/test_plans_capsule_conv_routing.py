# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The kernels and workspaces of CapsuleConvRouting on GPUs, planned on a CPU."""

import numpy as np
import pytest
import tensorflow as tf
from gpus import GPUS, plans
from registrations import bare

from tf_capsops import _library

OPS = "CapsuleConvRouting", "CapsuleConvRoutingGrad"
MOST = 64 << 20  # bytes of a workspace, unless the votes of a row have more


def _compute(image, kernel, sizes, dtype=tf.float32, per_type=False, **attributes):
    types, in_dim, parents, out_dim = sizes
    matrices = (types,) * per_type + (in_dim, parents, out_dim)
    inputs = [
        tf.zeros(shape, dtype)
        for shape in (
            (1, *image, types, in_dim),
            (*kernel, *matrices),
            (parents, out_dim),
            (types, parents),
        )
    ]
    window = {"strides": [1] * len(image), "padding": "SAME", "iterations": 1}
    attributes = {**window, "dilations": [1] * len(image), **attributes}
    output = bare().capsule_conv_routing(*inputs, **attributes)
    bare().capsule_conv_routing_grad(output, *inputs, **attributes)


if _library.build_info()["cuda"]:

    @pytest.mark.parametrize("tf32", [False, True])
    @pytest.mark.parametrize("capability", GPUS)
    @pytest.mark.parametrize(
        "image, kernel, sizes, attributes",
        [
            # Votes of 134 MB, of images, of a volume, and twice their size.
            ((64, 64), (1, 1), (8, 1, 32, 32), {}),
            ((64, 64), (1, 2), (8, 1, 32, 32), {"transposed": True}),
            ((16, 16, 16), (3, 1, 1), (8, 1, 32, 32), {}),
            ((16, 16, 16), (2, 1, 1), (8, 1, 32, 32), {"transposed": True}),
            ((64, 64), (1, 1), (8, 1, 32, 32), {"dtype": tf.float64}),
            ((64, 64), (1, 1), (8, 1, 32, 32), {"per_type": True}),
            # Products by kernels of their own, with copies and partial sums.
            ((128, 64), (5, 5), (8, 32, 8, 32), {}),
            ((128, 256), (5, 5), (8, 16, 4, 16), {}),
            ((32, 32, 64), (5, 5, 5), (8, 16, 8, 32), {"strides": [2, 2, 2]}),
            ((8, 16, 32), (4, 4, 4), (8, 16, 8, 16), {"transposed": True}),
            # An input that is larger than the votes.
            ((8, 64, 64), (3, 1, 1), (4, 256, 2, 2), {}),
            # What routing keeps of a pixel does not fit into shared memory.
            ((2, 3), (1, 1), (64, 1, 64, 64), {}),
        ],
    )
    def test_workspaces_have_64_megabytes_at_most(
        capability, image, kernel, sizes, attributes, tf32
    ):
        tf.config.experimental.enable_tensor_float_32_execution(tf32)
        found = plans(capability, lambda: _compute(image, kernel, sizes, **attributes))
        assert {kernel for kernel, _ in found.values()} == {"slabs"}
        assert [*found] == [*OPS]
        assert all(0 < workspace <= MOST for _, workspace in found.values())

    def test_a_row_of_votes_may_be_larger():
        sizes = 16, 1, 64, 64
        votes = 4 * 300 * 16 * 64 * 64
        found = plans(90, lambda: _compute((2, 300), (1, 1), sizes))
        assert all(votes < size < votes + MOST for _, size in found.values())
        found = plans(90, lambda: _compute((2, 100), (1, 1), sizes))
        assert all(size <= MOST for _, size in found.values())

    def test_workspaces_are_smaller_where_votes_are():
        sizes = [
            plans(90, lambda n=n: _compute((n, n), (3, 3), (2, 4, 3, 8)))[OPS[0]][1]
            for n in (4, 8, 16)
        ]
        assert np.all(np.diff(sizes) > 0)
