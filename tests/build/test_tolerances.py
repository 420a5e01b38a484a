# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The rule for how far a result may be from the truth: tests/tolerances.py."""

import numpy as np
import pytest
from tolerances import assert_close, ulp

_TRUTH = np.ones([3])
_ULP = ulp(np.float32)


def _off(error):
    return np.float32(_TRUTH + np.array([0, error, 0]))


def _never():
    raise AssertionError("plain TensorFlow's result was asked for")


def test_a_few_units_need_no_yardstick():
    assert_close(_off(4 * _ULP), _TRUTH, _never)
    assert_close(_off(4 * _ULP), _TRUTH, _off(0))


@pytest.mark.parametrize("lazy", [False, True])
def test_an_op_may_be_off_by_twice_what_plain_tensorflow_is(lazy):
    def plain(error):
        return (lambda: _off(error)) if lazy else _off(error)

    assert_close(_off(20 * _ULP), _TRUTH, plain(10 * _ULP))
    for error, yardstick in ((20 * _ULP, 4 * _ULP), (np.nan, 10 * _ULP)):
        with pytest.raises(AssertionError, match="1 of 3 wrong, worst at"):
            assert_close(_off(error), _TRUTH, plain(yardstick))
