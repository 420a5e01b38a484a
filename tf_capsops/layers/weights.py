# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Names of a layer's weights, and checks of the values they are set to."""

import numpy as np


def require_built(layer):
    """Raises a ValueError if a layer has no weights yet."""
    if not layer.built:
        raise ValueError(f"{title(layer)} has no weights yet: build it first")


def own_name(layer, variable):
    """Returns a variable's name within a layer.

    The name of a sublayer's variable begins with the name of the sublayer, as in
    `"pose_normalization.moving_mean"`.
    """
    return variable.path.removeprefix(f"{layer.path}/").replace("/", ".")


def named_weights(layer):
    """Returns a layer's variables by name, or by `own_name` if a name occurs twice."""
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
    """Returns a layer's class and name, as error messages show them."""
    return f"{type(layer).__name__} {layer.name}"
