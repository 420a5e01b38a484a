# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The base class of layers that compute capsules with an ordinary convolution."""

import keras

from tf_capsops.layers.coded import books_config, checked_books
from tf_capsops.layers.conv2d import Conv2D
from tf_capsops.layers.inq_conv2d import InqConv2D
from tf_capsops.layers.window import set_window

_ARGUMENTS = (
    "use_bias",
    "kernel_initializer",
    "bias_initializer",
    "kernel_regularizer",
    "bias_regularizer",
    "kernel_constraint",
    "bias_constraint",
)


class Convolving(keras.layers.Layer):
    """Base class of `PrimaryCaps` and `PoseCaps`, which hold a convolution, `conv`.

    With `bits` the convolution is an `InqConv2D`, whose kernel has no regularizer and
    no constraint.

    The config of such a layer holds its arguments. It also has `"conv"` if somebody
    changed the convolution: the entries of the convolution's config, such as
    `trainable` or the dtype policy, that differ from those of a new one.
    """

    def __init__(
        self,
        filters,
        kernel_size,
        strides,
        padding,
        use_bias,
        kernel_initializer,
        bias_initializer,
        kernel_regularizer,
        bias_regularizer,
        kernel_constraint,
        bias_constraint,
        conv=None,
        bits=None,
        per_channel=False,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.bits, self.per_channel = checked_books(self, bits, per_channel)
        set_window(self, kernel_size, strides, padding)
        new = self._new_conv(
            filters,
            use_bias=use_bias,
            kernel_initializer=kernel_initializer,
            bias_initializer=bias_initializer,
            kernel_regularizer=kernel_regularizer,
            bias_regularizer=bias_regularizer,
            kernel_constraint=kernel_constraint,
            bias_constraint=bias_constraint,
        )
        self.conv = type(new).from_config({**new.get_config(), **conv}) if conv else new

    @keras.layers.Layer.dtype_policy.setter
    def dtype_policy(self, policy):
        keras.layers.Layer.dtype_policy.fset(self, policy)
        self.conv.dtype_policy = policy

    def _new_conv(self, filters, kernel_regularizer, kernel_constraint, **arguments):
        arguments |= {
            "strides": self.strides,
            "padding": self.padding,
            "dtype": self.dtype_policy,
            "name": "conv",
        }
        if self.bits is not None:
            arguments |= books_config(self)
            return InqConv2D(filters, self.kernel_size, **arguments)
        return Conv2D(
            filters,
            self.kernel_size,
            data_format="channels_last",
            kernel_regularizer=kernel_regularizer,
            kernel_constraint=kernel_constraint,
            **arguments,
        )

    def get_config(self):
        conv = self.conv.get_config()
        given = {name: getattr(self.conv, name, None) for name in _ARGUMENTS}
        new = self._new_conv(self.conv.filters, **given).get_config()
        changes = {name: conv[name] for name in conv if conv[name] != new.get(name)}
        return {
            **super().get_config(),
            "kernel_size": self.kernel_size,
            "strides": self.strides,
            "padding": self.padding,
            **{name: conv.get(name) for name in _ARGUMENTS},
            **({"conv": changes} if changes else {}),
            **books_config(self),
        }
