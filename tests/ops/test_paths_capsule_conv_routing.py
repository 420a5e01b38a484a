# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""CapsuleConvRouting's CUDA kernels, forced by name, on a GPU of any kind."""

import paths
import tensorflow as tf
from descriptions import DTYPES
from descriptions.capsule_conv_routing import OP

OPS = "CapsuleConvRouting", "CapsuleConvRoutingGrad"
# Windows over all numbers of axes, and capsules about the widths of vectors and warps.
CASES = (
    *("ones", "primes", "large_primes", "line", "line_own", "line_up"),
    *(
        "image",
        "image_dilated",
        "image_leaky",
        "image_own",
        "image_up",
        "image_up_gaps",
    ),
    *("volume", "volume_own", "volume_up", "volume_up_own", "one_parent", "gaps"),
    *(f"iterations_{iterations}" for iterations in (1, 2, 5)),
    *(f"types_{types}" for types in (1, 8, 17, 33, 65)),
    *(f"parents_{parents}" for parents in (1, 8, 17, 33, 65)),
    *(f"out_dim_{out_dim}" for out_dim in (1, 8, 16, 17, 32, 33, 65)),
    *("pixels_1", "pixels_33", "pixels_257", "many_samples", "beyond"),
    *("bands", "bands_strided", "bands_up", "images", "slices", "slices_up"),
    *("no_batch", "no_types", "no_in_dim", "no_parents", "no_out_dim"),
)
PRODUCTS = (
    *("rows", "rows_up", "rows_volume"),
    *("windows", "windows_whole", "windows_volume", "windows_volume_up"),
    *("tiles_direct", "tiles_gaps", "tiles_wide", "tiles_up"),
    *("tiles_volume", "tiles_planes", "tiles_rows", "tiles_narrow", "tiles_lanes"),
    *("tiles_images", "tiles_half", "tiles_columns", "weights_far", "weights_farthest"),
)

PRODUCT_TYPES = tf.float32, tf.float16, tf.bfloat16

if paths.WITH_GPU:
    FORCED = dict.fromkeys(OPS, "slabs")
    RUNS = [
        *paths.runs(FORCED, CASES, DTYPES),
        *paths.runs(FORCED, PRODUCTS, PRODUCT_TYPES, (False, True)),
    ]

    @paths.every([*RUNS, *paths.planned_for_others(RUNS)])
    def test_forced(run):
        paths.assert_close(OP, run)
