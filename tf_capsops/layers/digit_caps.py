# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The fully connected capsule layer with dynamic routing (routing by agreement)."""

import functools
import math
import numbers
import warnings

import keras
import numpy as np
import tensorflow as tf

from tf_capsops import _portable
from tf_capsops.arguments import (
    boolean,
    float_tensors,
    int_between,
    known_shape,
    positive_int,
)
from tf_capsops.layers.initializers import RoutedNormal
from tf_capsops.layers.masks import seen_capsules, without_masked
from tf_capsops.layers.routing_bits import RoundedRouting
from tf_capsops.layers.weights import require_built, weights_by_name
from tf_capsops.ops.capsule_routing import (
    MOST_ITERATIONS,
    capsule_routing,
    plain,
    plain_coefficients,
    routing_coefficients,
)
from tf_capsops.ops.inq_capsule_routing import inq_capsule_routing
from tf_capsops.registered import registered
from tf_capsops.shapes import dimensions


@registered
class DigitCaps(RoundedRouting):
    """Fully connected capsules with routing by agreement.

    Each input capsule predicts each output capsule, and routing weights the
    predictions: section 2 and procedure 1 of Sabour et al. (2017), with the op
    `tf_capsops.capsule_routing`. Gradients flow through every iteration.

    Input shape: `[B, I, K]`. Output shape: `[B, num_capsules, capsule_dim]`. A Keras
    mask `[B, I]` leaves input capsules out of the computation.

    With `share_weights`, all input capsules use the same matrix for an output capsule.
    They are then a set: their order has no effect, and I may be unknown and vary from
    call to call.

    Weights: `kernel` `[I, num_capsules, capsule_dim, K]` and `logits`
    `[I, num_capsules]`, from which routing starts; both without I with `share_weights`;
    with `routing_bits` also `routing_ranges` `[routing_iterations, 4, 2]`.

    Half precision: everything is computed in float32 and the output rounded once.

    Args:
      num_capsules: the number of output capsules, one for each class.
      capsule_dim: the length of an output capsule's vector.
      routing_iterations: how often the output capsules are computed, 1 to 2^31 - 1.
      logits_trainable: whether the initial logits are learned.
      kernel_initializer: None for `RoutedNormal()`, whose documentation says why. With
        `share_weights` it is called with `[1, num_capsules, capsule_dim, K]`, and the
        values of a `RoutedNormal` are divided by `sqrt(I)`. They cannot be if I is
        unknown, and the first sums are then too long by that factor. In this case give
        `RoutedNormal(gain=1.5 / sqrt(children))` for the usual number of children.
      logits_initializer: zeros by default.
      kernel_regularizer, logits_regularizer, kernel_constraint, logits_constraint:
        as Keras layers take them.
      share_weights: whether all input capsules have the same matrices and logits.
      bits, per_channel: as for `InqConv2D`; None keeps a floating-point kernel.
      routing_bits: the number of bits, 2 to 8, to which routing rounds its logits,
        coefficients, sums and vectors; None for floating point. TensorFlow's own ops
        simulate the rounding, and `tf_capsops.inq.convert` finds the ranges.

    Raises:
      ValueError: if an argument or the input's shape is not as above.

    >>> import numpy as np
    >>> from tf_capsops.layers import DigitCaps
    >>> layer = DigitCaps(num_capsules=10, capsule_dim=16, routing_iterations=3)
    >>> layer(np.ones([2, 32, 8])).shape.as_list()
    [2, 10, 16]
    """

    channel_axes = (-3, -2)

    def __init__(
        self,
        num_capsules,
        capsule_dim,
        routing_iterations=3,
        logits_trainable=False,
        kernel_initializer=None,
        logits_initializer="zeros",
        kernel_regularizer=None,
        logits_regularizer=None,
        kernel_constraint=None,
        logits_constraint=None,
        share_weights=False,
        *,
        bits=None,
        per_channel=False,
        routing_bits=None,
        **kwargs,
    ):
        super().__init__(
            bits=bits, per_channel=per_channel, routing_bits=routing_bits, **kwargs
        )
        self.num_capsules = positive_int("DigitCaps", "num_capsules", num_capsules)
        self.capsule_dim = positive_int("DigitCaps", "capsule_dim", capsule_dim)
        self.routing_iterations = int_between(
            "DigitCaps", "routing_iterations", routing_iterations, 1, MOST_ITERATIONS
        )
        self.logits_trainable = boolean(
            "DigitCaps", "logits_trainable", logits_trainable
        )
        if kernel_initializer is None:
            kernel_initializer = RoutedNormal()
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.logits_initializer = keras.initializers.get(logits_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.logits_regularizer = keras.regularizers.get(logits_regularizer)
        self.kernel_constraint = keras.constraints.get(kernel_constraint)
        self.logits_constraint = keras.constraints.get(logits_constraint)
        self.share_weights = boolean("DigitCaps", "share_weights", share_weights)

    def build(self, input_shape):
        self.compute_output_shape(input_shape)
        _, in_caps, in_dim = input_shape
        own = () if self.share_weights else (in_caps,)
        self.kernel = self.add_weight(
            name="kernel",
            shape=(*own, self.num_capsules, self.capsule_dim, in_dim),
            initializer=self._kernel_initializer(in_caps),
            regularizer=self.kernel_regularizer,
            constraint=self.kernel_constraint,
        )
        self.logits = self.add_weight(
            name="logits",
            shape=(*own, self.num_capsules),
            initializer=self.logits_initializer,
            regularizer=self.logits_regularizer,
            constraint=self.logits_constraint,
            trainable=self.logits_trainable,
            autocast=False,
        )
        self.add_routing_ranges(self.routing_iterations)
        axes = {2: in_dim} if self.share_weights else {1: in_caps, 2: in_dim}
        self.input_spec = keras.layers.InputSpec(ndim=3, axes=axes)

    def _kernel_initializer(self, in_caps):
        initializer = self.kernel_initializer
        if not self.share_weights:
            return initializer
        gain = 1.0
        if isinstance(initializer, RoutedNormal):
            gain = 1 / math.sqrt(in_caps or 1)
        return lambda shape, dtype: initializer((1, *shape), dtype=dtype)[0] * gain

    def call(self, capsules, mask=None):
        if self._routes_codes():
            capsules, _ = self._seen(capsules, mask)
            return inq_capsule_routing(
                capsules,
                tf.convert_to_tensor(self.codes),
                tf.convert_to_tensor(self.top_exponent),
                tf.cast(self.logits, capsules.dtype),
                self.bits,
                self.routing_iterations,
            )
        operands, _ = self._operands(capsules, mask)
        return self._routed(capsule_routing, plain, operands)

    def _routes_codes(self):
        """Whether the op for codes computes this layer."""
        is_plain = not (self.per_channel or self.share_weights or self.routing_bits)
        return self.bits is not None and is_plain and not _portable.is_on()

    def compute_mask(self, inputs, previous_mask):
        return None

    def _seen(self, capsules, mask):
        """Returns the capsules, zero where the mask leaves them out, and the mask."""
        (capsules,) = float_tensors("DigitCaps", capsules=capsules)
        seen = seen_capsules("DigitCaps", capsules, mask)
        return without_masked(capsules, seen), seen

    def _operands(self, capsules, mask):
        """Returns the op's capsules, weights and logits, and the mask of capsules."""
        capsules, seen = self._seen(capsules, mask)
        kernel = tf.cast(self.kernel, capsules.dtype)
        logits = tf.cast(self.logits, capsules.dtype)
        if self.share_weights:
            in_caps = dimensions(capsules)[1]
            kernel = tf.broadcast_to(kernel, [in_caps, *kernel.shape])
            logits = tf.broadcast_to(logits, [in_caps, *logits.shape])
        return (capsules, kernel, logits), seen

    def set_weights(self, weights):
        super().set_weights(list(weights_by_name(self, weights).values()))

    def coefficients(self, capsules, mask=None):
        """Returns the coupling coefficients of the last routing iteration.

        They are the c of equation 3 of Sabour et al. (2017), computed by the op
        `tf_capsops.routing_coefficients`. They are not differentiable.

        Args:
          capsules: the layer's input, `[B, I, K]`.
          mask: the input's Keras mask, `[B, I]`, or None.

        Returns:
          `[B, I, num_capsules]`: nonnegative, adding up to 1 over the last axis; zeros
          for capsules that the mask leaves out.

        Raises:
          ValueError: if the layer has not been built.
        """
        require_built(self)
        operands, seen = self._operands(capsules, mask)
        found = self._routed(routing_coefficients, plain_coefficients, operands)
        return without_masked(found, seen)

    def _routed(self, op, definition, operands):
        """Calls an op or, if routing is rounded, its definition in TensorFlow's ops."""
        if self.routing_bits is None:
            return op(*operands, self.routing_iterations)
        options = {"iterations": self.routing_iterations, "rounded": self.rounded}
        return _portable.compute(definition, *operands, name=op.__name__, **options)

    def compute_output_shape(self, input_shape):
        unknown = ("batch", "in_caps") if self.share_weights else ("the batch size",)
        known_shape("DigitCaps", input_shape, "[batch, in_caps, in_dim]", unknown)
        return (input_shape[0], self.num_capsules, self.capsule_dim)

    def get_config(self):
        return {
            **super().get_config(),
            "num_capsules": self.num_capsules,
            "capsule_dim": self.capsule_dim,
            "routing_iterations": self.routing_iterations,
            "logits_trainable": self.logits_trainable,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "logits_initializer": keras.initializers.serialize(self.logits_initializer),
            "kernel_regularizer": keras.regularizers.serialize(self.kernel_regularizer),
            "logits_regularizer": keras.regularizers.serialize(self.logits_regularizer),
            "kernel_constraint": keras.constraints.serialize(self.kernel_constraint),
            "logits_constraint": keras.constraints.serialize(self.logits_constraint),
            "share_weights": self.share_weights,
        }


def _takes_the_earlier_order(function):
    """Accepts `routing_iters` as the fourth argument, in place of `name`.

    Earlier releases had this order. Such a call causes a DeprecationWarning.
    """

    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        if len(args) > 3 and isinstance(args[3], numbers.Integral):
            warnings.warn(
                "digit_caps: the fourth argument is name now, as in the paper; pass "
                f"routing_iters={args[3]} by name",
                DeprecationWarning,
                stacklevel=2,
            )
            name = kwargs.pop("name", "DigitCaps")
            return function(*args[:3], name, *args[4:], routing_iters=args[3], **kwargs)
        return function(*args, **kwargs)

    return wrapper


@_takes_the_earlier_order
def digit_caps(
    incoming,
    n_digit_caps,
    dim_digit_caps,
    name="DigitCaps",
    neuron_axis=-1,
    capsule_axis=-2,
    routing_iters=3,
    *,
    logits_trainable=False,
    kernel_initializer="glorot_uniform",
    **kwargs,
):
    """Applies a new `DigitCaps` layer; a drop-in replacement for a paper's function.

    The function is `digit_caps` of van de Wolfshaar, "Cuda, TensorFlow And Capsule
    Networks" (2018); the arguments are in its order. It updates the logits
    `routing_iters` times and then computes the output once more, so `routing_iters=3`
    is `routing_iterations=4` of `DigitCaps`. Each call creates new weights. To use them
    again, keep the result in a Keras model, or use a `DigitCaps` layer instead.

    Args:
      incoming: a KerasTensor or tensor of three axes: batch, capsules and neurons.
      n_digit_caps: the number of output capsules.
      dim_digit_caps: the length of an output capsule's vector.
      name: the layer's name. An integer here is `routing_iters`, as in earlier
        releases, with a DeprecationWarning.
      neuron_axis: the axis of `incoming` that runs along a capsule's vector.
      capsule_axis: the axis of `incoming` that runs over the capsules.
      routing_iters: how often the logits are updated, 0 to 2^31 - 2.
      logits_trainable: whether the initial logits are learned.
      kernel_initializer: Glorot-uniform by default, as in the paper; None for the
        default of `DigitCaps`.
      **kwargs: other arguments of `DigitCaps`, such as `bits` and `per_channel`.

    Returns:
      A tensor `[B, n_digit_caps, dim_digit_caps]`, or a KerasTensor if `incoming` is
      one.

    Raises:
      ValueError: if an argument or the shape of `incoming` is not as above.

    >>> import keras
    >>> from tf_capsops.layers import digit_caps
    >>> digit_caps(keras.Input([32, 8]), n_digit_caps=10, dim_digit_caps=16).shape
    (None, 10, 16)
    """
    updates = int_between(
        "digit_caps", "routing_iters", routing_iters, 0, MOST_ITERATIONS - 1
    )
    if not hasattr(incoming, "shape"):
        incoming = np.asarray(incoming, keras.config.floatx())
    rank = len(incoming.shape)
    if rank != 3:
        raise ValueError(
            "digit_caps: incoming must have the axes batch, capsules and neurons, got "
            f"shape {tuple(incoming.shape)}"
        )
    axes = [
        int_between("digit_caps", name, axis, -rank, rank - 1) % rank
        for name, axis in (("capsule_axis", capsule_axis), ("neuron_axis", neuron_axis))
    ]
    if sorted(axes) != [1, 2]:
        raise ValueError(
            "digit_caps: capsule_axis and neuron_axis must be the two axes after the "
            f"batch, got {capsule_axis} and {neuron_axis}"
        )
    if axes == [2, 1]:
        incoming = keras.layers.Permute((2, 1))(incoming)
    layer = DigitCaps(
        n_digit_caps,
        dim_digit_caps,
        routing_iterations=updates + 1,
        logits_trainable=logits_trainable,
        kernel_initializer=kernel_initializer,
        name=name,
        **kwargs,
    )
    return layer(incoming)
