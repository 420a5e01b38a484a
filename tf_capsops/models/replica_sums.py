# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Sums the gradients of replicas while those of the first layer are still computed.

The backward pass ends with the weights of a network's first layer. By default, XLA sums
all gradients after the backward pass. If XLA is free to sum some earlier, it does so
during a kernel that then takes longer. So this module splits the sum in two, and forces
their order with artificial dependencies. The sum of all other gradients waits for the
gradient of the first layer's output. The sum of the first layer's own gradients waits
for the other sum.
"""

import contextlib
import math

import keras
import tensorflow as tf

# The least size of all gradients. Below it, a second sum costs more than it hides.
_FEWEST_BYTES = 8 << 20


@contextlib.contextmanager
def overlapped(model):
    """Makes a training step that is traced in this context sum gradients in two parts.

    The sums are the same, but an infinity in one gradient may become NaN in others.
    """
    context = tf.distribute.get_replica_context()
    layer = _first_trained(model)
    if layer is None or "call" in vars(layer):  # `inq.activations` replaces `call`.
        yield
        return
    at_output = []  # The gradients of the layer's outputs.
    sum_at_once, call = context.all_reduce, layer.call

    def watched_call(*args, **kwargs):
        outputs = call(*args, **kwargs)
        is_tensor = isinstance(outputs, tf.Tensor) and outputs.dtype.is_floating
        return _watched(outputs, at_output) if is_tensor else outputs

    def all_reduce(operation, values, options=None):
        count = len(layer.trainable_variables)
        last = at_output[-1] if at_output else None
        if not (_are_gradients(values, layer) and _is_accessible(last)):
            return sum_at_once(operation, values, options)
        own, others = values[:count], values[count:]
        others = [_after(others[0], last), *others[1:]]
        others = sum_at_once(operation, others, options)
        own = [_after(own[0], others[-1]), *own[1:]]
        return [*sum_at_once(operation, own, options), *others]

    layer.call, context.all_reduce = watched_call, all_reduce
    try:
        yield
    finally:
        del context.all_reduce, layer.call


def _first_trained(model):
    """Returns the layer with a model's first trainable variables, or None."""
    for layer in model.layers:
        found = _first_trained(layer) if isinstance(layer, keras.Model) else layer
        if found is not None and found.trainable_variables:
            first = model.trainable_variables[: len(found.trainable_variables)]
            same = all(a is b for a, b in zip(first, found.trainable_variables))
            return found if same else None
    return None


def _watched(tensor, gradients):
    """Returns a tensor unchanged, and appends its gradient to a list when computed."""

    @tf.custom_gradient
    def call(tensor):
        def gradient(upstream):
            gradients.append(upstream)
            return upstream

        return tf.identity(tensor), gradient

    return call(tensor)


def _are_gradients(values, layer):
    """Whether values are gradients of enough bytes that begin with those of a layer."""
    own = [each.shape for each in layer.trainable_variables]
    if not isinstance(values, (list, tuple)) or len(values) <= len(own):
        return False
    if not all(isinstance(each, tf.Tensor) for each in values):
        return False
    if not all(each.shape.is_fully_defined() for each in values):
        return False
    sizes = [math.prod(each.shape) * each.dtype.size for each in values]
    is_large = min(sizes) > 0 and sum(sizes) >= _FEWEST_BYTES
    return is_large and [tuple(each.shape) for each in values[: len(own)]] == own


def _is_accessible(tensor):
    """Whether the graph that is being traced can read a tensor."""
    if tf.executing_eagerly():
        return False
    graph = tf.compat.v1.get_default_graph()
    while tensor is not None and graph is not None:
        if tensor.graph is graph:
            return True
        graph = getattr(graph, "outer_graph", None)
    return False


def _after(tensor, earlier):
    """Returns a tensor that XLA computes after another one."""
    zero = 0 * tf.reshape(earlier, [-1])[0]  # May be NaN, so XLA cannot remove it.
    return tensor + tf.cast(zero, tensor.dtype)
