# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Measures one call of every layer under float32 and Keras' mixed policies.

A call is measured like that of an op (measure.py): forward, and with the gradients of
inputs and weights. Samples of all types of a layer are taken in turn, so that drifts of
the machine do not change their ratios. Inputs are of the policy's compute type, as the
layer before gives them; weights are in float32, as in training, so casting them is part
of the call.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
from collections.abc import Iterator

import keras
import numpy as np
import tensorflow as tf

import tf_capsops
from tf_capsops.bench import cases, measure, report
from tf_capsops.bench.cases import Case
from tf_capsops.bench.fitting import scope
from tf_capsops.codes import quantize
from tf_capsops.inq.kernels import layers_and_kernels
from tf_capsops.inq.twins import Books, bits_or_why_not, twin

_SEED = 20180507
CODES = f"{report.OURS}, codes"
_LENGTH = 8  # few calls in a graph: tracing a rule with its gradients takes seconds


def _cases() -> Iterator[Case]:
    """Yields the layers of the published networks at their sizes, and tiny ones."""
    large, tiny = (cases.LAYERS, 128, 8), (cases.LAYERS_SMOKE, 2, 2)

    def case(kind, layer, *inputs, of="", **arguments):
        use, on_gpu, on_cpu = kind
        attributes = {"layer": layer, "inputs": inputs, **arguments}
        name = f"{layer}, {of}" if of else layer
        for device, batch in (("GPU", on_gpu), ("CPU", on_cpu)):
            yield Case(name, {"batch": batch}, (use,), (device,), attributes)

    relu = {"activation": "relu"}
    yield from case(
        *(large, "Conv2D", (28, 28, 1)),
        **{"of": "capsnet", "filters": 256, "kernel_size": 9, **relu},
    )
    yield from case(
        *(large, "Conv2D", (22, 22, 64)),
        **{"of": "efficient_capsnet", "filters": 64, "kernel_size": 3, **relu},
    )
    dilated = {"dilation_rate": 2, "padding": "same", "kernel_size": 5}
    yield from case(
        large, "Conv3D", (16, 16, 16, 16), of="ucaps3d", filters=32, **dilated
    )
    window = {"kernel_size": 9, "strides": 2}
    yield from case(
        large, "PrimaryCaps", (20, 20, 256), channels=32, capsule_dim=8, **window
    )
    yield from case(large, "DigitCaps", (1152, 8), num_capsules=10, capsule_dim=16)
    yield from case(large, "Length", (10, 16))
    yield from case(large, "Mask", (10, 16), (10,))
    yield from case(large, "FakeQuant", (20, 20, 256))
    poses = {"pose_shape": (4, 4), "kernel_size": 3}
    for layer, size in (
        ("CapsuleConv1D", (150,)),
        ("CapsuleConv2D", (14, 14)),
        ("CapsuleConv3D", (6, 6, 6)),
    ):
        yield from case(large, layer, (*size, 32, 4, 4), filters=32, **poses)
    up = {"pose_shape": (4, 4), "strides": 2, "padding": "same"}
    for layer, size, kernel in (
        ("CapsuleConv2DTranspose", (7, 7), 4),
        ("CapsuleConv3DTranspose", (4, 4, 4), 2),
    ):
        window = {**up, "kernel_size": kernel}
        yield from case(large, layer, (*size, 32, 4, 4), filters=32, **window)
    slim = {"filters": 8, "capsule_dim": 32, "strides": 2, "padding": "same"}
    for layer, size, kernel in (
        ("SlimCaps1D", (256,), 5),
        ("SlimCaps2D", (32, 32), 5),
        ("SlimCaps3D", (8, 16, 16), 3),
        ("SlimCaps2DTranspose", (16, 16), 4),
        ("SlimCaps3DTranspose", (4, 8, 8), 2),
    ):
        yield from case(large, layer, (*size, 4, 16), kernel_size=kernel, **slim)
    yield from case(large, "PoseCaps", (12, 12, 32), capsules=32)
    pair = (12, 12, 32, 4, 4), (12, 12, 32)
    for rule in ("EM", "VB"):
        routed = {"filters": 32, "kernel_size": 3, "strides": 2, "routing": rule}
        yield from case(large, "ConvCaps2D", *pair, of=rule, **routed)
    for layer, size in (("ConvCaps1D", (75,)), ("ConvCaps3D", (5, 5, 5))):
        pair = (*size, 32, 4, 4), (*size, 32)
        yield from case(large, layer, *pair, **routed)
    pair = (3, 3, 32, 4, 4), (3, 3, 32)
    yield from case(large, "ClassCaps", *pair, num_classes=10)
    dense = {"num_capsules": 10, "pose_shape": (1, 16), "routing": "SelfAttention"}
    yield from case(large, "DenseCaps", (16, 1, 8), (16,), **dense)
    averaging = {"filter_activation": "softmax", "kernel_size": 5}
    yield from case(large, "HighOrderConv2D", (64, 64, 3), **averaging)
    yield from case(large, "HighOrderConv1D", (64, 512), kernel_size=15, groups=16)
    yield from case(large, "InqConv2D", (14, 14, 256), filters=256, kernel_size=3)
    yield from case(large, "InqDepthwiseConv2D", (28, 28, 128), kernel_size=3)
    yield from case(large, "InqDense", (1024,), units=1024)
    for layer, size, kernel in (
        ("InqConv1D", (196, 256), 3),
        ("InqConv3D", (8, 8, 8, 64), 3),
        ("InqConv2DTranspose", (7, 7, 128), 4),
        ("InqConv3DTranspose", (4, 4, 4, 64), 2),
    ):
        yield from case(large, layer, size, filters=64, kernel_size=kernel)

    yield from case(tiny, "Conv2D", (6, 5, 2), filters=3, kernel_size=2)
    yield from case(tiny, "Conv3D", (3, 4, 3, 2), filters=3, kernel_size=2)
    yield from case(
        tiny, "PrimaryCaps", (6, 5, 2), channels=2, capsule_dim=4, kernel_size=3
    )
    yield from case(tiny, "DigitCaps", (6, 4), num_capsules=3, capsule_dim=2)
    yield from case(tiny, "Length", (3, 4))
    yield from case(tiny, "Mask", (3, 4), (3,))
    yield from case(tiny, "FakeQuant", (3, 4))
    poses = {"pose_shape": (2, 2), "kernel_size": 2}
    for layer, size in (
        ("CapsuleConv1D", (4,)),
        ("CapsuleConv2D", (4, 3)),
        ("CapsuleConv2DTranspose", (2, 3)),
        ("CapsuleConv3D", (2, 3, 2)),
        ("CapsuleConv3DTranspose", (2, 1, 2)),
    ):
        yield from case(tiny, layer, (*size, 2, 2, 2), filters=3, **poses)
    slim = {"filters": 3, "capsule_dim": 2, "kernel_size": 2}
    for layer, size in (
        ("SlimCaps1D", (4,)),
        ("SlimCaps2D", (4, 3)),
        ("SlimCaps3D", (2, 3, 2)),
        ("SlimCaps2DTranspose", (2, 3)),
        ("SlimCaps3DTranspose", (2, 1, 2)),
    ):
        yield from case(tiny, layer, (*size, 2, 2), **slim)
    yield from case(tiny, "PoseCaps", (4, 3, 2), capsules=2)
    for layer, size in (("ConvCaps1D", (4,)), ("ConvCaps3D", (2, 3, 2))):
        pair = (*size, 2, 2, 2), (*size, 2)
        yield from case(tiny, layer, *pair, filters=3, **poses)
    pair = (4, 3, 2, 2, 2), (4, 3, 2)
    yield from case(tiny, "ConvCaps2D", *pair, filters=3, **poses)
    yield from case(tiny, "ClassCaps", *pair, num_classes=3)
    dense = {"num_capsules": 3, "pose_shape": (1, 2), "routing": "SelfAttention"}
    yield from case(tiny, "DenseCaps", (4, 1, 2), (4,), **dense)
    yield from case(tiny, "HighOrderConv2D", (5, 6, 2), kernel_size=3)
    yield from case(tiny, "HighOrderConv1D", (5, 2), kernel_size=3)
    yield from case(tiny, "InqConv2D", (5, 6, 2), filters=3, kernel_size=2)
    yield from case(tiny, "InqDepthwiseConv2D", (5, 6, 2), kernel_size=2)
    yield from case(tiny, "InqDense", (4,), units=3)
    for layer, size in (
        ("InqConv1D", (5, 2)),
        ("InqConv3D", (2, 3, 2, 2)),
        ("InqConv2DTranspose", (2, 3, 2)),
        ("InqConv3DTranspose", (2, 1, 2, 2)),
    ):
        yield from case(tiny, layer, size, filters=3, kernel_size=2)


CASES = tuple(_cases())
LAYERS = tuple(dict.fromkeys(case.attributes["layer"] for case in CASES))


def made(case: Case) -> keras.layers.Layer:
    """Returns the layer of a case, under the global policy."""
    arguments = {
        name: value
        for name, value in case.attributes.items()
        if name not in ("layer", "inputs")
    }
    if rule := arguments.pop("routing", None):
        arguments["routing"] = getattr(tf_capsops.routing, rule)()
    return getattr(tf_capsops.layers, case.attributes["layer"])(**arguments)


def coded(layer: keras.layers.Layer, bits: int, *inputs) -> keras.layers.Layer | None:
    """Returns a built layer's copy with its weights in codes, or None without one."""
    for _, kernel in layers_and_kernels(layer):
        kernel.assign(quantize(kernel, bits))
    books = Books(bits, all_kinds=True)
    if bits_or_why_not(layer, books)[0] is None:
        return None
    result, fill = twin(layer, books)
    result(*inputs)
    fill()
    return result


def _steps(
    case: Case, dtype: str, device: str, bits: int | None = None
) -> dict[str, tuple] | None:
    """Returns a step and the sets of its arguments, by direction.

    With `bits` it calls the layer with codes; None if there is no such layer.
    """
    layer, random = made(case), np.random.default_rng(_SEED)
    shapes = [(case.sizes["batch"], *shape) for shape in case.attributes["inputs"]]

    def drawn(shape):
        with tf.device(device):
            return tf.cast(tf.constant(random.random(shape, np.float32)), dtype)

    def outputs_of(inputs):
        outputs = layer(inputs if len(inputs) > 1 else inputs[0])
        return tuple(tf.nest.flatten(outputs))

    inputs = [drawn(shape) for shape in shapes]
    found = outputs_of(inputs)  # builds the layer
    if bits:
        layer = coded(layer, bits, inputs if len(inputs) > 1 else inputs[0])
        if layer is None:
            return None

    def drawn_grads():
        with tf.device(device):
            return [tf.cast(tf.random.uniform(e.shape, -1, 1), e.dtype) for e in found]

    def with_gradients(*arguments):
        grads, inputs = arguments[: len(found)], arguments[len(found) :]
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = outputs_of(inputs)
        sources = [*inputs, *(each.value for each in layer.trainable_variables)]
        gradients = tape.gradient(outputs, sources, grads)
        return (*outputs, *(each for each in gradients if each is not None))

    set_bytes = sum(e.dtype.size * int(tf.size(e)) for e in (*inputs, *found))
    count = min(_LENGTH, measure.set_count(device, set_bytes))
    sets = [[drawn(shape) for shape in shapes] for _ in range(count)]
    return {
        "forward": (lambda *inputs: outputs_of(inputs), sets),
        "forward+backward": (with_gradients, [[*drawn_grads(), *s] for s in sets]),
    }


def _measured(case: Case, device: str, options) -> Iterator[dict]:
    """Yields the results of one layer, for each direction and type."""
    kind = measure.device_type(device)
    steps = {}
    for dtype in options.dtype:
        with scope(dtype, kind):
            steps[report.OURS, dtype] = _steps(case, dtype, device)
            if options.bits:
                in_codes = _steps(case, dtype, device, options.bits)
                if in_codes:
                    steps[CODES, dtype] = in_codes
    for direction in options.direction:
        chains = {}
        for jit, (kind, dtype) in itertools.product(options.jit, steps):
            step, sets = steps[kind, dtype][direction]
            step = measure.compiled(step) if jit == "on" else step
            name = kind + (", XLA" if jit == "on" else "")
            chains[name, dtype] = measure.Chain(step, sets, device, _LENGTH)
        timings = measure.compare(chains, options.repeat)
        for dtype in options.dtype:
            entries = {
                name: report.method_entry(timing)
                for (name, other), timing in timings.items()
                if other == dtype
            }
            yield {
                "op": "layers",
                "case": case.name,
                "sizes": dict(case.sizes),
                "attributes": dict(case.attributes),
                "direction": direction,
                "device": device,
                "dtype": dtype,
                "methods": entries,
            }


def run(options: argparse.Namespace) -> Iterator[dict]:
    """Yields the entry of `results` for each layer, device, direction and dtype.

    Methods are `tf_capsops` and, compiled by XLA, `tf_capsops, XLA`; with `--bits` also
    `tf_capsops, codes`: the layer with codes, which has no gradients of kernels.
    """
    for kind, case in itertools.product(options.device, CASES):
        chosen = case.attributes["layer"] in options.layer
        if chosen and {*case.uses} & {*options.suite} and kind in case.devices:
            for batch in options.batch_size or [case.sizes["batch"]]:
                name = f", batch {batch}" if options.batch_size else ""
                sized = dataclasses.replace(
                    case, name=case.name + name, sizes={"batch": batch}
                )
                yield from _measured(sized, f"{kind}:0", options)
