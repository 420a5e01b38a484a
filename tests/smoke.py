# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Runs each op forward and backward once on each device, beside plain TensorFlow.

Bazel runs it with the library that it has built; pytest does not collect it.
"""

import numpy as np
import tensorflow as tf

from tf_capsops import _library
from tf_capsops.bench import cases


def _results(suite, case, compute, inputs):
    sources = inputs[: suite.sources]
    with tf.GradientTape() as tape:
        tape.watch(sources)
        output = case.bind(compute)(*inputs)
    return [output, *tape.gradient(output, sources)]


def main():
    print(_library.library_path(), _library.build_info())
    tf.config.experimental.enable_tensor_float_32_execution(False)
    for device in tf.config.list_logical_devices():
        for suite in cases.suites().values():
            (case,) = suite.select(cases.SMOKE)
            drawn = suite.draw(case, np.random.default_rng(0))
            with tf.device(device.name):
                inputs = [tf.constant(array) for array in drawn]
                ours = _results(suite, case, suite.ours, inputs)
                (rival, *_) = suite.rivals.values()

                def plain(*inputs, suite=suite, rival=rival, **attributes):
                    return rival(*suite.prepare(*inputs, **attributes), **attributes)

                theirs = _results(suite, case, plain, inputs)
            for one, other in zip(ours, theirs, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-9)
            print(f"{suite.op} on {device.name}: output and {len(ours) - 1} gradients")


if __name__ == "__main__":
    main()
