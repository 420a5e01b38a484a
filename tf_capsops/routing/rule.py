# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""What every rule of routing is."""

import copy
import inspect

import keras


class Rule:
    """Says how parent capsules are made of the moments of their children's votes.

    The base of the rules here and of your own. A rule has `route`, and where it has
    variables also `build`; `get_config` returns the arguments that made it, so that
    Keras can save the layers that use it. A layer uses a copy of the rule that it is
    given, so one rule may be given to several layers.

    >>> @keras.saving.register_keras_serializable("my_rules")
    ... class Average(tf_capsops.routing.Rule):
    ...     def route(self, moments, training=False):
    ...         mass, first = moments(order=1)
    ...         poses = first / (mass[..., None, None] + 1e-7)
    ...         return poses, tf.ones_like(mass)
    >>> layer = tf_capsops.layers.ConvCaps2D(8, kernel_size=3, routing=Average())
    """

    def build(self, layer, weights_shape, output_shape):
        """Makes the variables of the rule, by `layer.add_weight`.

        Args:
          layer: The Keras layer that will call `route`.
          weights_shape: `[KH, KW, C, O, Q, R]`, ints; of a line without KH, and of a
            volume with KD before it. C is 1 in a layer that shares its weights, whose
            children also share the rule's priors.
          output_shape: Of the poses that `route` returns, `[N, H', W', O, P, R]`, or
            those of a line or a volume; None is unknown.
        """

    def route(self, moments, training=False):
        """Returns the parents' poses and activations.

        Args:
          moments: `tf_capsops.capsule_moments` of the layer's children and weights, to
            be called with any of `bias`, `linear`, `precision`, `center`, `prior`,
            `order` and `normalize`, and with `use_activations=False` to weight all
            children equally; those with activation 0 are still left out. It casts what
            it is given to the type of the moments.
          training: As for every Keras layer.

        Returns:
          Poses `[N, H', W', O, P, R]` and activations `[N, H', W', O]`, of the type of
          the moments, which is float32 also where the capsules' is a half type. If a
          rule returns anything else, the layer that calls it raises a `ValueError`.
        """
        raise NotImplementedError(f"{type(self).__name__} must define route")

    def get_config(self):
        """Returns the arguments that made the rule; a rule without any need not."""
        if arguments := _arguments_without_config(self):
            raise NotImplementedError(
                f"{type(self).__name__} must define get_config to be saved, which "
                f"returns the arguments of __init__ as a dict: {', '.join(arguments)}"
            )
        return {}

    @classmethod
    def from_config(cls, config):
        return cls(**config)


def _arguments_without_config(rule):
    """Returns the names of the arguments of a rule that has only `Rule.get_config`."""
    if getattr(type(rule), "get_config", None) is not Rule.get_config:
        return []
    several = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
    arguments = list(inspect.signature(type(rule).__init__).parameters.values())[1:]
    return [each.name for each in arguments if each.kind not in several]


def type_of_moments(layer):
    """Returns the type in which a layer's rule computes: float32 for 16-bit types."""
    return "float64" if layer.compute_dtype == "float64" else "float32"


def copy_of(rule, owner):
    """Returns a rule's copy, which has no variables yet.

    Args:
      rule: A `Rule` or another object with its methods, or what
        `keras.saving.serialize_keras_object` makes of one.
      owner: The name to begin messages with.

    Raises:
      ValueError: If it is neither.
    """
    if isinstance(rule, dict):
        return keras.saving.deserialize_keras_object(rule)
    if isinstance(rule, type) or not callable(getattr(rule, "route", None)):
        raise ValueError(
            f"{owner}: routing must be a rule of tf_capsops.routing, such as EM(), got "
            f"{rule!r}"
        )
    has_config = hasattr(rule, "get_config") and hasattr(rule, "from_config")
    if has_config and not _arguments_without_config(rule):
        return type(rule).from_config(rule.get_config())
    return copy.copy(rule)
