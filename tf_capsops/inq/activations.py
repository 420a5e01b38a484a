# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rounds the activations around layers to few bits, in training and in copies.

Rounded are the inputs of every layer that has a kernel, and the outputs of capsule
layers. A tensor is rounded once, however many layers read it.
"""

import keras
import tensorflow as tf

from tf_capsops import layers
from tf_capsops.inq.kernels import is_taken_apart, layers_and_kernels, layers_in
from tf_capsops.layers.capsule_conv import CapsuleConv
from tf_capsops.layers.coded import holds_codes
from tf_capsops.layers.fake_quant import FakeQuant
from tf_capsops.layers.routed import Routed
from tf_capsops.layers.slim_caps import SlimCaps
from tf_capsops.models.autoencoder import Autoencoder
from tf_capsops.models.segmenter import Segmenter
from tf_capsops.ops.fake_quant import fake_quant

_CAPSULES = (
    *(CapsuleConv, Routed, SlimCaps),
    *(layers.DigitCaps, layers.PoseCaps, layers.PrimaryCaps),
)
_MOMENTUM = 0.9


class Around:
    """The `FakeQuant` of each input and output of a layer, or None for no rounding.

    Args:
      layer: A layer of a functional or Sequential model.
      make: A function that makes a `FakeQuant`, or None, of the place's number among
        inputs and outputs, and the keyword arguments `name` and `dtype`.
    """

    def __init__(self, layer, make):
        sides = {"input": layer.input}
        sides |= {"output": layer.output} if isinstance(layer, _CAPSULES) else {}
        self.fakes = []
        for side, tensors in sides.items():
            for number, tensor in enumerate(keras.tree.flatten(tensors)):
                name = f"{layer.name}_{side}" + (f"_{number}" if number else "")
                is_real = tf.as_dtype(tensor.dtype).is_floating
                place = len(self.fakes)
                fake = make(place, name=name, dtype=layer.dtype_policy)
                self.fakes.append(fake if is_real else None)
        self.inputs = len(keras.tree.flatten(layer.input))

    def call(self, function, inputs, *args, **kwargs):
        """Calls a layer, or its `call`, with rounded inputs; returns rounded outputs.

        The first argument is what is rounded.
        """
        inputs = _rounded(self.fakes[: self.inputs], inputs)
        outputs = function(inputs, *args, **kwargs)
        return _rounded(self.fakes[self.inputs :], outputs)


class Simulated:
    """The `call` of a layer in training, with rounded inputs and outputs.

    It stands in the place of the layer's own `call`, and stays there after training,
    for `convert` to find the ranges. By then they are constants, because an exported
    model can have no variables but those of its layers.

    Args:
      layer: The layer.
      follows: The `Around` whose ranges follow the batches of training.
    """

    def __init__(self, layer, follows):
        self.own = layer.call.own if is_simulated(layer) else layer.call
        self.layer = layer
        self.follows = self.around = follows

    def __call__(self, *args, **kwargs):
        return self.around.call(self.own, *args, **kwargs)

    def hold(self):
        """Lets the ranges follow the batches."""
        self.around = self.follows

    def release(self):
        """Lets the ranges stay what they are now."""
        fakes = self.follows.fakes
        self.around = Around(self.layer, lambda place, **_: _constant(fakes[place]))


def is_simulated(layer):
    """Whether training has given a layer rounded inputs and outputs."""
    return isinstance(getattr(layer, "call", None), Simulated)


def simulate(roots, bits):
    """Gives the layers in some models or layers rounded inputs and outputs.

    Returns:
      A list of `Simulated`.

    Raises:
      ValueError: A model is of a kind that `convert` does not take.
    """

    def make(place, **kwargs):
        return _built(FakeQuant(bits, _MOMENTUM, **kwargs))

    found = {}
    for root in roots:
        for layer in _whole_layers(root):
            if is_rounded(layer) and id(layer) not in found:
                found[id(layer)] = Simulated(layer, Around(layer, make))
    for simulated in found.values():
        simulated.layer.call = simulated
    return list(found.values())


def move(model, copy):
    """Gives a copy of a model the ranges of training, which its config lacks."""
    for layer, of_copy in zip(_whole_layers(model), _whole_layers(copy), strict=True):
        if is_simulated(layer):
            of_copy.call = Simulated(of_copy, layer.call.follows)
            of_copy.call.release()


def is_rounded(layer):
    """Whether inputs of a layer are rounded: it has a kernel, or codes of one."""
    return bool(layers_and_kernels(layer)) or any(map(holds_codes, layers_in(layer)))


def around_copy(layer, bits, is_calibrated):
    """The new `FakeQuant`s around the copy of a layer, an `Around`.

    Args:
      layer: The layer that is copied.
      bits: Bits of a rounded number.
      is_calibrated: Whether a calibration follows; otherwise the ranges are those of
        the training.

    Raises:
      ValueError: There are no such ranges.
    """
    if not is_calibrated and not is_simulated(layer):
        raise ValueError(
            f"convert: activation_bits needs ranges, and {layer.path or layer.name} "
            "has none: give calibration, images such as the model will see, or train "
            "with IncrementalQuantization(activation_bits=...)"
        )
    learned = [] if is_calibrated else layer.call.follows.fakes

    def make(place, **kwargs):
        if not is_calibrated and not (learned[place] and learned[place].has_range()):
            return None  # what comes here is rounded already
        fake = _built(FakeQuant(bits, **kwargs))
        if not is_calibrated:
            fake.set_weights(learned[place].get_weights())
        return fake

    return Around(layer, make)


def called(arounds, copy, *args, **kwargs):
    """Calls a copy in a functional model, with the `FakeQuant`s around it."""
    around = arounds.get(id(copy))
    if around:
        return around.call(copy, *args, **kwargs)
    outputs = copy(*args, **kwargs)
    if isinstance(copy, FakeQuant):
        outputs._capsops_is_rounded = True
    return outputs


def interleaved(arounds, copies):
    """The layers of a Sequential model with the `FakeQuant`s between them, a list."""
    result = []
    for copy in copies:
        around = arounds.get(id(copy))
        first, *last = around.fakes if around else [None]
        follows = result and isinstance(result[-1], FakeQuant)
        result += [first] if first and not follows else []
        result += [copy, *filter(None, last)]
    return result


def calibrate(model, arounds, images):
    """Sets the ranges of new `FakeQuant`s to those of some images' activations.

    The numbers that flow through the model meanwhile are not rounded by them.

    Args:
      model: A model with the layers of `arounds`.
      arounds: The `Around` of each layer that has one.
      images: As `convert` takes them.

    Raises:
      ValueError: `images` are not as above, or an activation is not finite.
    """
    new = {id(fake) for around in arounds for fake in around.fakes}
    fakes = [each for each in layers_in(model) if id(each) in new]
    seen = {id(fake): [] for fake in fakes}

    def recorder(fake):
        def call(inputs, training=None):
            ends = tf.reduce_min(inputs), tf.reduce_max(inputs)
            seen[id(fake)].append(tf.cast(ends, tf.float32))
            return inputs

        return call

    run = model.reconstruct if isinstance(model, Segmenter) else model
    for fake in fakes:
        fake.call = recorder(fake)
    try:
        for batch in _batches(images):
            run(batch)
    finally:
        for fake in fakes:
            del fake.call
    for fake in fakes:
        fake.calibrate(seen[id(fake)])


def _batches(images):
    """Yields the inputs in a data set, or arrays of some 100 images."""
    if not isinstance(images, tf.data.Dataset):
        images = tuple(images) if isinstance(images, list) else images
        try:
            images = tf.data.Dataset.from_tensor_slices((images,)).batch(100)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"convert: calibration must be arrays or a tf.data.Dataset: {error}"
            ) from error
    for batch in images:
        yield batch[0] if isinstance(batch, tuple) else batch


def _whole_layers(root):
    """The layers of a model that are copied whole, in order."""
    if isinstance(root, Autoencoder) or is_taken_apart(root):
        return [each for layer in root.layers for each in _whole_layers(layer)]
    if isinstance(root, keras.Model):
        raise ValueError(
            f"activation_bits: {root.name} must be Sequential, functional or a "
            f"CapsNet, got {type(root).__name__}"
        )
    return [root]


def _rounded(fakes, tensors):
    """Rounds tensors, a nest, but for those that have been rounded before."""
    if not any(fakes):
        return tensors
    flat = keras.tree.flatten(tensors)
    flat = [_once(*each) for each in zip(fakes, flat, strict=True)]
    return keras.tree.pack_sequence_as(tensors, flat)


def _once(fake, tensor):
    """Rounds a tensor, or returns what it was rounded to before."""
    if fake is None or hasattr(tensor, "_capsops_is_rounded"):
        return tensor
    if not hasattr(tensor, "_capsops_rounded"):
        tensor._capsops_rounded = fake(tensor)
        tensor._capsops_rounded._capsops_is_rounded = True
    return tensor._capsops_rounded


def _built(fake):
    fake.build(None)
    return fake


def _constant(fake):
    """The function that a `FakeQuant` is now; None if it has seen no batch."""
    if not fake or not fake.has_range():
        return None
    lo, hi = map(float, fake.get_weights())
    return lambda tensor: fake_quant(tensor, lo, hi, fake.bits)
