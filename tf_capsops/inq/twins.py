# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Makes layers that hold codes from plain layers whose weights are quantized."""

import math

import keras
import numpy as np

from tf_capsops import layers
from tf_capsops.inq.kernels import channel_axes, kernels, layers_and_kernels
from tf_capsops.layers.coded import Coded
from tf_capsops.layers.convolving import Convolving
from tf_capsops.ops.squash import squash


def bits_or_why_not(layer, bits, per_channel=False):
    """Whether `twin` can replace a layer, and if not, why not.

    Args:
      layer: A built layer.
      bits: Bits of a weight; None for the fewest that hold the layer's weights.
      per_channel: Whether each output channel has its own code book.

    Returns:
      Bits of a weight and None, or None and a phrase.
    """
    of_layer = layers_and_kernels(layer)
    if not of_layer:
        return None, "it has no kernel"
    if not _kind_with_bits(layer) and type(layer) not in _TWINS:
        return None, f"no layer holds codes for {type(layer).__name__}"
    if type(layer) in _TWINS:
        if getattr(layer, "groups", 1) != 1:
            return None, f"groups is {layer.groups}: InqConv2D has no groups"
        data_format = getattr(layer, "data_format", "channels_last")
        if data_format != "channels_last":
            return None, f"data_format is {data_format}: codes need channels_last"
    fewest = 2
    for owner, kernel in of_layer:
        axes = channel_axes(owner, kernel) if per_channel else ()
        unfinished, needed = _unfinished_and_bits(kernel, axes)
        if unfinished:
            weights = math.prod(kernel.shape)
            return None, (
                f"{unfinished:,} of {weights:,} weights of {kernel.name} are not "
                "quantized: neither zero nor a power of two"
            )
        fewest = max(fewest, needed)
    if fewest > (bits or 8):
        return None, f"its weights need {fewest} bits, more than {bits or 8}"
    return bits or fewest, None


def twin_kind(layer):
    """The class that holds the codes of a layer once `twin` has replaced it."""
    if _is_taken_apart(layer):
        layer = layer.conv
    kind = _kind_with_bits(layer) or type(layer)
    return _TWINS[kind][1] if kind in _TWINS else kind.__name__


def twin(layer, bits, per_channel=False):
    """A layer like another one, by the same name, that holds codes of `bits` bits.

    Returns:
      The layer, and a function that gives it the weights once it has been built.
    """
    if _is_taken_apart(layer):
        conv, fill = twin(layer.conv, bits, per_channel)
        policy = layer.dtype_policy
        capsules = keras.layers.Reshape((-1, layer.capsule_dim), dtype=policy)
        squashed = keras.layers.Activation(
            squash,
            activity_regularizer=layer.activity_regularizer,
            dtype=policy,
            name="squash",
        )
        return keras.Sequential([conv, capsules, squashed], name=layer.name), fill
    kind = _kind_with_bits(layer)
    if kind:
        own = {"bits": bits, **({"per_channel": True} if per_channel else {})}
        result = kind.from_config({**layer.get_config(), **own})
        if isinstance(layer, Convolving):
            return result, lambda: _fill(result.conv, layer.conv)
        return result, lambda: _fill(result, layer)
    make, _ = _TWINS[type(layer)]
    result, holders_and_kernels = make(layer, bits, per_channel=per_channel)

    def fill():
        for holder, kernel in holders_and_kernels:
            holder.set_kernel(kernel.numpy().reshape(holder.codes.shape))
            if holder.bias is not None:
                holder.bias.assign(layer.bias)

    return result, fill


def _is_taken_apart(layer):
    """Whether a `PrimaryCaps` becomes the model that it became in earlier releases.

    Otherwise the weights that they saved of converted models would not load.
    """
    is_primary = type(layer) is layers.PrimaryCaps and layer.flatten
    return is_primary and layer.data_format == "channels_last"


def _kind_with_bits(layer):
    """The class that a layer keeps, or whose config is the same, and that takes bits.

    None if there is none, as for a subclass of somebody else's.
    """
    kind = _KINDS.get(type(layer), type(layer))
    is_ours = kind.__module__.startswith(f"{__package__.partition('.')[0]}.")
    return kind if is_ours and issubclass(kind, (Coded, Convolving)) else None


def _fill(coded, layer):
    """Gives a layer that holds codes the weights of one that has a kernel."""
    coded.set_kernel(layer.kernel.numpy())
    others = {each.name: each for each in layer.weights}
    for variable in coded.weights:
        if variable.name in others:
            variable.assign(others[variable.name])


def _dense(layer, bits, per_channel):
    shared = {**_shared(layer, bits), "per_channel": per_channel}
    result = layers.InqDense(layer.units, **shared)
    return result, [(result, layer.kernel)]


def _conv(layer, bits, per_channel):
    result = layers.InqConv2D(
        layer.filters,
        layer.kernel_size,
        strides=layer.strides,
        padding=layer.padding,
        dilation_rate=layer.dilation_rate,
        per_channel=per_channel,
        **_shared(layer, bits),
    )
    return result, [(result, layer.kernel)]


def _depthwise_conv(layer, bits, **changes):
    result = layers.InqDepthwiseConv2D(
        layer.kernel_size,
        strides=layer.strides,
        padding=layer.padding,
        depth_multiplier=layer.depth_multiplier,
        dilation_rate=layer.dilation_rate,
        **{**_shared(layer, bits), **changes},
    )
    return result, [(result, kernels(layer)[0])]


def _separable_conv(layer, bits, per_channel):
    depthwise, first = _depthwise_conv(
        layer,
        bits,
        per_channel=per_channel,
        use_bias=False,
        activation=None,
        activity_regularizer=None,
        name="depthwise",
    )
    shared = {**_shared(layer, bits), "name": "pointwise", "per_channel": per_channel}
    pointwise = layers.InqConv2D(layer.filters, 1, **shared)
    result = keras.Sequential([depthwise, pointwise], name=layer.name)
    return result, [*first, (pointwise, layer.pointwise_kernel)]


_KINDS = {
    keras.layers.Conv1D: layers.InqConv1D,
    keras.layers.Conv3D: layers.InqConv3D,
    keras.layers.Conv2DTranspose: layers.InqConv2DTranspose,
    keras.layers.Conv3DTranspose: layers.InqConv3DTranspose,
}

# How to make the layers that replace one of a kind, and what the report calls them.
_TWINS = {
    keras.layers.Conv2D: (_conv, "InqConv2D"),
    layers.Conv2D: (_conv, "InqConv2D"),
    keras.layers.Dense: (_dense, "InqDense"),
    keras.layers.DepthwiseConv2D: (_depthwise_conv, "InqDepthwiseConv2D"),
    keras.layers.SeparableConv2D: (_separable_conv, "InqDepthwiseConv2D, InqConv2D"),
}


def _shared(layer, bits):
    """Values of a layer for the arguments that all layers with codes have."""
    return {
        "bits": bits,
        "activation": layer.activation,
        "use_bias": layer.use_bias,
        "bias_initializer": layer.bias_initializer,
        "bias_regularizer": layer.bias_regularizer,
        "bias_constraint": layer.bias_constraint,
        "activity_regularizer": layer.activity_regularizer,
        "trainable": layer.trainable,
        "dtype": layer.dtype_policy,
        "name": layer.name,
    }


def _unfinished_and_bits(kernel, axes):
    """How many weights are not quantized, and the fewest bits that hold the others.

    Elements of `axes` have code books of their own.
    """
    weights = np.abs(kernel.numpy().astype(np.float64))
    mantissas, above = np.frexp(weights)
    kept = [axis % weights.ndim for axis in axes]
    others = tuple(axis for axis in range(weights.ndim) if axis not in kept)
    used = {"axis": others, "where": weights != 0}
    most = above.max(**used, initial=-5000) - above.min(**used, initial=5000)
    powers = max(int(most.max(initial=0)), 0) + 1
    unfinished = np.count_nonzero((weights != 0) & (mantissas != 0.5))
    return unfinished, 2 + (powers - 1).bit_length()
