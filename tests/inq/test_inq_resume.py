# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""`state` and `resume` of `IncrementalQuantization`.

That training goes on to the bit is tested in tests/cli/test_quantize_resume.py.
"""

import copy

import keras
import numpy as np
import pytest

from tf_capsops.inq import IncrementalQuantization

pytestmark = pytest.mark.usefixtures("eagerly")
IMAGES, TARGETS = np.eye(4, dtype=np.float32), np.ones([4, 3], np.float32)


def _model(*units):
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(each) for each in (*units, 3)]
    model = keras.Sequential([keras.Input([4]), *layers])
    model.compile("sgd", "mse")
    return model


class Captured(keras.callbacks.Callback):
    """The state after the first epoch, and what it was then."""

    def __init__(self, steps):
        super().__init__()
        self._steps = steps

    def on_epoch_end(self, epoch, logs=None):
        if epoch == 0:
            self.state = self._steps.state()
            self.then = copy.deepcopy(self.state)


@pytest.fixture(scope="module")
def captured(eagerly):
    model = _model(5)
    steps = IncrementalQuantization(model, steps=(0.5, 1.0), straight_through=True)
    captured = Captured(steps)
    callbacks = [steps, captured]
    model.fit(IMAGES, TARGETS, epochs=3, verbose=0, callbacks=callbacks)
    with pytest.raises(ValueError, match="resume must come before the first fit"):
        steps.resume(captured.state)
    return captured


def test_a_state_does_not_change(captured):
    assert captured.state.keys() == captured.then.keys()
    for name, value in captured.state.items():
        np.testing.assert_array_equal(value, captured.then[name])


@pytest.mark.parametrize(
    "changed",
    [
        {"bits": 4},
        {"steps": (0.4, 1.0)},
        {"epochs_per_step": 2},
        {"per_channel": True},
        {"activation_bits": 8},
        {"straight_through": False},
    ],
)
def test_other_arguments(captured, changed):
    arguments = {"steps": (0.5, 1.0), "straight_through": True, **changed}
    steps = IncrementalQuantization(_model(5), **arguments)
    said = r"the state to resume is of bits=5, steps=\(0.5, 1.0\), epochs_per_step=1, "
    with pytest.raises(ValueError, match=said):
        steps.resume(captured.state)
    with pytest.raises(ValueError, match="is of another callback, not of bits="):
        steps.resume({})


@pytest.mark.parametrize(
    "units, said",
    [
        ([5, 3], "the state to resume has no 'mask': it is of another model"),
        ([6], r"has a kernel of shape \(4, 5\), and sequential\S*/kernel has \(4, 6\)"),
    ],
)
def test_another_model(captured, units, said):
    model = _model(*units)
    steps = IncrementalQuantization(model, steps=(0.5, 1.0), straight_through=True)
    steps.resume(captured.state)
    with pytest.raises(ValueError, match=said):
        model.fit(IMAGES, TARGETS, epochs=3, verbose=0, callbacks=[steps])
