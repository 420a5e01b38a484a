# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Finds the kernels of layers, and keeps parts of them quantized during training."""

import keras
import numpy as np
import tensorflow as tf

from tf_capsops.codes import quantize, top_exponent
from tf_capsops.layers.coded import Coded, holds_codes
from tf_capsops.models.segmenter import Segmenter

_NAMES = ("kernel", "depthwise_kernel", "pointwise_kernel")


def kernels(layer):
    """Returns the kernels that belong to a layer itself, a list of Keras variables.

    A kernel is a variable of real numbers and at least two axes. `Conv2D`,
    `DepthwiseConv2D`, `Dense`, `CapsuleConv2D` and `DigitCaps` have one,
    `SeparableConv2D` has two, and that of `PrimaryCaps` belongs to the `Conv2D` in it.
    """
    if holds_codes(layer):
        return []
    candidates = [getattr(layer, name, None) for name in _NAMES]
    return [
        each
        for each in candidates
        if isinstance(each, keras.Variable)
        and len(each.shape) >= 2
        and keras.backend.is_float_dtype(each.dtype)
    ]


def layers_and_kernels(root):
    """Returns every kernel in a layer or model, as pairs (layer, kernel).

    A kernel that several layers share counts once.
    """
    found = {}
    for layer in layers_in(root):
        for kernel in kernels(layer):
            found.setdefault(id(kernel), (layer, kernel))
    return list(found.values())


def layers_in(root):
    """Returns a layer or model, and all layers in it at any depth, each once."""
    found = {}

    def visit(value):
        if isinstance(value, dict):
            value = list(value.values())
        if isinstance(value, (list, tuple)):
            for each in value:
                visit(each)
        elif isinstance(value, keras.Layer) and id(value) not in found:
            found[id(value)] = value
            visit(value.layers if isinstance(value, keras.Model) else vars(value))

    visit(root)
    return list(found.values())


def is_taken_apart(layer):
    """Whether cloning goes into a layer: a model of layers, or of such models."""
    is_functional = isinstance(layer, keras.Model) and isinstance(layer, keras.Function)
    return is_functional or isinstance(layer, (keras.Sequential, Segmenter))


def channel_axes(layer, kernel):
    """Returns the axes of a kernel's output channels, in ascending order."""
    if isinstance(layer, Coded):
        return layer.channel_axes
    if kernel.name == "depthwise_kernel" or type(layer) is keras.layers.DepthwiseConv2D:
        return (-2, -1)
    return (-2,) if type(layer).__name__.endswith("Transpose") else (-1,)


class PartlyFixedKernel:
    """A kernel of a layer, and which of its weights are quantized.

    Attributes:
      layer: the layer.
      variable: the kernel.
      bits: bits of a quantized weight.
      axes: axes of the kernel whose elements have code books of their own.
      top_exponent: n1 of all quantized weights, or an array with n1 of each code book.
        A book's n1 is set at the first step at which it has a weight that is not zero.
        None as long as all weights are zero.
      mask: bool, of the kernel's shape: which weights are quantized.
    """

    def __init__(self, layer, variable, bits, per_channel=False, keeps_latent=False):
        self.layer = layer
        self.axes = channel_axes(layer, variable) if per_channel else ()
        self.bits = bits
        self.top_exponent = None
        self._has_exponent = False  # whether n1 is set, for each code book
        self.variable = variable
        self.mask = np.zeros(self.variable.shape, bool)
        self._values = np.zeros_like(self.variable.numpy())
        # The weights before rounding, from which straight-through training goes on.
        self._latent = np.zeros(self.mask.shape, np.float32) if keeps_latent else None
        self._trains_codes = False
        self._constraint = None

    @property
    def fraction(self):
        """The quantized part of the weights, from 0 to 1."""
        return float(self.mask.mean()) if self.mask.size else 1.0

    def state(self):
        """Returns what `resume` needs in addition to the weights, a dict of arrays."""
        latent = self._latent
        if isinstance(self._constraint, _StraightThrough):
            _, latent = self._constraint.state(self._values.dtype)
        state = {
            "mask": self.mask,
            "has_exponent": self._has_exponent,
            "trains_codes": self._trains_codes,
            "top_exponent": self.top_exponent,
            "latent": latent,
        }
        return {
            name: np.array(value) for name, value in state.items() if value is not None
        }

    def resume(self, state):
        """Goes on from a `state`, with the weights that the kernel had then.

        Raises:
          KeyError: The state is incomplete.
          ValueError: It is of a kernel of another shape.
        """
        if state["mask"].shape != self.mask.shape:
            raise ValueError(
                f"IncrementalQuantization: the state to resume has a kernel of shape "
                f"{state['mask'].shape}, and {self.variable.path} has {self.mask.shape}"
            )
        self.mask = state["mask"].copy()
        self._has_exponent = state["has_exponent"].copy()
        self._trains_codes = bool(state["trains_codes"])
        top = state.get("top_exponent")
        self.top_exponent = top if top is None or top.ndim else int(top)
        if self._latent is not None:
            self._latent = state["latent"].copy()
        self._values = np.where(self.mask, self.variable.numpy(), self._values)

    def fix(self, fraction):
        """Quantizes the largest free weights until this fraction of all is fixed.

        Equally large weights are taken in the order of their indices.

        Raises:
          ValueError: a weight is not finite.
        """
        weights = self.variable.numpy()
        if not np.all(np.isfinite(weights)):
            raise ValueError(
                f"IncrementalQuantization: {self.variable.path} must be finite: "
                "training has diverged"
            )
        self._start_books(weights)
        sizes = np.abs(weights.reshape(-1).astype(np.float64))
        free = np.flatnonzero(~self.mask)
        largest_first = free[np.argsort(-sizes[free], kind="stable")]
        count = round(fraction * sizes.size) - np.count_nonzero(self.mask)
        chosen = np.unravel_index(largest_first[: max(0, count)], weights.shape)
        if self.top_exponent is not None:
            finished = quantize(weights, self.bits, self.top_exponent, self.axes)
            self._values[chosen] = finished[chosen]
            if self._latent is not None:
                self._latent[chosen] = weights[chosen]
        self.mask[chosen] = True
        self.restore()
        if self._constraint is not None:
            self._constraint.update(self.mask, self._values)

    def _start_books(self, weights):
        """Sets n1 of the code books that have nonzero weights for the first time."""
        axes = [axis % weights.ndim for axis in self.axes]
        others = tuple(axis for axis in range(weights.ndim) if axis not in axes)
        used = np.any(weights, axis=others)
        if np.any(used & ~np.asarray(self._has_exponent)):
            found = top_exponent(weights, self.axes)
            if self.axes:
                before = 0 if self.top_exponent is None else self.top_exponent
                found = np.where(self._has_exponent, before, found)
            self.top_exponent = found
            self._has_exponent |= used

    def restore(self):
        """Restores the values of quantized weights, whatever has changed them.

        Weights that train from code to code may have been set to other values of their
        code books, such as those of an earlier epoch. Training goes on from these.
        """
        weights = self.variable.numpy()
        if isinstance(self._constraint, _StraightThrough):
            self._values, self._latent = self._constraint.state(weights.dtype)
            is_other = weights != self._values
            if np.any(is_other) and self._are_of_books(weights):
                self._latent = np.where(is_other, weights, self._latent)
                self._values = weights
                self._constraint.start(self._latent)
        self.variable.assign(np.where(self.mask, self._values, weights))

    def _are_of_books(self, weights):
        if not np.all(np.isfinite(weights)):
            return False
        books = self.bits, self.top_exponent, self.axes
        return np.array_equal(weights, quantize(weights, *books))

    def train_codes(self):
        """Lets the weights train from code to code; all of them must be quantized."""
        # A kernel of zeros has no code book to train in.
        self._trains_codes = self.top_exponent is not None
        fit = self._constraint.fit
        self.release()
        self.hold(fit)
        self.restore()

    def hold(self, fit):
        """Keeps quantized weights fixed or in their code books, from now on.

        A hold that an interrupted fit left behind is replaced.

        Args:
          fit: An object that stands for the current call of `fit`.

        Raises:
          ValueError: The kernel is already held in this `fit`.
        """
        if isinstance(self._constraint, _StraightThrough):  # of an interrupted fit
            dtype = self._values.dtype
            self._values, self._latent = self._constraint.state(dtype)
        own = self.variable.constraint
        if isinstance(own, _Hold):
            if own.fit is fit:
                raise ValueError(
                    f"IncrementalQuantization: {self.variable.path} is quantized by "
                    "two callbacks of one fit: give each kernel to one callback"
                )
            own = own.inner
        self._constraint = self.variable.constraint = self._new_hold(own, fit)

    def _new_hold(self, own, fit):
        if not self._trains_codes:
            return _Fixed(own, fit, self.mask, self._values)
        # A channel of zeros has no code book either.
        tops = np.ldexp(np.float32(self._has_exponent), self.top_exponent)
        if self.axes:
            axes = [axis % self.mask.ndim for axis in self.axes]
            sizes = enumerate(self.mask.shape)
            tops = tops.reshape([size if n in axes else 1 for n, size in sizes])
        return _StraightThrough(own, fit, self._latent, tops, self.bits)

    def release(self):
        """Undoes `hold`: the kernel has its own constraint again."""
        if self._constraint is not None:
            self.variable.constraint = self._constraint.inner
            self._constraint = None


class _Hold(keras.constraints.Constraint):
    """Applies a kernel's own constraint, then corrects the quantized weights.

    Optimizers apply constraints last, after weight decay, their step and averaging, in
    the same graph. A callback could not do this, because many batches may run in one
    execution.
    """

    def __init__(self, inner, fit):
        self.inner = inner
        self.fit = fit

    def __call__(self, weights):
        if self.inner is not None:
            weights = self.inner(weights)
        return self.held(tf.convert_to_tensor(weights))


class _Fixed(_Hold):
    """Restores fixed weights."""

    def __init__(self, inner, fit, mask, values):
        super().__init__(inner, fit)
        self._mask = tf.Variable(mask, trainable=False)
        self._values = tf.Variable(values, trainable=False)

    def update(self, mask, values):
        self._mask.assign(mask)
        self._values.assign(values)

    def held(self, weights):
        return tf.where(self._mask, self._values, weights)


class _StraightThrough(_Hold):
    """Trains weights from code to code by the straight-through estimator.

    An optimizer's step is added to latent numbers instead of the weights, and the
    weights are the rounded latent numbers. Gradients of rounded weights thus train the
    latent numbers.

    Args:
      inner, fit: as for `_Hold`.
      latent: numbers that are rounded to the weights.
      tops: 2^n1 of all weights, or of each code book; 0 keeps weights at zero.
      bits: bits of a weight.
    """

    def __init__(self, inner, fit, latent, tops, bits):
        super().__init__(inner, fit)
        # Each replica of a strategy keeps its own copy, and all copies are equal.
        self._latent = tf.Variable(
            latent,
            dtype=tf.float32,
            trainable=False,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        )
        self._tops = tf.Variable(tops, dtype=tf.float32, trainable=False)
        self._least = 2.0 ** (1 - 2 ** (bits - 2))  # the smallest power over the top

    def state(self, dtype):
        """Returns arrays: the quantized weights, as `dtype`, and the latent numbers."""
        latent = tf.convert_to_tensor(self._latent)
        return self._rounded(latent).numpy().astype(dtype), latent.numpy()

    def start(self, latent):
        self._latent.assign(latent)

    def held(self, weights):
        step = tf.cast(weights, tf.float32) - self._rounded(self._latent)
        # Without a limit, a latent number far outside of its book would take long to
        # return.
        most = 1.5 * self._tops
        latent = tf.clip_by_value(self._latent + step, -most, most)
        self._latent.assign(latent)
        return tf.cast(self._rounded(latent), weights.dtype)

    def _rounded(self, latent):
        """Rounds as `tf_capsops.inq.quantize` does."""
        sizes, least = tf.abs(latent), self._least * self._tops
        # 4/3 of a number, without its mantissa, is the power of two nearest to it.
        bits = tf.bitcast(sizes * (4 / 3), tf.int32)
        powers = tf.bitcast(tf.bitwise.bitwise_and(bits, 0x7F800000), tf.float32)
        powers = tf.clip_by_value(powers, least, self._tops)
        return tf.where(2 * sizes < least, 0.0, tf.sign(latent) * powers)
