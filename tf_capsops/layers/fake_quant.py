# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Activations rounded to few bits, simulated in floating point."""

import keras
import numpy as np
import tensorflow as tf

from tf_capsops.arguments import float_tensors
from tf_capsops.codes import checked_bits
from tf_capsops.layers.weights import require_built, title
from tf_capsops.ops.fake_quant import (
    QuantizedRange,
    fake_quant,
    scale_and_zero_point,
    with_range,
)
from tf_capsops.registered import registered


@registered
class FakeQuant(keras.layers.Layer):
    """Rounds activations to integers of `bits` bits and back.

    This is TFLite's affine quantization of a whole tensor, in which zero is exact:
    Jacob et al., "Quantization and Training of Neural Networks for Efficient
    Integer-Arithmetic-Only Inference" (CVPR 2018). Numbers outside of the range
    `[lo, hi]` are clipped to it; `scale_and_zero_point` says which integer a number
    becomes. `tf_capsops.inq.convert(activation_bits=8)` inserts such layers into a
    model. On a CPU, an `InqConv2D` or `InqDense` that reads the output of a layer
    without `momentum` may compute with the integers themselves, where NaN counts as
    the smallest.

    Without `momentum`, gradient descent learns the range with the rest of the model.
    With `momentum`, the range is the smallest and largest number of the first training
    batch, and each later one moves it towards its own (section 3.1 of the paper). Until
    then numbers pass unchanged. The gradient of the inputs is straight-through.

    Input shape: any. Output shape: the same. 16-bit and float64 numbers are rounded in
    float32.

    Weights: `lo` and `hi`, float32 scalars. Without `momentum` they train, from -6 and
    6. With `momentum` they do not, and start at 0.

    Args:
      bits: bits of an integer, 2 to 8.
      momentum: the part of the range that a training batch keeps, at least 0 and below
        1; None for a range that is learned by gradient.

    Raises:
      ValueError: if an argument is not as above, or inputs are not floating-point.

    >>> import numpy as np
    >>> from tf_capsops.layers import FakeQuant
    >>> layer = FakeQuant(bits=2)
    >>> layer.calibrate([np.array([-1.0, 0.1, 2.0])])
    >>> layer(np.array([-5.0, 0.4, 0.6, 5.0])).numpy().tolist()
    [-1.0, 0.0, 1.0, 2.0]
    """

    def __init__(self, bits=8, momentum=None, **kwargs):
        super().__init__(**kwargs)
        self.bits = checked_bits("FakeQuant", bits)
        is_real = isinstance(momentum, (int, float)) and not isinstance(momentum, bool)
        if momentum is not None and not (is_real and 0 <= momentum < 1):
            raise ValueError(
                "FakeQuant: momentum must be a number from 0 to below 1, or None, got "
                f"{momentum!r}"
            )
        self.momentum = momentum
        self.supports_masking = True

    def build(self, input_shape):
        largest = 6.0 if self.momentum is None else 0.0
        self.lo, self.hi = (
            self.add_weight(
                name=name,
                shape=(),
                initializer=keras.initializers.Constant(value),
                dtype="float32",
                autocast=False,
                trainable=self.momentum is None,
                aggregation="mean",
            )
            for name, value in (("lo", -largest), ("hi", largest))
        )

    def call(self, inputs, training=None):
        (inputs,) = float_tensors("FakeQuant", inputs=inputs)
        if self.momentum is None:
            lo, hi = map(tf.convert_to_tensor, (self.lo, self.hi))
            rounded = fake_quant(inputs, lo, hi, self.bits)
            return with_range(rounded, QuantizedRange(lo, hi, self.bits))
        if training and self.trainable:
            self._follow(tf.cast(inputs, tf.float32))
        rounded = fake_quant(inputs, self.lo, self.hi, self.bits)
        return tf.where(self.has_range(), rounded, inputs)

    def scale_and_zero_point(self):
        """Returns the scale and the zero point of the integers, float32 tensors.

        A number x becomes `clip(round(x / scale) + zero_point, 0, 2^bits - 1)`, where
        `scale = (hi - lo) / (2^bits - 1)` and `zero_point = round(-lo / scale)`.

        Raises:
          ValueError: the layer has not been built.
        """
        require_built(self)
        return scale_and_zero_point(self.lo, self.hi, self.bits)

    def calibrate(self, batches):
        """Sets the range to the smallest one that holds all numbers of batches, and 0.

        Args:
          batches: an iterable of arrays or tensors.

        Raises:
          ValueError: there are no numbers, or one is not finite.
        """
        lo, hi, seen = 0.0, 0.0, False
        for batch in batches:
            batch = np.asarray(batch, np.float32)
            if not np.all(np.isfinite(batch)):
                raise ValueError(f"{title(self)}: activations must be finite")
            lo, hi = min(lo, batch.min(initial=0)), max(hi, batch.max(initial=0))
            seen = seen or batch.size > 0
        if not seen:
            raise ValueError(f"{title(self)}: calibration has no numbers")
        if not self.built:
            self.build(None)
        self.lo.assign(lo)
        self.hi.assign(hi)

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        own = {"bits": self.bits, "momentum": self.momentum}
        return {**super().get_config(), **own}

    def has_range(self):
        """Returns whether `hi` is above `lo`, as a boolean tensor."""
        return tf.convert_to_tensor(self.hi) > tf.convert_to_tensor(self.lo)

    def _follow(self, inputs):
        """Moves the range towards a batch's or, if it is the first, sets it to that."""
        kept = tf.where(self.has_range(), self.momentum, 0.0)
        for variable, found in (
            (self.lo, tf.minimum(tf.reduce_min(inputs), 0.0)),
            (self.hi, tf.maximum(tf.reduce_max(inputs), 0.0)),
        ):
            now = tf.convert_to_tensor(variable)
            # Loss scaling skips steps that overflow. Their activations may be infinite
            # and must not change the range.
            found = tf.where(tf.math.is_finite(found), found, now)
            variable.assign(found + kept * (now - found))
