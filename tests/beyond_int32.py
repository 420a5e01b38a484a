# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Runs the ops on tensors of more than 2^31 elements, of shapes drawn at random.

    python tests/beyond_int32.py --device GPU:0 --op CapsuleConv InqConv --calls 4

A call takes 20 to 60 GB of memory on the device and on the host, so pytest does not
run this. Numbers are -1, 0 and 1, so sums are exact whatever their order. Pixels of the
output are compared with NumPy, those beyond 2^31 among them. And gradients are right
as a whole if <grad, op(x, w)>, <gradient of x, x> and <gradient of w, w> are the same
number, for these ops are linear in each input. Routing is not: its results are compared
with those of parts of the batch.
"""

import argparse
import math
import sys
import time

import numpy as np
import tensorflow as tf
from reference import capsule_conv

import tf_capsops
from tf_capsops import kernels

MORE = 2**31
_CHUNK = 2**26
_SAMPLES = 997  # of routing, that are given again and again


def _draw(rng, shape):
    """Returns -1, 0 and 1, of which the last elements are not 0."""
    array = rng.integers(-1, 2, shape, np.int8)
    array.reshape(-1)[-3:] = 1
    return array


def _dot(a, b):
    """Returns the sum of products, exactly."""
    a, b = a.reshape(-1), b.reshape(-1)
    starts = range(0, a.size, _CHUNK)
    return sum(
        float(np.dot(*(x[i : i + _CHUNK].astype(np.float64) for x in (a, b))))
        for i in starts
    )


def _grow(rng, count, fixed):
    """Returns sizes of `count` axes with more than 2^31 elements, times `fixed`."""
    needed = MORE // fixed + 1
    sizes = [int(rng.integers(3, 60)) for _ in range(count)]
    large = int(rng.integers(count))
    sizes[large] = 1
    sizes[large] = needed // math.prod(sizes) + int(rng.integers(1, 9))
    return sizes


def _places(rng, shape, number=24):
    """Returns indices of pixels, the last and those around 2^31 among them."""
    size = math.prod(shape)
    flat = {size - 1, 0, *(int(i) for i in rng.integers(0, size, number))}
    flat |= {MORE - 1, MORE} if size > MORE else set()
    return [np.unravel_index(i, shape) for i in flat]


def _window(place, image, kernel, attributes):
    """Returns what a pixel reads of its image, with zeros for what is beside it."""
    rows = []
    for axis in range(2):
        size = image.shape[axis]
        moved = attributes["strides"][axis], attributes["dilations"][axis]
        _, pad = capsule_conv.output_size(
            size, kernel[axis], *moved, attributes["padding"]
        )
        taps = place[axis] * moved[0] + np.arange(kernel[axis]) * moved[1] - pad
        rows.append((taps, (taps >= 0) & (taps < size)))
    (y, in_y), (x, in_x) = rows
    found = image[np.clip(y, 0, image.shape[0] - 1)][
        :, np.clip(x, 0, image.shape[1] - 1)
    ]
    inside = in_y[:, None] & in_x
    inside = inside.reshape(*inside.shape, *(1,) * (found.ndim - 2))
    return found.astype(np.int64) * inside


def _moved(rng):
    """Returns a kernel and attributes."""
    return [int(rng.integers(1, 4)) for _ in range(2)], {
        "strides": [int(rng.choice([1, 1, 2])) for _ in range(2)],
        "dilations": [int(rng.choice([1, 1, 2])) for _ in range(2)],
        "padding": str(rng.choice(["SAME", "VALID"])),
    }


def _image(rng, pixel, kernel, attributes):
    """Returns an input's batch, height and width that the kernel fits in."""
    least = [(k - 1) * d + 1 for k, d in zip(kernel, attributes["dilations"])]
    batch, *size = _grow(rng, 3, pixel)
    return [batch, *map(max, size, least)]


def capsule_conv_call(rng):
    """Returns op, inputs and what a pixel of the output is."""
    kernel, attributes = _moved(rng)
    rows, inner, columns = (int(rng.choice([1, 2, 4])) for _ in range(3))
    channels, outs = (int(rng.choice([1, 2, 3, 8])) for _ in range(2))
    pixel_size = rows * max(channels * inner, outs * columns)
    image = _image(rng, pixel_size, kernel, attributes)
    inputs = _draw(rng, (*image, channels, rows, inner))
    weights = _draw(rng, (*kernel, channels, outs, inner, columns))

    def pixel(place):
        window = _window(place[1:3], inputs[place[0]], kernel, attributes)
        whole = weights.astype(np.int64)
        return np.einsum("yxcpq,yxcoqr->opr", window, whole)[place[3:]]

    def op(inputs, weights):
        return tf_capsops.capsule_conv2d(inputs, weights, **attributes)

    return op, (inputs, weights), pixel, attributes


def inq_conv_call(rng):
    kernel, attributes = _moved(rng)
    channels, outs = (int(rng.choice([1, 3, 4, 16])) for _ in range(2))
    image = _image(rng, max(channels, outs), kernel, attributes)
    inputs = _draw(rng, (*image, channels))
    codes = rng.integers(0, 3, (*kernel, channels, outs), np.uint8)
    weights = np.array([0, 1, -1])[codes]

    def pixel(place):
        window = _window(place[1:3], inputs[place[0]], kernel, attributes)
        return np.einsum("yxc,yxco->o", window, weights)[place[3:]]

    def op(inputs):
        return tf_capsops.inq_conv2d(inputs, codes, 0, bits=2, **attributes)

    return op, (inputs,), pixel, attributes


def high_order_conv_call(rng):
    size = [int(rng.choice([1, 3, 5])) for _ in range(2)]
    groups = int(rng.choice([1, 2]))
    channels = groups * int(rng.choice([1, 3, 8]))
    filters = groups * math.prod(size)
    image = _grow(rng, 3, max(channels, filters))
    inputs, filters = _draw(rng, (*image, channels)), _draw(rng, (*image, filters))
    attributes = {"kernel_size": size, "groups": groups}
    same = {"strides": [1, 1], "dilations": [1, 1], "padding": "SAME"}

    def pixel(place):
        window = _window(place[1:3], inputs[place[0]], size, same)
        group = place[3] // (channels // groups)
        own = filters[place[:3]].reshape(groups, *size)[group]
        return (window[..., place[3]] * own).sum()

    def op(inputs, filters):
        return tf_capsops.high_order_conv2d(inputs, filters, **attributes)

    return op, (inputs, filters), pixel, attributes


def capsule_prediction_call(rng):
    outs, depth, inner = (int(rng.choice([1, 3, 8, 16])) for _ in range(3))
    batch, capsules = _grow(rng, 2, outs * max(depth, inner))
    inputs = _draw(rng, (batch, capsules, inner))
    weights = _draw(rng, (capsules, outs, depth, inner))

    def pixel(place):
        b, i, j, d = place
        return weights[i, j, d].astype(np.int64) @ inputs[b, i]

    return tf_capsops.capsule_prediction, (inputs, weights), pixel, {}


CALLS = {
    "CapsuleConv": capsule_conv_call,
    "InqConv": inq_conv_call,
    "HighOrderConv": high_order_conv_call,
    "CapsulePrediction": capsule_prediction_call,
}


def run_linear(op, inputs, pixel, rng, device):
    """Returns what is wrong."""
    with tf.device(device):
        given = [tf.constant(array.astype(np.float32)) for array in inputs]
        with tf.GradientTape() as tape:
            tape.watch(given)
            output = op(*given)
        grad = _draw(rng, output.shape)
        gradients = tape.gradient(output, given, tf.constant(grad.astype(np.float32)))
        del given, tape
    output = output.numpy()
    for place in _places(rng, output.shape):
        if output[place] != pixel(place):
            return f"pixel {place} is {output[place]}, not {pixel(place)}"
    whole = _dot(grad, output)
    for number, (array, gradient) in enumerate(zip(inputs, gradients, strict=True)):
        if _dot(array, gradient.numpy()) != whole:
            return f"gradient {number} is wrong"
    return ""


def run_routing(rng, device):
    """Returns what is wrong, and the shapes."""
    capsules, inner = int(rng.choice([96, 1152])), int(rng.choice([8, 16]))
    outs, depth = int(rng.choice([3, 10])), int(rng.choice([4, 16]))
    batch = MORE // (capsules * inner) + int(rng.integers(1, 99))
    block = rng.normal(size=(_SAMPLES, capsules, inner)).astype(np.float32)
    inputs = np.resize(block, (batch, capsules, inner))  # the block again and again
    weights = rng.normal(size=(capsules, outs, depth, inner)).astype(np.float32) / inner
    grad = rng.normal(size=(outs, depth)).astype(np.float32)

    def results(inputs):
        with tf.device(device):
            given = tf.constant(inputs), tf.constant(weights)
            with tf.GradientTape() as tape:
                tape.watch(given)
                output = tf_capsops.capsule_routing(*given)
            grads = tf.broadcast_to(grad, output.shape)
            gradients = tape.gradient(output, given, grads)
        return [output.numpy(), *(gradient.numpy() for gradient in gradients)]

    output, by_inputs, by_weights = results(inputs)
    part, by_part, of_block = results(block)
    rest = results(block[: batch % _SAMPLES])[2] if batch % _SAMPLES else 0
    shapes = [inputs.shape, weights.shape]
    for name, whole, small in (
        ("output", output, part),
        ("gradient 0", by_inputs, by_part),
    ):
        for start in (
            0,
            batch // 2 // _SAMPLES * _SAMPLES,
            batch // _SAMPLES * _SAMPLES,
        ):
            mine = whole[start : start + _SAMPLES]
            off = np.abs(mine - small[: len(mine)]).max() / np.abs(small).max()
            if not off < 1e-5:
                return f"{name} at sample {start} is off by {off}", shapes
    truth = of_block.astype(np.float64) * (batch // _SAMPLES) + rest
    off = np.abs(by_weights - truth).max() / np.abs(truth).max()
    return "" if off < 1e-4 else f"gradient 1 is off by {off}", shapes


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="CPU:0")
    names = [*CALLS, "CapsuleRouting"]
    parser.add_argument("--op", nargs="+", choices=names, default=names)
    parser.add_argument("--calls", type=int, default=1, help="of each op")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    failed = 0
    for name in options.op:
        for call in range(options.calls):
            rng = np.random.default_rng([options.seed, call])
            begin = time.time()
            with kernels.recorded() as ran:
                if name == "CapsuleRouting":
                    wrong, shapes = run_routing(rng, options.device)
                    attributes = {}
                else:
                    op, inputs, pixel, attributes = CALLS[name](rng)
                    shapes = [array.shape for array in inputs]
                    wrong = run_linear(op, inputs, pixel, rng, options.device)
                    del inputs, pixel
            failed += bool(wrong)
            used = ", ".join(sorted({f"{op} {kernel}" for op, kernel, _ in ran}))
            print(
                f"{name} {shapes} {attributes}: {wrong or 'right'} "
                f"({used}; {time.time() - begin:.0f} s)",
                flush=True,
            )
    print(f"{failed} of {len(options.op) * options.calls} calls are wrong")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
