# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Makes networks with codes for `quantize`, and measures their sizes."""

import math
import pathlib
import tempfile
import warnings

from tf_capsops import inq
from tf_capsops.inq.kernels import channel_axes, layers_and_kernels

_CALIBRATION = 256  # images


def rehearsed(model, steps, routing_bits, samples):
    """Quantizes and converts a copy before training, to find out whether that works.

    Returns:
      The copy, without a loss and with all weights quantized at once; it rounds
      activations and routing if the result of the training will. And the size in bytes
      of its file in floating point.

    Raises:
      ValueError: `tf_capsops.inq.convert` refuses the model, or a weight is not finite.
    """
    copy = bare_copy(model)
    for layer, kernel in layers_and_kernels(copy):
        axes = channel_axes(layer, kernel) if steps.per_channel else ()
        kernel.assign(inq.quantize(kernel, steps.bits, axes=axes))
    images = None
    if steps.activation_bits or routing_bits:
        images = calibration_images(samples)
    with_codes = converted(copy, steps, images if steps.activation_bits else None)
    if routing_bits:
        with_codes = routing_in_few_bits(with_codes, routing_bits, images)
    file_size(with_codes)
    return copy if images is None else with_codes, file_size(copy)


def calibration_images(samples):
    images, _ = next(iter(samples.batches(_CALIBRATION)))
    return images


def routing_in_few_bits(model, bits, images):
    """Returns a copy of a model with codes that rounds its routing to this many bits.

    Activations keep their ranges.
    """
    options = {"all_kinds": True, "routing_bits": bits}
    return _without_warning(model, **options, calibration=images)


def converted(model, steps, calibration=None):
    """Converts a model with the bits that its training had."""
    return _without_warning(model, **conversion(steps), calibration=calibration)


def _without_warning(model, **options):
    """Calls `tf_capsops.inq.convert` without its warning.

    The command prints a table of layers, which says the same.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "convert: ")
        return inq.convert(model, **options)


def conversion(steps):
    """Returns the arguments of `convert` and `report` that go with a training."""
    names = "bits", "per_channel", "activation_bits"
    return {"all_kinds": True, **{name: getattr(steps, name) for name in names}}


def bare_copy(model):
    """Returns a copy without loss and optimizer, whose state a file would contain."""
    copy = type(model).from_config(model.get_config())
    copy.set_weights(model.get_weights())
    return copy


def file_size(model):
    """Returns the size of the model's `.keras` file in bytes."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "model.keras"
        model.save(path)
        return path.stat().st_size


def bytes_in_memory(model):
    return sum(math.prod(v.shape) * v.value.dtype.size for v in model.weights)


def sizes(report):
    """Returns four lines about the sizes in a report."""
    weights, files = report["bytes_of_weights"], report["bytes_of_file"]
    memory = report["bytes_in_memory"]
    return (
        f"{report['weights']:,} quantized weights: {weights['float32']:,} bytes as "
        f"float32, {weights['packed']:,} packed ({report['bits']} bits each)\n"
        f"model.keras: {files['model']:,} bytes with the optimizer's state, "
        f"{files['float']:,} without it\n"
        f"codes.keras: {files['codes']:,} bytes without an optimizer, with codes: "
        f"{files['codes'] / files['float']:.1%} of that\n"
        f"all weights in memory: {memory['codes']:,} bytes with codes, "
        f"{memory['float']:,} without"
    )
