# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Registers layers and models with Keras, so that saved models find them."""

import inspect

import keras


def registered(cls):
    """A class decorator that registers a Keras layer or model as ours.

    `keras.Layer` has a `__new__(cls, *args, **kwargs)`, which is what `help()`, editors
    and Sphinx would show. Registered classes show the arguments of `__init__`.

    >>> import inspect
    >>> import keras
    >>> import tf_capsops
    >>> @tf_capsops.registered.registered
    ... class Scale(keras.layers.Layer):
    ...     def __init__(self, factor=2.0):
    ...         super().__init__()
    >>> inspect.signature(Scale)
    <Signature (factor=2.0)>
    """
    cls.__signature__ = _Constructor()
    return keras.saving.register_keras_serializable("tf_capsops")(cls)


class _Constructor:
    """The `__signature__` of a class and, since it is looked up, of its subclasses."""

    def __get__(self, instance, owner):
        if instance is not None:
            raise AttributeError("__signature__")  # instances use __call__'s own
        signature = inspect.signature(owner.__init__)
        _, *parameters = signature.parameters.values()
        return signature.replace(parameters=parameters)
