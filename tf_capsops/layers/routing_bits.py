# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Routing by agreement rounded to few bits, simulated in floating point."""

import contextlib

import numpy as np
import tensorflow as tf

from tf_capsops.arguments import int_between
from tf_capsops.layers.coded import Coded
from tf_capsops.layers.weights import require_built, title
from tf_capsops.ops.capsule_routing import ROUNDED
from tf_capsops.ops.fake_quant import fake_quant

_UNCALIBRATED = {
    "logits": (-6, 6),
    "coefficients": (0, 1),
    "sums": (-6, 6),
    "vectors": (-1, 1),
}


class RoundedRouting(Coded):
    """A layer that routes by agreement, in floating point or in few bits.

    With `routing_bits`, the logits, the coefficients, the sums of votes, and the
    vectors between iterations are rounded as `tf_capsops.layers.FakeQuant` rounds. The
    vectors of the last iteration are the layer's outputs and are not rounded. Marchisio
    et al., "Q-CapsNets: A Specialized Framework for Quantizing Capsule Networks" (DAC
    2020), quantize the same arrays. A subclass calls `add_routing_ranges` in `build`,
    and passes `rounded` to its routing.

    With `routing_bits` the layer has one more weight, `routing_ranges`
    `[iterations, 4, 2]`: the smallest and the largest number of each of the four arrays
    in each iteration. It does not train; `calibrating` sets it. Gradients are
    straight-through.

    Args:
      routing_bits: as `checked_routing_bits` takes them.
    """

    def __init__(self, *args, routing_bits=None, **kwargs):
        super().__init__(*args, **kwargs)
        self.routing_bits = checked_routing_bits(type(self).__name__, routing_bits)

    def add_routing_ranges(self, iterations):
        """Adds `routing_ranges` for so many iterations, if there are `routing_bits`."""
        if self.routing_bits is None:
            return
        ends = np.float32([_UNCALIBRATED[name] for name in ROUNDED])
        self.routing_ranges = self.add_weight(
            name="routing_ranges",
            shape=(iterations, *ends.shape),
            initializer=lambda shape, dtype: tf.broadcast_to(ends, shape),
            dtype="float32",
            autocast=False,
            trainable=False,
        )

    def rounded(self, name, iteration, tensor):
        """Rounds an array of an iteration, or returns it as is without `routing_bits`.

        `name` is one of `ROUNDED`.
        """
        if self.routing_bits is None:
            return tensor
        ends = tf.convert_to_tensor(self.routing_ranges)[iteration, ROUNDED.index(name)]
        lo, hi = tf.unstack(ends)
        return fake_quant(tensor, lo, hi, self.routing_bits)

    @contextlib.contextmanager
    def calibrating(self):
        """A context manager that sets the ranges from the calls in its `with` block.

        These calls must be eager. They do not round.

        Raises:
          ValueError: The layer has not been built, has no `routing_bits` or is not
            called in the block, or a number is not finite.
        """
        require_built(self)
        if self.routing_bits is None:
            raise ValueError(f"{title(self)} has no routing_bits to calibrate")
        ends, calls = np.zeros(self.routing_ranges.shape, np.float32), []

        def see(name, iteration, tensor):
            numbers = np.asarray(tensor, np.float32)
            of_array = ends[iteration, ROUNDED.index(name)]
            of_array[0] = np.minimum(of_array[0], numbers.min(initial=0))
            of_array[1] = np.maximum(of_array[1], numbers.max(initial=0))
            if name == "sums":
                calls.append(numbers.size)
            return tensor

        self.rounded = see
        try:
            yield
        finally:
            del self.rounded
        if not any(calls):
            raise ValueError(f"{title(self)}: calibration has no numbers")
        if not np.all(np.isfinite(ends)):
            raise ValueError(f"{title(self)}: numbers in routing must be finite")
        self.routing_ranges.assign(ends)

    def get_config(self):
        own = {} if self.routing_bits is None else {"routing_bits": self.routing_bits}
        return {**super().get_config(), **own}


def checked_routing_bits(owner, bits):
    """Returns `bits` if it is None or an int from 2 to 8, else raises a ValueError."""
    if bits is None:
        return None
    return int_between(owner, "routing_bits", bits, 2, 8)
