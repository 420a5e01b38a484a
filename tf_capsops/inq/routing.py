# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Finds the layers of models that route in few bits, or that could do so."""

from tf_capsops import layers
from tf_capsops.inq.kernels import layers_in
from tf_capsops.layers.routed import Routed
from tf_capsops.layers.routing_bits import RoundedRouting
from tf_capsops.layers.weights import title
from tf_capsops.routing import Dynamic


def require(whole_layers, bits):
    """Raises a ValueError unless layers route, and all of these can do so in few bits.

    Args:
      whole_layers: The layers of a model that are copied whole.
      bits: Bits of the arrays of routing; None to check nothing.
    """
    if bits is None:
        return
    found = False
    for whole in whole_layers:
        for layer in layers_in(whole):
            if not isinstance(layer, (Routed, RoundedRouting)):
                continue
            found = True
            if not routes_by_agreement(layer):
                rule = type(layer.routing).__name__
                raise ValueError(
                    f"convert: routing_bits: {title(layer)} routes by {rule}: only "
                    "DigitCaps, SlimCaps2D and its like, and DenseCaps with the rule "
                    "Dynamic route in few bits"
                )
            if layer is not whole:
                raise ValueError(
                    f"convert: routing_bits: {title(layer)} is inside of "
                    f"{title(whole)}, which is copied as it is: make it a layer of the "
                    "model"
                )
    if not found:
        raise ValueError("convert: routing_bits: no layer of the model routes capsules")


def routes_by_agreement(layer):
    """Whether a layer takes `routing_bits`."""
    if isinstance(layer, layers.DenseCaps):
        return type(layer.routing) is Dynamic
    return isinstance(layer, RoundedRouting)


def routed(model):
    """Returns the layers of a model that route in few bits."""
    found = [each for each in layers_in(model) if isinstance(each, RoundedRouting)]
    return [each for each in found if each.routing_bits is not None]
