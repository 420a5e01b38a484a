# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Checks of what somebody sets the weights of a layer to."""

import numpy as np


def require_built(layer):
    """Raises a ValueError if a layer has no weights yet."""
    if not layer.built:
        raise ValueError(f"{title(layer)} has no weights yet: build it first")


def own_name(layer, variable):
    """Returns a variable's name within a layer.

    Names of a sublayer's variables begin with its own, as in
    `"pose_normalization.moving_mean"`.
    """
    return variable.path.removeprefix(f"{layer.path}/").replace("/", ".")


def named_weights(layer):
    """Returns the variables of a layer by their names, or `own_name` if one repeats."""
    names = [variable.name for variable in layer.weights]
    return {
        variable.name
        if names.count(variable.name) == 1
        else own_name(layer, variable): variable
        for variable in layer.weights
    }


def weights_by_name(layer, weights):
    """Returns a dict of arrays from a list in the order of the layer's weights.

    Raises:
      ValueError: if the layer has not been built, or the list has another length or is
        an array itself; the message names the layer and its weights.
    """
    require_built(layer)
    names = list(named_weights(layer))
    is_objects = isinstance(weights, np.ndarray) and weights.dtype == object
    if isinstance(weights, (list, tuple)) or is_objects:
        got = f"a list of {len(weights)}"
    else:
        got = f"one array of shape {tuple(np.shape(weights))}"
    if got != f"a list of {len(names)}":
        raise ValueError(
            f"{title(layer)}: weights must be [{', '.join(names)}], got {got}"
        )
    return dict(zip(names, map(np.asarray, weights)))


def title(layer):
    """Returns the name of a layer in messages."""
    return f"{type(layer).__name__} {layer.name}"
