# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The base class of routing rules."""

import copy
import inspect

import keras


class Rule:
    """Computes parent capsules from the moments of their children's votes.

    This is the base class of all rules, including your own. A rule defines:

    * `route`, which computes the parents;
    * `build`, if it has variables;
    * `get_config`, if `__init__` has arguments. It returns them, so that Keras can save
      layers that use the rule.

    A layer copies the rule that it is given, so several layers may be given one rule.

    >>> import keras
    >>> import tensorflow as tf
    >>> import tf_capsops
    >>> @keras.saving.register_keras_serializable("my_rules")
    ... class Average(tf_capsops.routing.Rule):
    ...     def route(self, moments, training=False):
    ...         mass, first = moments(order=1)
    ...         poses = first / (mass[..., None, None] + 1e-7)
    ...         return poses, tf.ones_like(mass)
    >>> layer = tf_capsops.layers.ConvCaps2D(8, kernel_size=3, routing=Average())
    """

    def build(self, layer, weights_shape, output_shape):
        """Adds the variables of the rule with `layer.add_weight`.

        Args:
          layer: The Keras layer that will call `route`.
          weights_shape: `[KH, KW, C, O, Q, R]`, ints; without KH for a sequence, and
            with KD before it for a volume. C is 1 in a layer that shares its weights:
            its children also share the rule's priors.
          output_shape: The shape of the poses that `route` returns,
            `[N, H', W', O, P, R]`, or the shape for a sequence or a volume; None is
            unknown.
        """

    def route(self, moments, training=False):
        """Returns the parents' poses and activations.

        Args:
          moments: `tf_capsops.capsule_moments` applied to the layer's children and
            weights. Call it with any of `bias`, `linear`, `precision`, `center`,
            `prior`, `order` and `normalize`, which it casts to the type of the moments.
            With `use_activations=False` all children weigh the same, except that those
            with activation 0 are still left out.
          training: As for every Keras layer.

        Returns:
          Poses `[N, H', W', O, P, R]` and activations `[N, H', W', O]`, of the type of
          the moments: float64 if the capsules are, and else float32. If a rule does not
          return two tensors of these shapes, its layer raises a `ValueError`.
        """
        raise NotImplementedError(f"{type(self).__name__} must define route")

    def get_config(self):
        """Returns the arguments of `__init__`; a rule without any inherits this.

        Raises:
          NotImplementedError: `__init__` has arguments, and the rule does not override
            this method.
        """
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
    """Returns the names of a rule's arguments if it does not override `get_config`."""
    if getattr(type(rule), "get_config", None) is not Rule.get_config:
        return []
    several = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
    arguments = list(inspect.signature(type(rule).__init__).parameters.values())[1:]
    return [each.name for each in arguments if each.kind not in several]


def type_of_moments(layer):
    """Returns the type in which a layer's rule computes: float64, or else float32."""
    return "float64" if layer.compute_dtype == "float64" else "float32"


def copy_of(rule, owner):
    """Returns a copy of a rule, without variables.

    Args:
      rule: A `Rule`, another object with its methods, or the dict to which
        `keras.saving.serialize_keras_object` serialized one.
      owner: The name to begin messages with.

    Raises:
      ValueError: If `rule` is none of these.
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
