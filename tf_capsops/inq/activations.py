# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rounds the activations around layers to few bits, in training and in copies.

These activations are the inputs of every layer that has a kernel, and the outputs of
capsule layers. A tensor is rounded once, however many layers read it.
"""

import contextlib
import itertools

import keras
import tensorflow as tf

from tf_capsops import layers
from tf_capsops.inq.kernels import is_taken_apart, layers_and_kernels, layers_in
from tf_capsops.layers.capsule_conv import CapsuleConv
from tf_capsops.layers.coded import holds_codes
from tf_capsops.layers.fake_quant import FakeQuant
from tf_capsops.layers.routed import Routed
from tf_capsops.layers.slim_caps import SlimCaps
from tf_capsops.layers.weights import title
from tf_capsops.models.autoencoder import Autoencoder
from tf_capsops.models.segmenter import Segmenter
from tf_capsops.ops.fake_quant import fake_quant

_CAPSULES = (
    *(CapsuleConv, Routed, SlimCaps),
    *(layers.DigitCaps, layers.PoseCaps, layers.PrimaryCaps),
)
_MOMENTUM = 0.9
# A tensor's attribute: group, list of functions that has rounded it, the function's
# place in this list, and the rounded tensor. All but the group are None if the tensor
# is itself the result of rounding.
_TAG = "_capsops_rounded_by"


class Rounding:
    """Rounds the inputs and outputs of a layer.

    Args:
      group: An object. Layers of a group round a tensor once: the first one rounds it,
        and the others take over the rounded tensor and the function of the first.
      inputs, outputs: Lists of a function for each floating-point tensor, in order,
        such as a `FakeQuant`; None leaves the tensor as it is.
    """

    def __init__(self, group, inputs=(), outputs=()):
        self.group, self.inputs, self.outputs = group, inputs, outputs

    @classmethod
    def new(cls, group, layer, *arguments, taken=()):
        """Returns a `Rounding` of built `FakeQuant`s around a layer of a model.

        The `FakeQuant`s have these arguments, and names that are not in `taken`.
        """

        def fakes(side, tensors):
            result = []
            for tensor in filter(_is_real, keras.tree.flatten(tensors)):
                name = f"{layer.name}_{side}" + (f"_{len(result)}" if result else "")
                name = next(each for each in _names(name) if each not in taken)
                fake = FakeQuant(*arguments, name=name, dtype=layer.dtype_policy)
                fake.build(tensor.shape)
                result.append(fake)
            return result

        is_capsules = isinstance(layer, _CAPSULES)
        outputs = fakes("output", layer.output) if is_capsules else []
        return cls(group, fakes("input", layer.input), outputs)

    @property
    def sides(self):
        return self.inputs, self.outputs

    def call(self, layer, *args, **kwargs):
        """Calls a layer, or its `call`, with rounded inputs, and rounds its outputs."""
        args, kwargs = self._rounded(self.inputs, (args, kwargs))
        return self._rounded(self.outputs, layer(*args, **kwargs))

    def _rounded(self, functions, values):
        """Rounds the tensors in a nest."""
        numbers = iter(range(len(functions)))

        def rounded(value):
            number = next(numbers, None) if _is_real(value) else None
            return value if number is None else self._once(functions, number, value)

        return keras.tree.map_structure(rounded, values)

    def _once(self, functions, number, tensor):
        group, owners, place, rounded = getattr(tensor, _TAG, (None,) * 4)
        if group is self.group and owners is None:
            return tensor
        if group is self.group and (owners is not functions or place != number):
            functions[number] = owners[place]
            return rounded
        if functions[number] is None:
            return tensor
        rounded = functions[number](tensor)
        setattr(tensor, _TAG, (self.group, functions, number, rounded))
        _mark(rounded, self.group)
        return rounded


class Simulated:
    """The `call` of a layer in training, with rounded inputs and outputs.

    It replaces the layer's own `call`, and stays after training, for `convert` to find
    the ranges. By then they are constants, because an exported model can have no
    variables but those of its layers.

    Args:
      layer: The layer.
      learned: The `Rounding` whose ranges follow the batches of training.
    """

    def __init__(self, layer, learned):
        self.own = layer.call.own if is_simulated(layer) else layer.call
        self.layer = layer
        self.learned = self._used = learned

    def __call__(self, *args, **kwargs):
        return self._used.call(self.own, *args, **kwargs)

    def hold(self):
        """Lets the ranges follow the batches from now on."""
        self._used = self.learned

    def release(self):
        """Fixes the ranges at their present values."""
        sides = ([*map(_constant, side)] for side in self.learned.sides)
        self._used = Rounding(self, *sides)


def is_simulated(layer):
    """Whether training has given a layer rounded inputs and outputs."""
    return isinstance(getattr(layer, "call", None), Simulated)


def simulate(roots, bits):
    """Gives the layers in some models or layers rounded inputs and outputs.

    Returns:
      A list of `Simulated`.

    Raises:
      ValueError: A model is of a kind that `convert` does not take, or has a
        `FakeQuant` of its own.
    """
    found = {}
    for root in roots:
        for layer in _whole_layers(root):
            if isinstance(layer, FakeQuant):
                raise ValueError(
                    f"activation_bits: {root.name} has {title(layer)}, whose range "
                    "trains by itself: leave activation_bits out"
                )
            if is_rounded(layer) and id(layer) not in found:
                learned = Rounding.new(found, layer, bits, _MOMENTUM)
                found[id(layer)] = Simulated(layer, learned)
    for simulated in found.values():
        simulated.layer.call = simulated
    return list(found.values())


def move(model, copy):
    """Gives a copy of a model the ranges of training, which its config lacks."""
    for layer, of_copy in zip(_whole_layers(model), _whole_layers(copy), strict=True):
        if is_simulated(layer):
            of_copy.call = Simulated(of_copy, layer.call.learned)
            of_copy.call.release()


def is_rounded(layer):
    """Whether a layer's inputs are rounded: it has a kernel, or the codes of one."""
    return bool(layers_and_kernels(layer)) or any(map(holds_codes, layers_in(layer)))


class Copies:
    """The `FakeQuant`s around the layers that `convert` makes.

    Args:
      bits: Bits of a rounded number, or None for no rounding.
      is_calibrated: Whether a calibration follows; otherwise the ranges are those of
        the training.
      model: The model that is copied.
    """

    def __init__(self, bits, is_calibrated, model):
        self._bits = bits
        self._is_calibrated = is_calibrated
        self._taken = {layer.name for layer in layers_in(model)}
        self._roundings = {}

    def add(self, layer, copy):
        """Adds `FakeQuant`s around the copy of a layer, if its inputs are rounded.

        Raises:
          ValueError: There are no ranges, or they were trained for other bits.
        """
        if not self._bits or not is_rounded(layer):
            return
        rounding = Rounding.new(self, layer, self._bits, taken=self._taken)
        self._roundings[id(copy)] = rounding
        if self._is_calibrated:
            return
        if not is_simulated(layer):
            raise ValueError(
                f"convert: activation_bits needs ranges, and {layer.path or layer.name}"
                " has none: give calibration, images such as the model will see, or "
                "train with IncrementalQuantization(activation_bits=...)"
            )
        for fakes, learned in zip(rounding.sides, layer.call.learned.sides):
            for number, each in enumerate(learned):
                if each.bits != self._bits:
                    raise ValueError(
                        f"convert: activation_bits is {self._bits}, but "
                        f"{layer.path or layer.name} was trained with {each.bits}: "
                        "give this number, or calibration"
                    )
                if each.has_range():
                    fakes[number].set_weights(each.get_weights())
                else:  # an earlier layer had rounded this tensor
                    fakes[number] = None

    def call(self, copy, *args, **kwargs):
        """Calls a copy in a functional model, with the `FakeQuant`s around it."""
        if id(copy) in self._roundings:
            return self._roundings[id(copy)].call(copy, *args, **kwargs)
        outputs = copy(*args, **kwargs)
        if isinstance(copy, FakeQuant):
            _mark(outputs, self)
        return outputs

    def interleaved(self, copies):
        """The layers of a Sequential model, with the `FakeQuant`s between them."""
        result = []
        for copy in copies:
            rounding = self._roundings.get(id(copy), Rounding(self))
            follows = result and isinstance(result[-1], FakeQuant)
            before = () if follows else rounding.inputs
            result += [each for each in (*before, copy, *rounding.outputs) if each]
        return result

    def calibrate(self, model, images, routed=()):
        """Sets the ranges to those of the activations that some images cause.

        `model` is the whole copy. `routed` are its `RoundedRouting` layers, whose
        ranges are set, too. Nothing is rounded meanwhile.

        Raises:
          ValueError: `images` are not as `convert` takes them, or an activation is not
            finite.
        """
        sides = (side for each in self._roundings.values() for side in each.sides)
        new = {id(fake) for side in sides for fake in side}
        fakes = [each for each in layers_in(model) if id(each) in new]
        seen = [_record(fake) for fake in fakes]
        run = model.reconstruct if isinstance(model, Segmenter) else model
        try:
            with contextlib.ExitStack() as stack:
                for layer in routed:
                    stack.enter_context(layer.calibrating())
                for batch in _batches(images):
                    run(batch)
        except ValueError as error:
            raise ValueError(f"convert: calibration: {error}") from error
        finally:
            for fake in fakes:
                del fake.call
        for fake, batches in zip(fakes, seen, strict=True):
            fake.calibrate(batches)


def _record(fake):
    """Lets a `FakeQuant` record the range of each batch in the list that it returns."""
    seen = []

    def call(inputs, training=None):
        ends = tf.reduce_min(inputs), tf.reduce_max(inputs)
        seen.append(tf.cast(ends, tf.float32))
        return inputs

    fake.call = call
    return seen


def _batches(images):
    """Yields the inputs in a data set, or arrays in batches of 100."""
    if not isinstance(images, tf.data.Dataset):
        images = tuple(images) if isinstance(images, list) else images
        try:
            images = tf.data.Dataset.from_tensor_slices((images,)).batch(100)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"it must be arrays or a tf.data.Dataset of batches: {error}"
            ) from error
    for batch in images:
        yield batch[0] if isinstance(batch, tuple) else batch


def _whole_layers(root):
    """Returns the layers of a model that are copied whole, in order."""
    if isinstance(root, Autoencoder) or is_taken_apart(root):
        return [each for layer in root.layers for each in _whole_layers(layer)]
    if isinstance(root, keras.Model):
        raise ValueError(
            f"activation_bits: {root.name} must be Sequential, functional or a "
            f"CapsNet, got {type(root).__name__}"
        )
    return [root]


def _names(name):
    """Yields a name, and then the name with numbers appended."""
    yield name
    yield from (f"{name}_{number}" for number in itertools.count(1))


def _is_real(value):
    is_tensor = tf.is_tensor(value) or isinstance(value, keras.KerasTensor)
    return is_tensor and tf.as_dtype(value.dtype).is_floating


def _mark(tensor, group):
    """Marks a tensor as the result of rounding."""
    setattr(tensor, _TAG, (group, None, None, None))


def _constant(fake):
    """Returns a function that rounds as a `FakeQuant` does now, None without range."""
    if not fake.has_range():
        return None
    lo, hi = map(float, fake.get_weights())
    return lambda tensor: fake_quant(tensor, lo, hi, fake.bits)
