# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""CapsuleConv, as the tests that all ops share see it."""

from reference import capsule_conv as reference

from descriptions import Description
from tf_capsops._portable import widened
from tf_capsops.bench import cases


def _reference(grad, inputs, weights, **attributes):
    return (
        reference.forward(inputs, weights, **attributes),
        reference.backprop_input(inputs.shape, weights, grad, **attributes),
        reference.backprop_weights(inputs, weights.shape, grad, **attributes),
    )


_SUITE = cases.suites()["CapsuleConv"]
_FRAMES = {
    "second_derivatives": (
        *("ones", "primes", "strides_2_2_SAME", "dilations_3_2_by_2_VALID"),
        *("pose_2_4_3_moved", "pose_3_3_3_3_moved", "small_image_2_1"),
    ),
    "higher_derivatives": ("ones", "gradient_rank_3"),
    "rivals": ("primes", "strides_3_1_SAME_large", "pose_5_7_2_moved", "pose_5_1_8_3"),
    "long_sums": (
        *("long_sums", "long_sums_of_grad", "long_sums_of_pixels", "channels_33"),
        *("row_of_two_parts", "row_of_many_chunks"),
    ),
    "tensor_float_32": (
        *("primes", "channels_33", "pose_8_8_8", "pose_5_7_2", "strides_2_2_SAME"),
    ),
    "unknown_shapes": ("primes", "pose_2_2_4_4_moved", "dilations_1_3_by_2_SAME"),
}
OP = Description(_SUITE, widened(_SUITE.rivals["patches"]), _reference, frames=_FRAMES)
