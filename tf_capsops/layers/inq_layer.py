# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The base class of layers whose kernels are powers of two."""

import keras
import numpy as np
import tensorflow as tf

from tf_capsops.arguments import boolean, integers
from tf_capsops.codes import checked_bits, decode, encode
from tf_capsops.layers.weights import require_built, title, weights_by_name
from tf_capsops.ops.inq_conv import inq_conv2d
from tf_capsops.packing import pack, unpack


class InqLayer(keras.layers.Layer):
    """A layer with its kernel as codes, a bias and an activation.

    Weights: `codes`, uint8, of the kernel's shape, and `top_exponent`, an int64 with
    the range of an int32, which are not trained; and `bias`. In a file a code takes
    `bits` bits.
    """

    def __init__(
        self,
        bits,
        activation=None,
        use_bias=True,
        kernel_initializer="glorot_uniform",
        bias_initializer="zeros",
        bias_regularizer=None,
        bias_constraint=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.bits = checked_bits(type(self).__name__, bits)
        self.activation = keras.activations.get(activation)
        self.use_bias = boolean(type(self).__name__, "use_bias", use_bias)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.bias_regularizer = keras.regularizers.get(bias_regularizer)
        self.bias_constraint = keras.constraints.get(bias_constraint)

    @property
    def kernel(self):
        """The kernel as numbers, a NumPy array of float32."""
        return decode(self.codes, self.bits, self.top_exponent.numpy())

    def set_kernel(self, weights, top_exponent=None):
        """Quantizes weights and makes them the kernel.

        Args:
          weights: numbers of the kernel's shape; those of a code book stay what they
            are.
          top_exponent: as `tf_capsops.inq.encode` takes it.

        Raises:
          ValueError: the shape differs, `tf_capsops.inq.encode` refuses an argument, or
            the layer has not been built.
        """
        require_built(self)
        codes, top_exponent = encode(weights, self.bits, top_exponent)
        if codes.shape != tuple(self.codes.shape):
            raise ValueError(
                f"{title(self)}: the kernel must have shape {tuple(self.codes.shape)}, "
                f"got {codes.shape}"
            )
        self.codes.assign(codes)
        self.top_exponent.assign(top_exponent)

    def set_weights(self, weights):
        self._assign(weights_by_name(self, weights))

    def save_own_variables(self, store):
        store["codes"] = pack(self.codes, self.bits)
        store["top_exponent"] = self.top_exponent.numpy()
        if self.bias is not None:
            store["bias"] = self.bias.numpy()

    def load_own_variables(self, store):
        require_built(self)
        names = sorted(variable.name for variable in self.weights)
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
        return {
            **super().get_config(),
            "bits": self.bits,
            "activation": keras.activations.serialize(self.activation),
            "use_bias": self.use_bias,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
            "bias_regularizer": keras.regularizers.serialize(self.bias_regularizer),
            "bias_constraint": keras.constraints.serialize(self.bias_constraint),
        }

    def _assign(self, values):
        """Sets weights by their names: all of them or, if one does not fit, none."""
        for variable in self.weights:
            shape, given = tuple(variable.shape), values[variable.name].shape
            if shape != given:
                raise ValueError(
                    f"{title(self)}: {variable.name} must have shape {shape}, got "
                    f"{given}"
                )
            if isinstance(variable, _Integers):
                variable.check(values[variable.name])
        for variable in self.weights:
            variable.assign(values[variable.name])

    def _add_weights(self, kernel_shape, drawn_shape, outputs):
        """Adds the codes of a kernel drawn in the shape that plain layers give it."""
        with tf.init_scope():
            drawn = self.kernel_initializer(drawn_shape, dtype="float32")
            codes, top_exponent = encode(drawn, self.bits)
        self.codes = _Integers(
            title(self), "codes", codes.reshape(kernel_shape), 0, 2 ** (self.bits - 1)
        )
        self._add_top_exponent(top_exponent)
        self.bias = None
        if self.use_bias:
            self.bias = self.add_weight(
                name="bias",
                shape=(outputs,),
                initializer=self.bias_initializer,
                regularizer=self.bias_regularizer,
                constraint=self.bias_constraint,
            )

    @tf.__internal__.tracking.no_automatic_dependency_tracking
    def _add_top_exponent(self, value):
        # TensorFlow keeps int32 variables in the host's memory, which functions that
        # XLA compiles for a GPU cannot read. Checkpoints have an int32.
        self.top_exponent = _Integers(
            title(self), "top_exponent", np.int64(value), -(2**31), 2**31 - 1
        )
        self._track_trackable(_SavedAsInt32(self.top_exponent), "top_exponent")

    def _trackable_children(self, save_type="checkpoint", **kwargs):
        children = super()._trackable_children(save_type, **kwargs)
        if save_type == "savedmodel" and "top_exponent" in children:
            children["top_exponent"] = self.top_exponent
        return children

    def _convolve(self, images, **options):
        """Convolves with the kernel, then applies bias and activation."""
        outputs = inq_conv2d(
            images,
            tf.convert_to_tensor(self.codes),
            tf.cast(self.top_exponent, "int32"),
            bits=self.bits,
            **options,
        )
        return self._finished(outputs)

    def _finished(self, outputs):
        """Applies bias and activation, which follow the convolution."""
        if self.bias is not None:
            outputs += tf.convert_to_tensor(self.bias)
        return self.activation(outputs)


class _Integers(keras.Variable):
    """A variable of integers in a range, which is not trained.

    It refuses other numbers, which a plain variable would cast: 0.5 to 0, 257 to 1.
    """

    def __init__(self, owner, name, value, smallest, largest):
        self._range = owner, name, smallest, largest
        super().__init__(value, dtype=value.dtype.name, trainable=False, name=name)

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
    """Stands for a variable in `tf.train.Checkpoint`, where it is an int32."""

    def __init__(self, variable):
        self._variable = variable

    def _serialize_to_tensors(self):
        with tf.device("CPU:0"):
            return {"VARIABLE_VALUE": tf.cast(self._variable, "int32")}

    def _restore_from_tensors(self, tensors):
        self._variable.assign(tensors["VARIABLE_VALUE"])
