# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The kernels that CapsuleMoments would run on GPUs, planned on a CPU."""

import pytest
import tensorflow as tf
from descriptions.capsule_moments import OP
from gpus import GPUS, planned

from tf_capsops import _library

PLANS = [
    ("fma", tf.float32, "matrices_parents"),
    ("fma", tf.float16, "matrices_all"),
    ("fma", tf.bfloat16, "coordinates_none"),
    ("fma", tf.float32, "rows_of_warps_parents"),
    ("general", tf.float64, "matrices_parents"),
    ("general", tf.float32, "primes_parents"),
    ("general", tf.float32, "parents_33"),
    ("general", tf.float32, "no_channels_all"),
]


if _library.build_info()["cuda"]:

    @pytest.mark.parametrize("capability", GPUS)
    @pytest.mark.parametrize("kernel, dtype, name", PLANS)
    def test_the_first_kernel_that_can(kernel, dtype, name, capability):
        case = OP.case(name)
        tensors = OP.draw(case, dtype)
        assert planned(capability, lambda: OP.ours(case, tensors)) == {
            "CapsuleMoments": kernel,
            "CapsuleMomentsGrad": kernel,
        }
