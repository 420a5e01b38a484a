# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Times convolutions of 8-bit activations, next to other convolutions.

    python -m benchmarks.int8 --output docs/measured/NAME.json [--device GPU]

The rivals are `tf.nn.conv2d` in float32, `inq_conv2d` of float activations, the int8
mode of `keras.layers.Dense`, and on a CPU TFLite, whose weights have 8 bits. Images and
outputs are float32 for all of them. A time on a CPU is the median of calls that are
interleaved with those of the rivals; on a GPU it is that in which a call's kernels run.
Keras has no int8 mode of convolutions. Then a whole `capsnet` for MNIST, with its
decoder, in floating point and quantized.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import time
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

import tf_capsops
from tf_capsops.bench import trace
from tf_capsops.inq.kernels import layers_and_kernels
from tf_capsops.machine import machine

# Image, kernel, output channels, stride and padding.
_SHAPES = {
    "PrimaryCaps: 20x20, 256 to 256, 9x9 by 2": ((20, 20, 256), 9, 256, 2, "VALID"),
    "56x56, 64 to 64, 3x3": ((56, 56, 64), 3, 64, 1, "SAME"),
    "dense, 1152 to 512": ((1, 1, 1152), 1, 512, 1, "SAME"),
}
_BATCHES = {"CPU": (1, 8), "GPU": (8, 128)}
_INT8 = {f"int8, {bits} bits": bits for bits in (3, 4, 5)}
_NETWORK_BATCHES = {"CPU": (1, 8, 32), "GPU": (1, 32, 512)}


def _columns(device: str) -> list[str]:
    rivals = ["Keras int8", "TFLite int8"] if device == "CPU" else ["Keras int8"]
    return ["conv2d", "inq_conv2d", *_INT8, *rivals]


def _tflite(image: np.ndarray, weights: np.ndarray, stride: int, padding: str) -> bytes:
    """Returns a TFLite file of the convolution, calibrated with the image."""

    @tf.function(input_signature=[tf.TensorSpec(image.shape, tf.float32)])
    def convolve(images):
        return tf.nn.conv2d(images, weights, stride, padding)

    concrete = convolve.get_concrete_function()
    converter = tf.lite.TFLiteConverter.from_concrete_functions([concrete])
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = lambda: [[image]]
    return converter.convert()


def _interpreted(file: bytes) -> Callable:
    interpreter = tf.lite.Interpreter(model_content=file, num_threads=os.cpu_count())
    interpreter.allocate_tensors()
    (given,), (result,) = (
        interpreter.get_input_details(),
        interpreter.get_output_details(),
    )

    def run(images):
        interpreter.set_tensor(given["index"], images.numpy())
        interpreter.invoke()
        return interpreter.get_tensor(result["index"])

    return run


def _methods(
    name: str, batch: int, device: str
) -> tuple[dict[str, Callable], dict[str, int]]:
    """Returns functions of the images, and the bytes of their weights."""
    shape, kernel, filters, stride, padding = _SHAPES[name]
    rng = np.random.default_rng(0)
    images = rng.normal(size=(batch, *shape)).astype(np.float32)
    weights = rng.normal(size=(kernel, kernel, shape[-1], filters)).astype(np.float32)
    moved = {"strides": stride, "padding": padding}
    methods = {"conv2d": lambda images: tf.nn.conv2d(images, weights, stride, padding)}
    sizes = {"float32": weights.nbytes}
    scale, zero_point = float(np.abs(images).max()) / 127, 128
    for column, bits in {**_INT8, "inq_conv2d": 5}.items():
        codes, top = tf_capsops.inq.encode(weights, bits)
        sizes["codes"] = codes.size
        sizes[f"file, {bits} bits"] = len(tf_capsops.inq.pack(codes, bits))
        given = {
            "codes": tf.constant(codes),
            "top_exponent": top,
            "bits": bits,
            **moved,
        }
        if column in _INT8:
            given |= {"scale": scale, "zero_point": zero_point}
            methods[column] = _closed(tf_capsops.inq_conv2d_int8, given)
        else:
            methods[column] = _closed(tf_capsops.inq_conv2d, given)
    if shape[:2] == (1, 1):
        model = keras.Sequential([keras.Input(shape[2:]), keras.layers.Dense(filters)])
        model.quantize("int8")
        methods["Keras int8"] = lambda images: model(tf.reshape(images, [batch, -1]))
        sizes["Keras int8"] = sum(w.numpy().nbytes for w in model.weights)
    compiled = {column: tf.function(method) for column, method in methods.items()}
    if device == "CPU":
        file = _tflite(images, weights, stride, padding)
        compiled["TFLite int8"] = _interpreted(file)
        sizes["TFLite file"] = len(file)
    tensor = tf.constant(images)
    return {c: lambda run=run: run(tensor) for c, run in compiled.items()}, sizes


def _networks(batch: int) -> dict[str, Callable]:
    """Returns functions that call a capsnet of random weights with some images."""
    keras.utils.set_random_seed(0)
    images = np.random.default_rng(0).random((batch, 28, 28, 1), np.float32)
    model = tf_capsops.models.capsnet((28, 28, 1), 10)
    methods = {"float32": model.inference_model()}
    for bits in (5, 4, 3):
        for _, kernel in layers_and_kernels(model):
            kernel.assign(tf_capsops.inq.quantize(kernel, bits))
        for activations, rounding in (
            ("float", {}),
            ("8", {"activation_bits": 8, "calibration": images}),
        ):
            column = f"{bits}/{activations}"
            methods[column] = tf_capsops.inq.convert(
                model, bits, all_kinds=True, **rounding
            )
    compiled = {column: tf.function(each) for column, each in methods.items()}
    tensor = tf.constant(images)
    return {c: lambda run=run: run(tensor) for c, run in compiled.items()}


def _closed(function: Callable, given: dict) -> Callable:
    """Returns a function of images alone: a graph has all else as constants."""
    return lambda images: function(images, **given)


def _times(methods: dict[str, Callable], rounds: int, device: str) -> dict[str, float]:
    """Returns ms: medians of calls that take turns, or of the kernels of a call."""
    if device == "GPU":
        return {column: _kernel_time(run, rounds) for column, run in methods.items()}
    found: dict[str, list[float]] = {column: [] for column in methods}
    for turn in range(rounds + 3):  # the first three warm up
        for column, run in methods.items():
            begin = time.perf_counter()
            run()
            if turn >= 3:
                found[column].append(time.perf_counter() - begin)
    return {column: 1e3 * statistics.median(each) for column, each in found.items()}


def _kernel_time(run: Callable, calls: int) -> float:
    """Returns the ms in which a GPU computes, of a mean call."""

    def several():
        for _ in range(calls):
            result = run()
        keras.tree.map_structure(np.array, result)  # waits

    several()
    seconds, _ = trace.gpu_work(several)
    return 1e3 * seconds / calls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=pathlib.Path, required=True)
    parser.add_argument("--rounds", type=int, default=51)
    parser.add_argument("--processor", help="the processor's name")
    parser.add_argument("--device", choices=_BATCHES, default="CPU")
    options = parser.parse_args()
    device = options.device
    times, weights = [], []
    for name in _SHAPES:
        for batch in _BATCHES[device]:
            methods, sizes = _methods(name, batch, device)
            taken = _times(methods, options.rounds, device)
            row = [f"{taken[c]:.3g}" if c in taken else "" for c in _columns(device)]
            times.append([name, str(batch), *row])
            print(*times[-1], sep="\t", flush=True)
        weights.append({"": name, **{c: f"{n:,}" for c, n in sizes.items()}})
    networks = []
    for batch in _NETWORK_BATCHES[device]:
        taken = _times(_networks(batch), options.rounds, device)
        networks.append([str(batch), *(f"{each:.3g}" for each in taken.values())])
        print(*networks[-1], sep="\t", flush=True)
    columns = [*dict.fromkeys(column for row in weights for column in row)]
    here = machine()
    convolutions = ["in ms", "batch", *_columns(device)], times
    of_networks = ["ms, by images", *taken], networks
    if device == "CPU":
        sizes = [[each.get(c, "") for c in columns] for each in weights]
        tables = {"int8_bytes": (columns, sizes)}
        tables |= {"int8_cpu": convolutions, "int8_networks": of_networks}
    else:
        tables = {"int8_gpu": convolutions, "int8_networks_gpu": of_networks}
    run = {
        **here,
        "cpu": options.processor or here["cpu"],
        "command": f"python -m benchmarks.int8 --rounds {options.rounds}"
        + (f" --device {device}" if device == "GPU" else ""),
        "tf32": True if device == "GPU" else None,
        "tables": {
            name: {"op": None, "device": device, "columns": columns, "rows": rows}
            for name, (columns, rows) in tables.items()
        },
    }
    options.output.write_text(json.dumps(run, indent=1) + "\n")


if __name__ == "__main__":
    main()
