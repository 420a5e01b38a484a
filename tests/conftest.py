# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Runs every test that takes a `device` on every device TensorFlow sees.

Float32 products are exact to float32 in tests: a test of TF32 turns it on itself.
"""

import pytest
import tensorflow as tf

for _gpu in tf.config.list_physical_devices("GPU"):
    tf.config.experimental.set_memory_growth(_gpu, True)
tf.config.experimental.enable_tensor_float_32_execution(False)

_DEVICES = sorted({f"{d.device_type}:0" for d in tf.config.list_logical_devices()})


def pytest_generate_tests(metafunc):
    """Parametrizes the fixture `device`, in the order CPU, GPU."""
    if "device" in metafunc.fixturenames:
        metafunc.parametrize("device", _DEVICES, indirect=True)


@pytest.fixture
def device(request):
    """Name of a device, such as "GPU:0"; the test's ops are placed on it."""
    with tf.device(request.param):
        yield request.param


@pytest.fixture(autouse=True)
def _every_test_starts_alike():
    yield
    tf.config.experimental.enable_tensor_float_32_execution(False)
