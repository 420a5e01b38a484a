# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Converts models with quantized weights to models that hold codes."""

import dataclasses
import warnings

import keras

from tf_capsops.inq import activations, routing
from tf_capsops.inq.kernels import is_taken_apart, layers_in
from tf_capsops.inq.reporting import LayerReport, Report
from tf_capsops.inq.twins import Books, assign_others, copied, twin
from tf_capsops.layers.coded import holds_codes
from tf_capsops.models.autoencoder import Autoencoder
from tf_capsops.models.p_capsnet import PCapsNet
from tf_capsops.models.segmenter import Segmenter


def convert(
    model,
    bits=None,
    per_channel=False,
    all_kinds=False,
    activation_bits=None,
    calibration=None,
    routing_bits=None,
):
    """Returns a copy of a model in which finished layers hold codes.

    A layer is finished if its kernel's weights are all zero or powers of two of one
    code book, as after the last step of `tf_capsops.inq.IncrementalQuantization`.
    `Conv2D` becomes `tf_capsops.layers.InqConv2D`, `Dense` becomes `InqDense`,
    `DepthwiseConv2D` becomes `InqDepthwiseConv2D`, `SeparableConv2D` a model of
    `InqDepthwiseConv2D` and a 1x1 `InqConv2D`, and `PrimaryCaps` a model of `InqConv2D`
    and the squash that follows, all by the same names.

    With `all_kinds`, all layers of this package that have a kernel hold codes, and stay
    of their kind: capsule layers such as `DigitCaps` and `CapsuleConv2D`, `PoseCaps`,
    `HighOrderConv2D`, and a `PrimaryCaps` with `flatten=False` or channels first.
    `Conv1D`, `Conv3D`, `Conv2DTranspose` and `Conv3DTranspose` become `InqConv1D` and
    so on. Without `all_kinds` they keep their weights, as in earlier releases, so that
    weights and checkpoints that an earlier release saved of a converted model load in
    the result.

    Other layers keep their weights: those that are not finished; kinds that no layer
    with codes can replace, such as `LSTM`; a `Conv2D` with several groups or with
    channels first; and layers inside a layer of another kind. A warning names those of
    them that have a kernel, and `tf_capsops.inq.report` lists all layers with the
    reasons.

    Operations between layers, such as `a + b` or `keras.ops.relu`, stay as they are,
    and a layer that is used several times is one layer in the copy, too.

    Outputs are the same up to the rounding of sums. The copy of a model that refuses
    integer images refuses them too.

    With `activation_bits`, `tf_capsops.layers.FakeQuant` rounds the inputs of every
    layer with a kernel, even if it keeps its weights, and the outputs of capsule
    layers. Routing itself computes in floating point. A tensor that several layers read
    is rounded once. The ranges are the smallest and largest numbers that `calibration`
    causes, or the ranges that `IncrementalQuantization(activation_bits=...)` trained;
    in that case outputs are the same, too. A `FakeQuant` of the model keeps its bits
    and range.

    With `routing_bits`, layers that route by agreement do so in few bits: `DigitCaps`,
    `SlimCaps2D` and its like, and `DenseCaps` with the rule `Dynamic`. The copies have
    the attribute `routing_bits`, round logits, coefficients, sums of votes, and the
    vectors between iterations, and have a range of `calibration` for each array in each
    iteration. Layers that have ranges of an earlier `convert` keep them without
    `routing_bits`.

    Args:
      model: A `Sequential` or functional model that has been built, or a
        `tf_capsops.models.CapsNet`, `SegCaps` or `UCaps3D`. Models inside it are
        converted too.
      bits: Bits of a weight, 2 to 8; a layer that needs more stays as it is. None for
        the fewest, at most 8, that hold the layer's weights.
      per_channel: Whether each output channel has its own code book, as
        `IncrementalQuantization` has made them with `per_channel=True`.
      all_kinds: Whether to convert all kinds of layers for which there are codes.
      activation_bits: Bits of an activation, 2 to 8; None for floating point.
      calibration: Inputs such as the model will see: an array, or a list or dict of
        them as the model takes it; or a `tf.data.Dataset` of batches, of which labels
        are ignored. Some 100 will do. None for the ranges of the training.
      routing_bits: Bits of the arrays of routing, 2 to 8, which needs `calibration`;
        None for floating point.

    Returns:
      A new model, compiled if `model` is. For a `CapsNet` it is a functional model from
      images to the two outputs, not compiled, which decodes the longest capsule.

    Raises:
      ValueError: `model` is of another kind or not built, or has a `call` of its own; a
        layer, or a loss of a compiled model, has no config from which to make its copy;
        there is no range for an activation; `routing_bits` meets a layer that routes in
        another way, or a model without routing; or another argument is not as above.

    >>> import keras
    >>> import tf_capsops
    >>> model = keras.Sequential([keras.Input([4]), keras.layers.Dense(3)])
    >>> kernel = model.layers[0].kernel
    >>> kernel.assign(tf_capsops.inq.quantize(kernel, bits=3))
    <tf.Tensor...
    >>> tf_capsops.inq.convert(model).layers[0].bits
    3
    """
    books = Books.checked(
        *("convert", bits, per_channel, all_kinds, activation_bits, routing_bits)
    )
    if calibration is not None and activation_bits is None and routing_bits is None:
        raise ValueError(
            "convert: calibration needs activation_bits or routing_bits, got None"
        )
    if calibration is None and routing_bits is not None:
        raise ValueError(
            "convert: routing_bits needs calibration, images such as the model will "
            "see, got None"
        )
    model = _checked("convert", model)
    routing.require(_whole_layers(model), books.routing_bits)
    reports = _reports(model, books)
    message = Report(reports.values()).warning()
    if message:
        warnings.warn(f"convert: {message}", stacklevel=2)
    copies, fillings = {}, []
    is_calibrated = calibration is not None
    rounded = activations.Copies(books.activation_bits, is_calibrated, model)

    def clone(layer):
        if id(layer) not in copies:
            copies[id(layer)] = made(layer)
        return copies[id(layer)]

    def made(layer):
        if is_taken_apart(layer):
            return _cloned(layer, clone, rounded)
        of_layer = reports.get(id(layer))
        if of_layer and of_layer.bits and not any(map(holds_codes, layers_in(layer))):
            own = dataclasses.replace(books, bits=of_layer.bits)
            copy, fill = twin(layer, own)
        else:
            copy, fill = _copied(layer, books)
        fillings.append(fill)
        rounded.add(layer, copy)
        return copy

    result = clone(model)
    for fill in fillings:
        fill()
    if calibration is not None:
        routed = routing.routed(result) if books.routing_bits else ()
        rounded.calibrate(result, calibration, routed)
    return result


def report(
    model,
    bits=None,
    per_channel=False,
    all_kinds=False,
    activation_bits=None,
    routing_bits=None,
):
    """Lists how `tf_capsops.inq.convert` changes each layer, or why it does not.

    Args:
      model: A model that `convert` takes, or one that it has returned.
      bits, per_channel, all_kinds, activation_bits, routing_bits: as `convert` takes
        them.

    Returns:
      A list with an entry for each layer that has weights. An entry has the fields
      `layer` (its path), `kind` (its class), `becomes` (the class that holds its codes,
      or None), `bits` (of a weight; None without codes), `weights` (how many numbers
      are in its kernels), `bytes_before` and `bytes_after` (of all its weights in a
      file), `why_not` (a phrase, or None), `activation_bits` (of the numbers that it
      reads, or None for floating point; in a model that `convert` has made, those of
      each `FakeQuant`) and `routing_bits` (of the arrays of its routing, or None).
      `str` makes a table of the list.

    Raises:
      ValueError: as for `convert`.

    >>> import keras
    >>> import tf_capsops
    >>> model = keras.Sequential(
    ...     [keras.Input([4]), keras.layers.Dense(9), keras.layers.Dense(3)])
    >>> kernel = model.layers[0].kernel
    >>> kernel.assign(tf_capsops.inq.quantize(kernel, bits=3))
    <tf.Tensor...
    >>> report = tf_capsops.inq.report(model)
    >>> report[0].becomes, report[0].bits, report[0].bytes_before, report[0].bytes_after
    ('InqDense', 3, 180, 54)
    >>> report[1].why_not
    '27 of 27 weights of kernel are not quantized: neither zero nor a power of two'
    """
    books = Books.checked(
        *("report", bits, per_channel, all_kinds, activation_bits, routing_bits)
    )
    return Report(_reports(_checked("report", model), books).values())


def _checked(owner, model):
    """Returns a model that can be cloned, or raises a ValueError."""
    if not getattr(model, "built", True):
        raise ValueError(f"{owner}: {model.name} has no weights yet: build it first")
    if isinstance(model, Autoencoder):
        model = model.inference_model()
    if not is_taken_apart(model):
        raise ValueError(
            f"{owner}: the model must be Sequential, functional or a CapsNet, got "
            f"{type(model).__name__}: convert the models of those kinds in it"
        )
    return model


def _reports(model, books):
    """Returns the `LayerReport`s of layers with weights that cloning reaches, by id."""
    found = {}
    for layer in model.layers:
        if is_taken_apart(layer):
            found.update(_reports(layer, books))
        elif layer.weights and id(layer) not in found:
            found[id(layer)] = LayerReport.of(layer, books)
    return found


def _cloned(model, clone, rounded):
    """Returns a copy of a Sequential or functional model; `clone` copies its layers.

    `rounded`, an `activations.Copies`, rounds the activations.
    """
    if model.compiled:
        try:
            keras.saving.deserialize_keras_object(model.get_compile_config())
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"convert: the loss, a metric or the optimizer of {model.name} cannot "
                "be copied: decorate your own with "
                "keras.saving.register_keras_serializable(), or convert the model "
                "before you compile it"
            ) from error
    if isinstance(model, Segmenter):
        parts = {"network": clone(model.network), "decoder": clone(model.decoder)}
        result = type(model)(**{**model.get_config(), **parts})
        if model.compiled:
            result.compile_from_config(model.get_compile_config())
        return result
    result = _with_rounding(model, clone, rounded)
    if isinstance(model, PCapsNet):
        result.__class__ = PCapsNet  # Keras has made a plain Sequential of it
    if type(result).call is not type(model).call:
        kind = type(model).__name__
        raise ValueError(
            f"convert: the {kind} {model.name} has a call method of its own, which its "
            "copy would not have: convert the models in it"
        )
    if isinstance(model, PCapsNet) or result.dtype_policy != model.dtype_policy:
        result.dtype_policy = model.dtype_policy
        if model.compiled:  # Keras scales the loss if the policy asks for it
            result.compile_from_config(model.get_compile_config())
    return result


def _with_rounding(model, clone, rounded):
    if not isinstance(model, keras.Sequential):
        return keras.models.clone_model(model, None, clone, rounded.call)
    plain = keras.models.clone_model(model, clone_function=clone)
    layers = rounded.interleaved(plain.layers)
    if len(layers) == len(plain.layers):
        return plain
    result = keras.Sequential(
        [plain.inputs[0], *layers], name=plain.name, trainable=plain.trainable
    )
    if plain.compiled:
        result.compile_from_config(plain.get_compile_config())
    return result


def _whole_layers(model):
    """Yields the layers of a model that are copied whole."""
    for layer in model.layers:
        if is_taken_apart(layer):
            yield from _whole_layers(layer)
        else:
            yield layer


def _copied(layer, books):
    """Returns a layer of the same kind, and a function that sets its weights later.

    Call the function once the copy has been built. Operations such as `a + b`, and
    `Lambda` layers, have no weights: the copied model uses the same objects.
    """
    if not isinstance(layer, keras.Layer) or isinstance(layer, keras.layers.Lambda):
        return layer, lambda: None
    changes = books.routing_of(layer)
    copy = copied(layer, **changes)
    if changes:
        return copy, lambda: assign_others(copy, layer)
    return copy, lambda: copy.set_weights(layer.get_weights())
