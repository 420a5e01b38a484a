# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Kernels can be seen and forced by name, and settings that cannot be read say so."""

import pytest
import tensorflow as tf

import tf_capsops
from tf_capsops import _library, kernels


def _predict(in_dim=8):
    with tf.device("CPU:0"):
        return tf_capsops.capsule_prediction(
            tf.ones([2, 3, in_dim]), tf.ones([3, 4, 5, in_dim])
        )


def test_what_runs_is_recorded_once():
    with kernels.recorded() as calls:
        _predict()
        _predict()
    ((op, kernel, workspace),) = calls
    assert (op, workspace) == ("CapsulePrediction", 0)
    assert kernel
    with kernels.recorded() as calls:
        pass
    assert calls == []


@pytest.mark.parametrize("text", ["", "3", "cores=3", "shared=", "shared=-1"])
def test_a_device_that_cannot_be_read_plans_nothing(text):
    interface = kernels._interface()
    interface.tf_capsops_pretend_device(text.encode())
    try:
        with kernels.recorded() as calls:
            _predict()
    finally:
        interface.tf_capsops_pretend_device(b"")
    assert [op for op, _, _ in calls] == ["CapsulePrediction"]


@pytest.mark.parametrize("text", ["mma", "CapsuleConv=", "=mma", "CapsuleConv=mma,fma"])
def test_forced_kernels_that_cannot_be_read_are_an_error(text):
    if planned := _library.build_info()["cuda"]:
        interface = kernels._interface()
        interface.tf_capsops_force_kernels(text.encode())
    with kernels.pretend_device(capability=90), kernels.recorded() as calls:
        _predict()
    if planned:
        interface.tf_capsops_force_kernels(b"")
    gpu = [kernel for op, kernel, _ in calls if op == "CapsulePrediction@GPU"]
    assert gpu == ["none"] * bool(planned)


def test_settings_end_with_their_block():
    with kernels.pretend_device(capability=90), kernels.recorded() as calls:
        _predict()
    planned = [kernel for op, kernel, _ in calls if op == "CapsulePrediction@GPU"]
    assert planned == (["fma"] if _library.build_info()["cuda"] else [])
    with kernels.recorded() as calls:
        _predict(48)
    assert [op for op, _, _ in calls] == ["CapsulePrediction"]


def test_blocks_nest():
    ours = {"capability": 90, "shared": 232448}
    with kernels.pretend_device(**ours), kernels.force(CapsulePrediction="gemm"):
        with kernels.force(CapsulePrediction="fma"), kernels.recorded() as inner:
            _predict()
        with kernels.recorded() as outer:
            _predict()
    cuda = bool(_library.build_info()["cuda"])
    for calls, kernel in ((inner, "fma"), (outer, "gemm")):
        assert [k for op, k, _ in calls if op.endswith("@GPU")] == [kernel] * cuda


@pytest.mark.parametrize("capability", kernels.GPUS)
def test_explained_names_every_kernel_and_its_obstacle(capability):
    device = kernels.pretend_device(capability=capability, **kernels.GPUS[capability])
    with device, kernels.explained() as candidates:
        _predict(48)
        _predict(48)
    if _library.build_info()["cuda"]:
        (op, fma, refusal), *others = candidates
        assert (op, fma) == ("CapsulePrediction", "fma") and "in_dim" in refusal
        assert others == [("CapsulePrediction", "gemm", "")]
    else:
        assert candidates == []


def test_a_kernel_with_several_rows_is_explained_once():
    """The order of preference is that of the problem."""
    found = {}
    for batch in (1, 128):
        device = kernels.pretend_device(capability=90, **kernels.GPUS[90])
        inputs, weights = tf.zeros([batch, 72, 8]), tf.zeros([72, 10, 16, 8])
        with tf.device("CPU:0"), device, kernels.explained() as candidates:
            tf_capsops.capsule_routing(inputs, weights)
        found[batch] = [kernel for _, kernel, _ in candidates]
    if _library.build_info()["cuda"]:
        assert found == {
            1: ["resident", "mma", "phases"],
            128: ["mma", "phases", "resident"],
        }
