# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""CapsuleConvRouting: repeatable, NaN kept in its window, saved and loaded."""

import functools

import numpy as np
import pytest
import robustness
import tensorflow as tf
from descriptions import every_dtype
from descriptions.capsule_conv_routing import OP

import tf_capsops

_LARGE = ["bands", "bands_strided", "bands_up", "images", "slices", "slices_up"]
_LARGE += ["tiles_direct", "tiles_gaps", "tiles_wide", "tiles_up"]
_LARGE += ["tiles_volume", "tiles_planes", "tiles_images", "rows_volume"]


def _of_case(name, dtype):
    """Returns a function from tensors to all results, and the tensors."""
    case = OP.case(name)
    compute = functools.partial(OP.results, case.bind(OP.suite.ours))
    return compute, OP.draw(case, dtype)


def of_several_sizes(dtype):
    computed = (_of_case(name, dtype) for name in ("bands", "slices_up", "image_own"))
    return [compute(*tensors) for compute, tensors in computed]


@every_dtype
@pytest.mark.parametrize("name", _LARGE)
def test_every_run_gives_the_same_bits(name, dtype, device):
    compute, tensors = _of_case(name, dtype)
    robustness.same_bits_every_time(compute, tensors)


@every_dtype
@pytest.mark.parametrize("transposed", [False, True])
def test_nan_stays_in_its_window(transposed, dtype, device):
    """The other pixels and samples stay the same, to the bit."""
    shapes = (3, 4, 7, 2, 5), (3, 3, 2, 5, 4, 6), (4, 6), (2, 4)
    tensors = robustness.draw(dtype, *shapes)

    def compute(*tensors):
        return tf_capsops.capsule_conv_routing(
            *tensors, padding="SAME", transposed=transposed
        )

    clean = compute(*tensors).numpy()
    spoiled = robustness.spoiled(tensors, 0, (1, 2, 3, 1, 2), np.nan)
    result = compute(*spoiled).numpy()
    inside = np.zeros(clean.shape, bool)
    inside[1, 1:4, 2:5] = True
    assert np.isnan(result[inside].astype(np.float64)).all()
    np.testing.assert_array_equal(result[~inside], clean[~inside])


@pytest.mark.parametrize("position", range(5))
@every_dtype
def test_slices_of_larger_tensors(position, dtype, device):
    compute, tensors = _of_case("image_own", dtype)
    robustness.slices_of_larger_tensors(compute, tensors, position)


def test_saved_model_in_a_fresh_process(tmp_path, device):
    (capsules,) = robustness.draw(tf.float32, (2, 5, 4, 3, 2))
    layer = tf_capsops.layers.SlimCaps2D(4, 3, 2, leaky=True)
    layer.build(capsules.shape)
    variables = [weight.value for weight in layer.weights]
    robustness.saved_model_in_a_fresh_process(
        tmp_path, device, layer, variables, capsules, [None, None, None, 3, 2]
    )


def test_calls_of_different_sizes_at_the_same_time(device):
    compute = functools.partial(OP.results, OP.suite.ours)
    drawn = [
        robustness.draw(
            tf.float32,
            *((batch, size - 2, size - 2, 8, 16), (batch, size, size, 4, 3)),
            *((3, 3, 3, 8, 16), (8, 16), (4, 8)),
        )
        for batch, size in ((1, 9), (5, 24), (2, 3), (1, 50))
    ]
    robustness.same_at_the_same_time(compute, drawn, device, times=10)
