# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Initial values of prediction matrices and of filters."""

import math
import numbers

import keras
import numpy as np


@keras.saving.register_keras_serializable("tf_capsops")
class RoutedNormal(keras.initializers.Initializer):
    """Draws truncated normal values, scaled for the sums of routing.

    The weights of a fully connected capsule layer are `[I, J, D, K]` (in_caps,
    out_caps, out_dim, in_dim). Initializers that read a convolution kernel into a
    4-D shape count `I * J` as its window and come out far too small, and the outputs
    then start in squash's flat region around zero.

    The first routing iteration computes `s_j = (1 / J) sum_i W_ij u_i`. For input
    capsules of length `u`, `s_j` has the expected squared length
    `I D stddev^2 u^2 / J^2`, so `stddev = gain * J / sqrt(I * D)` starts every layer at
    `|s_j| = gain * u`, whatever its sizes. At the sizes of Sabour et al. (2017), 1152
    capsules to 10 of 16 dimensions, a gain of 1.36 gives the 0.1 of their code.

    Args:
      gain: a positive number, how long `s_j` starts relative to the input capsules.
      seed: an int for the same values at every call, or None.

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
        # A normal cut at two standard deviations has 0.8796 of the spread.
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

    A convolution with `value` 1 passes its input on. If the filter is the logits of a
    softmax over its taps, a large `value` nearly does so, and 0 gives an average.

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
    """Returns a kernel of capsules whose values are those of plain convolutions.

    Keras' initializers count every axis but the last two as the window. They would
    count an axis of capsules as part of the fan-in.

    Args:
      shape: The kernel's shape.
      dtype: Its type.
      initializer: Called for kernels of shape `plain`.
      plain: The shape of the kernel of the plain convolution with the same fans.
      reshape: A function from a plain kernel to one of capsules.
      axis: A negative axis of `shape`, each entry of which is a kernel that is drawn
        by itself; or None.
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
    """Makes an initializer draw new values at each call.

    A seed makes the sequence repeatable. An initializer whose config has no `seed` must
    draw new values by itself.
    """
    config = getattr(initializer, "get_config", dict)()
    if not isinstance(config.get("seed", "none"), int | None):
        return initializer
    config["seed"] = keras.random.SeedGenerator(config["seed"])
    return type(initializer).from_config(config)
