# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Converts models with quantized weights to models that hold codes."""

import keras
import numpy as np
from keras.src.models.functional import Functional

from tf_capsops import layers, models
from tf_capsops.codes import checked_bits
from tf_capsops.ops.squash import squash


def convert(model, bits=None):
    """Returns a copy of a model in which finished layers hold codes.

    A layer is finished if its weights are all zero or powers of two of one code book,
    as after the last step of `tf_capsops.inq.IncrementalQuantization`. `Conv2D` becomes
    `tf_capsops.layers.InqConv2D`, `Dense` becomes `InqDense`, and `PrimaryCaps` a model
    of `InqConv2D` and the squash that follows, all by the same names. Other layers stay
    as they are, with the same weights: those that are not finished; kinds for which no
    operator takes codes, such as `CapsuleConv2D` and `DigitCaps`; a `Conv2D` of several
    groups or with channels first; and what is inside a layer of another kind.

    Outputs are the same up to the rounding of sums.

    Args:
      model: A `Sequential` or functional model that has been built, or a
        `tf_capsops.models.CapsNet`. Models inside it are converted too.
      bits: Bits of a weight, 2 to 8; a layer that needs more stays as it is. None for
        the fewest, at most 8, that hold the layer's weights.

    Returns:
      A new model, compiled if `model` is. For a `CapsNet` it is a functional model from
      images to the two outputs, not compiled, which decodes the longest capsule.

    Raises:
      ValueError: `model` is of another kind or not built, or `bits` is not as above.

    >>> model = keras.Sequential([keras.Input([4]), keras.layers.Dense(3)])
    >>> kernel = model.layers[0].kernel
    >>> kernel.assign(tf_capsops.inq.quantize(kernel, bits=3))
    <tf.Tensor...
    >>> tf_capsops.inq.convert(model).layers[0].bits
    3
    """
    bits = None if bits is None else checked_bits("convert", bits)
    if not getattr(model, "built", True):
        raise ValueError(f"convert: {model.name} has no weights yet: build it first")
    if isinstance(model, models.CapsNet):
        model = model.inference_model()
    if not isinstance(model, (keras.Sequential, Functional)):
        raise ValueError(
            "convert: the model must be Sequential, functional or a CapsNet, got "
            f"{type(model).__name__}: convert the models of those kinds in it"
        )
    fillings = []

    def clone(layer):
        twin, fill = _converted(layer, bits) or _copied(layer)
        fillings.append(fill)
        return twin

    result = keras.models.clone_model(model, clone_function=clone, recursive=True)
    for fill in fillings:
        fill()
    return result


def _copied(layer):
    """A layer of the same kind, and a function that gives it the weights once built."""
    twin = type(layer).from_config(layer.get_config())
    return twin, lambda: twin.set_weights(layer.get_weights())


def _converted(layer, bits):
    """As `_copied`, a layer that holds codes; None where there is none."""
    if type(layer) is layers.PrimaryCaps:
        return _primary_caps(layer, bits)
    if type(layer) not in (keras.layers.Conv2D, keras.layers.Dense):
        return None
    kernel = getattr(layer, "kernel", None)
    bits = _enough_bits(kernel, bits) if isinstance(kernel, keras.Variable) else None
    if bits is None:
        return None
    shared = {
        "bits": bits,
        "activation": layer.activation,
        "use_bias": layer.use_bias,
        "bias_initializer": layer.bias_initializer,
        "bias_regularizer": layer.bias_regularizer,
        "bias_constraint": layer.bias_constraint,
        "trainable": layer.trainable,
        "dtype": layer.dtype_policy,
        "name": layer.name,
    }
    if isinstance(layer, keras.layers.Dense):
        twin = layers.InqDense(layer.units, **shared)
    elif layer.groups == 1 and layer.data_format == "channels_last":
        twin = layers.InqConv2D(
            layer.filters,
            layer.kernel_size,
            strides=layer.strides,
            padding=layer.padding,
            dilation_rate=layer.dilation_rate,
            **shared,
        )
    else:
        return None

    def fill():
        twin.set_kernel(np.reshape(kernel, twin.codes.shape))
        if twin.bias is not None:
            twin.bias.assign(layer.bias)

    return twin, fill


def _primary_caps(layer, bits):
    converted = _converted(layer.conv, bits)
    if converted is None:
        return None
    conv, fill = converted
    policy = layer.dtype_policy
    capsules = keras.layers.Reshape((-1, layer.capsule_dim), dtype=policy)
    squashed = keras.layers.Activation(squash, dtype=policy, name="squash")
    return keras.Sequential([conv, capsules, squashed], name=layer.name), fill


def _enough_bits(kernel, bits):
    """Bits that hold all weights of a kernel: `bits`, or the fewest for None.

    None where there are no such bits, for the kernel is not finished.
    """
    weights = np.asarray(kernel).astype(np.float64)
    mantissas, above = np.frexp(np.abs(weights[weights != 0]))
    if not np.all(mantissas == 0.5):
        return None
    powers = int(above.max() - above.min()) + 1 if above.size else 1
    fewest = 2 + (powers - 1).bit_length()
    return None if fewest > (bits or 8) else bits or fewest
