# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Makes layers that hold codes from plain layers with quantized weights."""

import dataclasses
import math

import keras
import numpy as np

from tf_capsops import layers
from tf_capsops.arguments import boolean, int_between
from tf_capsops.codes import checked_bits
from tf_capsops.inq.kernels import channel_axes, kernels, layers_and_kernels
from tf_capsops.layers.coded import Coded
from tf_capsops.layers.convolving import Convolving
from tf_capsops.layers.routing_bits import RoundedRouting, checked_routing_bits
from tf_capsops.layers.weights import own_name
from tf_capsops.ops.squash import squash

# Arguments that any layer with codes takes over from the layer that it replaces.
_SHARED = (
    *("activation", "use_bias", "bias_initializer", "bias_regularizer"),
    *("bias_constraint", "activity_regularizer", "trainable", "name"),
)
_WINDOW = "kernel_size", "strides", "padding", "dilation_rate"

# Names of the weights that codes, and routing in few bits, add to a layer.
_ADDED = {"codes", "top_exponent", "routing_ranges"}
# For each kind of layer, the kind with codes and the further arguments it takes over.
_TWINS = {
    keras.layers.Conv2D: (layers.InqConv2D, "filters", *_WINDOW),
    layers.Conv2D: (layers.InqConv2D, "filters", *_WINDOW),
    keras.layers.Dense: (layers.InqDense, "units"),
    keras.layers.DepthwiseConv2D: (
        *(layers.InqDepthwiseConv2D, "depth_multiplier"),
        *_WINDOW,
    ),
    keras.layers.SeparableConv2D: (),
}
# For each kind of layer, the kind with codes that has the same config, plus `bits`.
_KINDS = {
    keras.layers.Conv1D: layers.InqConv1D,
    keras.layers.Conv3D: layers.InqConv3D,
    layers.Conv3D: layers.InqConv3D,
    keras.layers.Conv2DTranspose: layers.InqConv2DTranspose,
    keras.layers.Conv3DTranspose: layers.InqConv3DTranspose,
}


@dataclasses.dataclass(frozen=True)
class Books:
    """The settings of `tf_capsops.inq.convert`, which documents these fields."""

    bits: int | None = None
    per_channel: bool = False
    all_kinds: bool = False
    activation_bits: int | None = None
    routing_bits: int | None = None

    @classmethod
    def checked(
        cls, owner, bits, per_channel, all_kinds, activation_bits, routing_bits
    ):
        """Returns the checked arguments, or raises a ValueError that names `owner`."""
        return cls(
            None if bits is None else checked_bits(owner, bits),
            boolean(owner, "per_channel", per_channel),
            boolean(owner, "all_kinds", all_kinds),
            checked_activation_bits(owner, activation_bits),
            checked_routing_bits(owner, routing_bits),
        )

    def routing_of(self, layer):
        """Returns the arguments of a layer's copy that set the bits of its routing."""
        if self.routing_bits is None or not isinstance(layer, RoundedRouting):
            return {}
        return {"routing_bits": self.routing_bits}


def checked_activation_bits(owner, bits):
    """Returns bits of an activation, 2 to 8 or None, or raises a ValueError."""
    if bits is None:
        return None
    return int_between(owner, "activation_bits", bits, 2, 8)


def bits_or_why_not(layer, books):
    """Returns the bits with which `twin` can replace a layer, or why it cannot.

    Args:
      layer: A built layer.
      books: A `Books`; `bits` of None mean the fewest that hold the layer's weights.

    Returns:
      Bits of a weight and None, or None and a phrase.
    """
    of_layer = layers_and_kernels(layer)
    if not of_layer:
        return None, "it has no kernel"
    name, one = type(layer).__name__, layer
    if type(layer) is layers.PrimaryCaps and layer.flatten:
        one = layer.conv
    data_format = getattr(layer, "data_format", "channels_last")
    if type(one) in _TWINS:
        if getattr(layer, "groups", 1) != 1:
            return None, f"groups is {layer.groups}: InqConv2D has no groups"
        is_first = data_format != "channels_last"
        if is_first and not (books.all_kinds and _kind_with_bits(layer)):
            return None, f"data_format is {data_format}: codes need channels_last"
    elif not _kind_with_bits(layer):
        return None, f"no layer holds codes for {name}"
    elif not books.all_kinds:
        return None, f"{name} holds codes only with all_kinds=True"
    fewest = 2
    for owner, kernel in of_layer:
        axes = channel_axes(owner, kernel) if books.per_channel else ()
        unfinished, needed = _unfinished_and_bits(kernel, axes)
        if unfinished:
            weights = math.prod(kernel.shape)
            return None, (
                f"{unfinished:,} of {weights:,} weights of {kernel.name} are not "
                "quantized: neither zero nor a power of two"
            )
        fewest = max(fewest, needed)
    if fewest > (books.bits or 8):
        return None, f"its weights need {fewest} bits, more than {books.bits or 8}"
    return books.bits or fewest, None


def twin_kind(layer):
    """Returns the name of the class that holds a layer's codes, as `twin` makes it."""
    if _is_taken_apart(layer):
        layer = layer.conv
    if type(layer) is keras.layers.SeparableConv2D:
        return "InqDepthwiseConv2D, InqConv2D"
    if type(layer) in _TWINS:
        return _TWINS[type(layer)][0].__name__
    return (_kind_with_bits(layer) or type(layer)).__name__


def twin(layer, books):
    """Returns a layer like another one, of the same name, that holds codes.

    Returns:
      The layer, and a function that gives it the weights once it has been built.

    Raises:
      ValueError: The layer has no config from which to make its copy.
    """
    if _is_taken_apart(layer):
        conv, fill = twin(layer.conv, books)
        policy = layer.dtype_policy
        capsules = keras.layers.Reshape((-1, layer.capsule_dim), dtype=policy)
        squashed = keras.layers.Activation(
            squash,
            activity_regularizer=layer.activity_regularizer,
            dtype=policy,
            name="squash",
        )
        return keras.Sequential([conv, capsules, squashed], name=layer.name), fill
    own = {"bits": books.bits, "per_channel": books.per_channel}
    if type(layer) is keras.layers.SeparableConv2D:
        return _separable_twin(layer, own)
    if type(layer) in _TWINS:
        result = _twin(layer, *_TWINS[type(layer)], **own)
    else:
        changes = {**own, **books.routing_of(layer)}
        result = copied(layer, _kind_with_bits(layer), **changes)
    if isinstance(layer, Convolving):
        return result, lambda: _fill(result.conv, layer.conv)
    return result, lambda: _fill(result, layer)


def copied(layer, kind=None, **changes):
    """Returns a layer made from another one's config.

    Args:
      layer: A layer.
      kind: The class of the result, from `_kind_with_bits`; None for the class of the
        layer. With a class, the result shares functions such as an activation, which
        Keras may be unable to make from a config.
      **changes: Arguments of the result that differ.

    Raises:
      ValueError: The layer has no such config.
    """
    try:
        config = layer.get_config()
        for name in config if kind else ():
            value = getattr(layer, name, None)
            if callable(value) and not isinstance(value, keras.Layer):
                config[name] = value
        return (kind or type(layer)).from_config({**config, **changes})
    except Exception as error:
        raise ValueError(
            f"convert: {layer.path or layer.name} cannot be copied: "
            f"{type(layer).__name__} needs a get_config from whose result from_config "
            "makes the layer again"
        ) from error


def _is_taken_apart(layer):
    """Whether a layer is a `PrimaryCaps` that becomes a model of several layers.

    It does so as in earlier releases, so that weights that these saved of converted
    models load.
    """
    is_primary = type(layer) is layers.PrimaryCaps and layer.flatten
    return is_primary and layer.data_format == "channels_last"


def _kind_with_bits(layer):
    """Returns a class with a layer's config that also takes `bits`, or None.

    It is the layer's own class or one of `_KINDS`. There is none for a subclass that is
    defined outside of this package.
    """
    kind = _KINDS.get(type(layer), type(layer))
    is_ours = kind.__module__.startswith(f"{__package__.partition('.')[0]}.")
    return kind if is_ours and issubclass(kind, (Coded, Convolving)) else None


def _twin(layer, kind, *names, **changes):
    """Returns a layer of `kind` with the named arguments of another layer."""
    taken = {name: getattr(layer, name) for name in (*_SHARED, *names)}
    return kind(**{**taken, "dtype": layer.dtype_policy, **changes})


def _separable_twin(layer, own):
    """Returns a model to replace a `SeparableConv2D`, and a function that fills it."""
    plain = {"use_bias": False, "activation": None, "activity_regularizer": None}
    depthwise = _twin(
        layer,
        *_TWINS[keras.layers.DepthwiseConv2D],
        **{**own, **plain, "name": "depthwise"},
    )
    pointwise = _twin(
        layer,
        *(layers.InqConv2D, "filters"),
        **{**own, "kernel_size": 1, "name": "pointwise"},
    )

    def fill():
        _fill(depthwise, layer, layer.depthwise_kernel)
        _fill(pointwise, layer, layer.pointwise_kernel)

    return keras.Sequential([depthwise, pointwise], name=layer.name), fill


def _fill(coded, layer, kernel=None):
    """Sets the weights of a layer that holds codes from a layer that has a kernel."""
    kernel = kernels(layer)[0] if kernel is None else kernel
    coded.set_kernel(kernel.numpy().reshape(coded.codes.shape))
    assign_others(coded, layer, kernels(layer))


def assign_others(copy, layer, replaced=()):
    """Sets the weights of a layer to those of another one.

    Weights correspond by their order, because Keras numbers sublayers without a name.
    If the shapes differ, as for a layer that is divided among several, only weights of
    the same name are set.

    Args:
      copy: The layer to set. It may have further weights, for its codes or for routing
        in few bits.
      layer: The layer that has the weights.
      replaced: Those of its weights that became codes.
    """
    others = [each for each in layer.weights if all(each is not k for k in replaced)]
    added = _ADDED - {each.name for each in layer.weights}
    weights = [each for each in copy.weights if each.name not in added]
    if [each.shape for each in weights] == [each.shape for each in others]:
        for variable, other in zip(weights, others):
            variable.assign(other)
        return
    others = {own_name(layer, each): each for each in others}
    for variable in weights:
        name = own_name(copy, variable)
        if name in others:
            variable.assign(others[name])


def _unfinished_and_bits(kernel, axes):
    """Counts weights that are not quantized, and finds the fewest bits for the others.

    Each element of `axes` has its own code book.
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
