# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Initializers for prediction matrices and filters."""

import math
import numbers

import keras
import numpy as np


@keras.saving.register_keras_serializable("tf_capsops")
class RoutedNormal(keras.initializers.Initializer):
    """Draws truncated normal values, scaled so that routing starts with useful sums.

    The weights of a fully connected capsule layer are `[I, J, D, K]` (in_caps,
    out_caps, out_dim, in_dim). Keras' initializers take a 4-D shape for a convolution
    kernel and count `I * J` as its window. Their values are far too small, and the
    outputs start in the flat region of squash around zero.

    The first routing iteration computes `s_j = (1 / J) sum_i W_ij u_i`. For input
    capsules of length `u`, the expected squared length of `s_j` is
    `I D stddev^2 u^2 / J^2`. So `stddev = gain * J / sqrt(I * D)` starts layers of all
    sizes at about `|s_j| = gain * u`. At the sizes of Sabour et al. (2017), 1152
    capsules to 10 of 16 dimensions, a gain of 1.36 gives the 0.1 of their code.

    Args:
      gain: a positive number, the initial length of `s_j` relative to input capsules.
      seed: an int for the same values at every call; None for new ones.

    Raises:
      ValueError: if `gain` is not positive, or the shape asked for is not 4-D.

    >>> from tf_capsops.layers import RoutedNormal
    >>> values = RoutedNormal(gain=1.36, seed=1)([1152, 10, 16, 8])
    >>> round(float(values.numpy().std()), 2)
    0.1
    """

    def __init__(self, gain=1.5, seed=None):
        if not gain > 0:
            raise ValueError(f"RoutedNormal: gain must be positive, got {gain!r}")
        self.gain = gain
        self.seed = seed if seed is not None else keras.random.SeedGenerator()

    def __call__(self, shape, dtype=None):
        if len(shape) != 4:
            raise ValueError(
                "RoutedNormal: the shape must be [in_caps, out_caps, out_dim, in_dim],"
                f" got {tuple(shape)}"
            )
        in_caps, out_caps, out_dim, _ = shape
        stddev = self.gain * out_caps / math.sqrt(max(1, in_caps * out_dim))
        # Truncation at two standard deviations reduces the spread to 0.8796 of it.
        stddev /= 0.87962566103423978
        return keras.random.truncated_normal(
            shape, stddev=stddev, dtype=dtype, seed=self.seed
        )

    def get_config(self):
        seed = int(self.seed) if isinstance(self.seed, numbers.Integral) else None
        return {"gain": self.gain, "seed": seed}


@keras.saving.register_keras_serializable("tf_capsops")
class CenterTap(keras.initializers.Initializer):
    """Initializes filters to `value` at their middle and zero elsewhere.

    With `value` 1, a convolution returns its input. If a softmax over the taps follows,
    a large `value` comes close to that, and 0 gives an average.

    Args:
      value: a number.

    Raises:
      ValueError: if the shape asked for has fewer than two dimensions, or an even
        height or width.

    >>> from tf_capsops.layers import CenterTap
    >>> CenterTap()([1, 3, 3])
    array([[[0., 0., 0.],
            [0., 1., 0.],
            [0., 0., 0.]]], dtype=float32)
    """

    def __init__(self, value=1.0):
        self.value = value

    def __call__(self, shape, dtype=None):
        if len(shape) < 2 or any(size % 2 == 0 for size in shape[-2:]):
            raise ValueError(
                "CenterTap: the shape must be [..., height, width], both odd, got "
                f"{tuple(shape)}"
            )
        values = np.zeros(shape, keras.backend.standardize_dtype(dtype))
        values[..., shape[-2] // 2, shape[-1] // 2] = self.value
        return values

    def get_config(self):
        return {"value": self.value}


def drawn_as_convolutions(shape, dtype, initializer, plain, reshape, axis=None):
    """Draws a capsule kernel with the values of kernels of ordinary convolutions.

    Keras' initializers count every axis but the last two as the window. They would
    wrongly count an axis of capsules as part of the fan-in.

    Args:
      shape: The shape of the capsule kernel.
      dtype: The dtype of the kernel.
      initializer: Called with the shape `plain`.
      plain: The kernel shape of the ordinary convolution with the same fan-in and
        fan-out.
      reshape: A function from an ordinary kernel to a capsule kernel.
      axis: A negative axis of `shape`, for whose entries kernels are drawn one by one;
        None to draw one kernel.
    """
    if 0 in shape:
        return keras.ops.zeros(shape, dtype)
    draw = initializer if axis is None else _unlike_each_other(initializer)
    kernels = [
        reshape(keras.ops.convert_to_tensor(draw(plain, dtype=dtype), dtype))
        for _ in range(1 if axis is None else shape[axis])
    ]
    return kernels[0] if axis is None else keras.ops.stack(kernels, axis)


def _unlike_each_other(initializer):
    """Returns an initializer that draws new values at each call.

    If the initializer has a seed, the sequence of values is repeatable. An initializer
    without `seed` in its config is returned as it is and must draw new values itself.
    """
    config = getattr(initializer, "get_config", dict)()
    if not isinstance(config.get("seed", "none"), int | None):
        return initializer
    config["seed"] = keras.random.SeedGenerator(config["seed"])
    return type(initializer).from_config(config)
