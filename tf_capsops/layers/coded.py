# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The base class of layers whose kernel may be stored as power-of-two codes."""

import keras
import numpy as np
import tensorflow as tf

from tf_capsops.arguments import boolean, integers
from tf_capsops.codes import checked_bits, encode
from tf_capsops.layers.weights import (
    named_weights,
    require_built,
    title,
    weights_by_name,
)
from tf_capsops.ops.inq_decode import inq_decode
from tf_capsops.packing import pack, unpack


class Coded(keras.layers.Layer):
    """A layer whose kernel is a Keras variable or, with `bits`, an array of codes.

    Each code stands for zero or for a power of two with a sign (`tf_capsops.inq`). A
    subclass assigns the result of `add_weight(name="kernel")` to `kernel`, and reads
    `kernel` as a tensor. With `bits` the layer has two weights in its place: `codes`,
    uint8 of the kernel's shape, and `top_exponent`, an int64 within the range of an
    int32. They do not train, and the kernel's regularizer and constraint have no
    effect. In a file, a code takes `bits` bits and a top exponent takes 32.

    With `per_channel`, every output channel has its own code book, and so its own top
    exponent. `channel_axes` are the neighboring axes of the kernel that run over the
    output channels; `top_exponent` has their sizes.

    Args:
      bits, per_channel: as `checked_books` takes them.
    """

    channel_axes = (-1,)

    def __init__(self, *args, bits=None, per_channel=False, **kwargs):
        super().__init__(*args, **kwargs)
        self.bits, self.per_channel = checked_books(self, bits, per_channel)

    @property
    def kernel(self):
        """The kernel: a Keras variable, or a tensor decoded from the codes.

        The tensor has the layer's compute dtype. Each access decodes the codes again.
        """
        return self._numbers if self.bits is None else self._decoded()

    @kernel.setter
    def kernel(self, variable):
        if self.bits is None:
            # Keras tracks the variable already, under the name of this property.
            object.__setattr__(self, "_numbers", variable)
        elif variable is not None:
            raise AttributeError(f"{title(self)} holds codes: call set_kernel")

    @property
    def book_axes(self):
        """The axes of the kernel that have a code book per element; () for one book."""
        return self.channel_axes if self.per_channel else ()

    def add_weight(self, *args, **kwargs):
        # A routing rule may later add its own variable with the name "kernel".
        is_own = kwargs.get("name") == "kernel" and not hasattr(self, "codes")
        if self.bits is None or not is_own:
            return super().add_weight(*args, **kwargs)
        self._add_codes(kwargs["shape"], kwargs["initializer"])
        return None

    def set_kernel(self, weights, top_exponent=None):
        """Quantizes weights and stores them as the kernel of a layer that holds codes.

        Args:
          weights: numbers of the kernel's shape. Numbers that are in the code book
            already do not change.
          top_exponent: as `tf_capsops.inq.encode` takes it.

        Raises:
          ValueError: the shape differs, `tf_capsops.inq.encode` rejects an argument,
            the layer has not been built, or the layer holds no codes.
        """
        require_built(self)
        if self.bits is None:
            raise ValueError(f"{title(self)} holds no codes: assign to its kernel")
        weights = np.asarray(weights)
        if weights.shape != tuple(self.codes.shape):
            raise ValueError(
                f"{title(self)}: the kernel must have shape {tuple(self.codes.shape)}, "
                f"got {weights.shape}"
            )
        codes, top_exponent = encode(weights, self.bits, top_exponent, self.book_axes)
        self.codes.assign(codes)
        self.top_exponent.assign(top_exponent)

    def set_weights(self, weights):
        if self.bits is None:
            super().set_weights(weights)
        else:
            self._assign(weights_by_name(self, weights))

    def save_own_variables(self, store):
        if self.bits is None:
            super().save_own_variables(store)
            return
        values = {name: each.numpy() for name, each in named_weights(self).items()}
        values["codes"] = pack(values["codes"], self.bits)
        values["top_exponent"] = values["top_exponent"].astype(np.int32)
        for name, value in values.items():
            store[name] = value

    def load_own_variables(self, store):
        if self.bits is None:
            super().load_own_variables(store)
            return
        require_built(self)
        names = sorted(named_weights(self))
        if sorted(store.keys()) != names:
            raise ValueError(
                f"{title(self)}: the file must hold {', '.join(names)} for it, got "
                f"{', '.join(sorted(store.keys())) or 'nothing'}"
            )
        values = {name: np.asarray(store[name]) for name in names}
        try:
            values["codes"] = unpack(values["codes"], self.bits, self.codes.shape)
        except ValueError as error:
            raise ValueError(f"{title(self)}: {error}") from error
        self._assign(values)

    def get_config(self):
        return {**super().get_config(), **books_config(self)}

    def _assign(self, values):
        """Sets weights by name: all of them or, if any does not fit, none."""
        variables = named_weights(self)
        for name, variable in variables.items():
            shape, given = tuple(variable.shape), values[name].shape
            if shape != given:
                raise ValueError(
                    f"{title(self)}: {name} must have shape {shape}, got {given}"
                )
            if isinstance(variable, _Integers):
                variable.check(values[name])
        for name, variable in variables.items():
            variable.assign(values[name])

    def _decoded(self):
        return inq_decode(
            tf.convert_to_tensor(self.codes),
            tf.convert_to_tensor(self.top_exponent),
            self.bits,
            tf.as_dtype(self.compute_dtype),
            [axis % len(self.codes.shape) for axis in self.book_axes],
        )

    def _add_codes(self, shape, initializer, drawn_shape=None):
        """Draws a kernel and adds its codes.

        The initializer is called with `drawn_shape` if given, and else with `shape`.
        """
        initializer = keras.initializers.get(initializer)
        with tf.init_scope():
            drawn = initializer(drawn_shape or shape, dtype="float32")
            drawn = np.reshape(drawn, shape)
            codes, top_exponent = encode(drawn, self.bits, axes=self.book_axes)
        self.codes = _Integers(title(self), "codes", codes, 0, 2 ** (self.bits - 1))
        self._add_top_exponent(top_exponent)

    @tf.__internal__.tracking.no_automatic_dependency_tracking
    def _add_top_exponent(self, value):
        # TensorFlow keeps int32 variables in host memory, where functions that XLA
        # compiled for a GPU cannot read them. Hence the int64; checkpoints store int32.
        self.top_exponent = _Integers(
            title(self), "top_exponent", np.int64(value), -(2**31), 2**31 - 1
        )
        self._track_trackable(_SavedAsInt32(self.top_exponent), "top_exponent")

    def _trackable_children(self, save_type="checkpoint", **kwargs):
        children = super()._trackable_children(save_type, **kwargs)
        if save_type == "savedmodel" and "top_exponent" in children:
            children["top_exponent"] = self.top_exponent
        return children


def holds_codes(layer):
    """Whether a layer stores its own kernel as codes."""
    return isinstance(layer, Coded) and layer.bits is not None


def checked_books(layer, bits, per_channel):
    """Checks and returns `bits` and `per_channel`, which all `Coded` layers take.

    Args:
      layer: the layer, named in error messages.
      bits: bits of a weight, 2 to 8, or None for a floating-point kernel.
      per_channel: whether each output channel has its own code book; True needs `bits`.

    Raises:
      ValueError: an argument is not as above.
    """
    owner = type(layer).__name__
    per_channel = boolean(owner, "per_channel", per_channel)
    if bits is not None:
        return checked_bits(owner, bits), per_channel
    if per_channel:
        raise ValueError(
            f"{owner}: per_channel is of code books: give bits from 2 to 8, too, got "
            "None"
        )
    return None, False


def books_config(layer):
    """Returns `bits` and `per_channel` for a config, omitting default values."""
    if layer.bits is None:
        return {}
    return {"bits": layer.bits, **({"per_channel": True} if layer.per_channel else {})}


class _Integers(keras.Variable):
    """An untrained variable of integers within a range.

    It rejects other numbers. An ordinary uint8 variable would silently cast them: 0.5
    to 0, and 257 to 1.
    """

    def __init__(self, owner, name, value, smallest, largest):
        self._range = owner, name, smallest, largest
        # The initial value is a function because Keras, in a scope where it only infers
        # shapes, accepts no values.
        super().__init__(
            lambda shape, dtype: tf.constant(value, dtype, shape),
            shape=np.shape(value),
            dtype=value.dtype.name,
            trainable=False,
            name=name,
        )

    def check(self, value):
        """Raises a ValueError unless all numbers are integers in the range."""
        owner, name, smallest, largest = self._range
        integers(owner, name, np.asarray(value), smallest, largest)

    def assign(self, value):
        is_symbolic = tf.is_tensor(value) and not hasattr(value, "numpy")
        if not is_symbolic:
            self.check(value)
        return super().assign(value)


class _SavedAsInt32(tf.__internal__.tracking.Trackable):
    """Saves and restores a variable in a `tf.train.Checkpoint` as an int32."""

    def __init__(self, variable):
        self._variable = variable

    def _serialize_to_tensors(self):
        with tf.device("CPU:0"):
            return {"VARIABLE_VALUE": tf.cast(self._variable, "int32")}

    def _restore_from_tensors(self, tensors):
        self._variable.assign(tensors["VARIABLE_VALUE"])
