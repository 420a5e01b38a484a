# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Each of CapsulePrediction's CUDA kernels, forced by name."""

import pytest
import tensorflow as tf
import test_capsule_prediction as ours
from reference import capsule_prediction as reference
from tolerances import assert_close

import tf_capsops
from tf_capsops import kernels

_SMALL = ("ones", "primes", "mnist_layer", "in_dim_31", "in_dim_32", "empty_batch")
CASES = {
    "fma": (*_SMALL, "empty_reduction"),
    "gemm": (*_SMALL, "empty_reduction", "columns_513", "tiles_of_both", "long_rows"),
}
REFUSALS = [
    ("CapsulePrediction", "long_rows", "in_dim is over 32"),
    ("CapsulePredictionGrad", "no_out_caps", "there are no output elements"),
    (
        "CapsulePredictionGrad",
        "long_rows",
        "a block has too few warps for the columns",
    ),
]


def _case(name):
    (case,) = (case for case in ours.SUITE.cases if case.name == name)
    return case


def _all_results(compute, grad, *inputs):
    return compute(*inputs), *ours._gradients(compute, grad, *inputs)


if tf.config.list_physical_devices("GPU"):

    @ours.every_dtype
    @pytest.mark.parametrize(
        "kernel, name", [(kernel, name) for kernel in CASES for name in CASES[kernel]]
    )
    def test_forced(kernel, name, dtype):
        with tf.device("GPU:0"):
            tensors = ours._draw(_case(name), dtype)
            with (
                kernels.force(CapsulePrediction=kernel, CapsulePredictionGrad=kernel),
                kernels.recorded() as calls,
            ):
                results = _all_results(tf_capsops.capsule_prediction, *tensors)
            plain = _all_results(ours.PLAIN, *tensors)
        assert calls == [
            ("CapsulePrediction", kernel, 0),
            ("CapsulePredictionGrad", kernel, 0),
        ]
        exact = ours._exact(tensors)
        sizes = [*map(abs, exact)]
        truth = reference.forward(*exact[1:]), *reference.backward(*exact)
        magnitude = reference.forward(*sizes[1:]), *reference.backward(*sizes)
        for one in zip(results, truth, plain, magnitude, strict=True):
            result, truth, plain, magnitude = one
            assert_close(result.numpy(), truth, plain.numpy(), magnitude)

    @pytest.mark.parametrize("op, name, why", REFUSALS)
    def test_a_forced_kernel_says_why_it_cannot(op, name, why):
        with (
            tf.device("GPU:0"),
            kernels.force(**{op: "fma"}),
            pytest.raises(tf.errors.InvalidArgumentError) as caught,
        ):
            _all_results(
                tf_capsops.capsule_prediction, *ours._draw(_case(name), tf.float32)
            )
        message = (
            f"{op}: TF_CAPSOPS_KERNEL asks for the kernel fma, which cannot do this "
        )
        assert f"{message}because {why}" in caught.value.message
