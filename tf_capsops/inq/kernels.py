# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Kernels of layers, and holding a part of one fixed while the rest is trained."""

import keras
import numpy as np
import tensorflow as tf

from tf_capsops.codes import quantize, top_exponent


def layers_with_kernels(root):
    """The layers in a layer or model, itself included, that have a `kernel`.

    A `kernel` is a variable of real numbers and at least two axes, as of `Conv2D`,
    `DepthwiseConv2D`, `Dense`, `CapsuleConv2D` and `DigitCaps`; `PrimaryCaps` has a
    `Conv2D`. One that several layers share counts once.
    """
    found = {}
    for layer in root._flatten_layers(include_self=True, recursive=True):
        kernel = getattr(layer, "kernel", None)
        if not isinstance(kernel, keras.Variable) or len(kernel.shape) < 2:
            continue
        if keras.backend.is_float_dtype(kernel.dtype):
            found.setdefault(id(kernel), layer)
    return list(found.values())


class PartlyFixedKernel:
    """The kernel of a layer, and which of its weights are quantized and fixed.

    Attributes:
      layer: the layer.
      bits: bits of a quantized weight.
      top_exponent: n1 of all quantized weights; None until there are some that are not
        zero.
      mask: `[...]` like the kernel, bool: which weights are fixed.
    """

    def __init__(self, layer, bits):
        self.layer = layer
        self.bits = bits
        self.top_exponent = None
        self.variable = layer.kernel
        self.mask = np.zeros(self.variable.shape, bool)
        self._values = np.zeros(self.mask.shape, np.asarray(self.variable).dtype)
        self._constraint = None

    @property
    def fraction(self):
        """The fixed part of the weights, from 0 to 1."""
        return float(self.mask.mean()) if self.mask.size else 1.0

    def fix(self, fraction):
        """Quantizes the largest free weights until this fraction of all is fixed.

        Of equally large weights those with the least index come first.

        Raises:
          ValueError: a weight is not finite.
        """
        weights = np.array(self.variable)
        if not np.all(np.isfinite(weights)):
            raise ValueError(
                f"IncrementalQuantization: the kernel of {self.layer.path} must be "
                "finite: training has diverged"
            )
        if self.top_exponent is None and np.any(weights):
            self.top_exponent = top_exponent(weights)
        sizes = np.abs(weights.reshape(-1).astype(np.float64))
        free = np.flatnonzero(~self.mask)
        largest_first = free[np.argsort(-sizes[free], kind="stable")]
        count = round(fraction * sizes.size) - np.count_nonzero(self.mask)
        chosen = np.unravel_index(largest_first[: max(0, count)], weights.shape)
        exponent = self.top_exponent or 0
        self._values[chosen] = quantize(weights[chosen], self.bits, exponent)
        self.mask[chosen] = True
        self.restore()
        if self._constraint is not None:
            self._constraint.update(self.mask, self._values)

    def restore(self):
        """Gives fixed weights their values, whatever has become of them."""
        weights = np.array(self.variable)
        self.variable.assign(np.where(self.mask, self._values, weights))

    def hold(self):
        """From now on, optimizers leave fixed weights as they are."""
        if self._constraint is None:
            self._constraint = _Fixed(self.variable.constraint, self.mask, self._values)
            self.variable.constraint = self._constraint

    def release(self):
        """Undoes `hold`: the layer has its own constraint again."""
        if self._constraint is not None:
            self.variable.constraint = self._constraint.inner
            self._constraint = None


class _Fixed(keras.constraints.Constraint):
    """A kernel's own constraint, and then its fixed weights as they were.

    Optimizers apply constraints last, after weight decay, their step and averaging, in
    the same graph. So this needs no callback after the batch, of which there may be
    many in one execution.
    """

    def __init__(self, inner, mask, values):
        self.inner = inner
        self._mask = tf.Variable(mask, trainable=False)
        self._values = tf.Variable(values, trainable=False)

    def update(self, mask, values):
        self._mask.assign(mask)
        self._values.assign(values)

    def __call__(self, weights):
        if self.inner is not None:
            weights = self.inner(weights)
        return tf.where(self._mask, self._values, tf.convert_to_tensor(weights))
