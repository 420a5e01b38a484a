# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The library of other papers' kernels, which nothing but benchmark and tests loads."""

from __future__ import annotations

import functools
import pathlib
import types

import tensorflow as tf

_ROOT = pathlib.Path(__file__).resolve().parents[2]

VAIDYA = ("B", "I1", "I2", "I3")
LAYOUTS = ("pcrk", "prkc", "crkp", "rpck", "rckp")  # axes, the outermost first
CHEN = ("gemms", "official", "custom")
KHANDWAWALA = (  # without the two that do not multiply
    *("output_basic", "output_3", "output_5", "output_6"),
    *("input_basic", "input_1", "input_2"),
)


def library_path() -> str:
    """Returns the path of libtf_capsops_studies.so in the source tree.

    Raises:
        ImportError: There is none; the text says what to do.
    """
    path = _ROOT / "build" / "libtf_capsops_studies.so"
    if not path.is_file():
        raise ImportError(
            f"The papers' kernels {path} do not exist: run `make studies`, "
            "which needs the CUDA toolkit."
        )
    return str(path)


@functools.cache
def load() -> types.ModuleType:
    """Loads the library and returns the module of its ops."""
    return tf.load_op_library(library_path())


def capsule_conv2d(inputs, weights, kernel, **attributes):
    """Convolves as capsule_conv2d does, by the kernels of another paper.

    Args:
        inputs: As capsule_conv2d's, float32, on a GPU.
        weights: As capsule_conv2d's.
        kernel: One of VAIDYA, or "layout_" and one of LAYOUTS, which have no gradient;
            or one of CHEN.
        **attributes: Strides, padding and dilations, as the op takes them.

    Raises:
        ImportError: The library was not built.
    """
    ops = load()

    @tf.custom_gradient
    def compute(inputs, weights):
        output = ops.capsule_conv_study(inputs, weights, kernel=kernel, **attributes)

        def gradients(grad):
            return ops.capsule_conv_study_grad(
                grad, inputs, weights, kernel=kernel, **attributes
            )

        return output, gradients

    return compute(inputs, weights)


def capsule_prediction(inputs, weights):
    """Predicts as capsule_prediction does, by the CUDA kernels of another paper.

    Args:
        inputs: As capsule_prediction's, float32, on a GPU.
        weights: As capsule_prediction's.

    Raises:
        ImportError: The library was not built.
    """
    ops = load()

    @tf.custom_gradient
    def compute(inputs, weights):
        def gradients(grad):
            return ops.capsule_prediction_study_grad(grad, inputs, weights)

        return ops.capsule_prediction_study(inputs, weights), gradients

    return compute(inputs, weights)


def high_order_conv2d(inputs, weights, kernel_size):
    """Convolves as high_order_conv2d does, by the CUDA kernels of another paper.

    Args:
        inputs: `[batch, channels, height, width]`, float32, on a GPU, to 1024 wide.
        weights: `[KH * KW, batch, 1, height, width]`.
        kernel_size: `KH` and `KW`, odd.

    Raises:
        ImportError: The library was not built.
    """
    ops = load()

    @tf.custom_gradient
    def compute(inputs, weights):
        output = ops.high_order_conv_study(inputs, weights, kernel_size=kernel_size)

        def gradients(grad):
            return ops.high_order_conv_study_grad(
                grad, inputs, weights, kernel_size=kernel_size
            )

        return output, gradients

    return compute(inputs, weights)


def inq_conv2d(inputs, codes, top_exponent, kernel, **attributes):
    """Convolves as inq_conv2d does with VALID padding, by another paper's kernels.

    Args:
        inputs: One image, `[1, in_height, in_width, in_channels]`, float32.
        codes: As inq_conv2d's; the kernel is as high as wide, unless it is serial.
        top_exponent: As inq_conv2d's.
        kernel: "serial", on a CPU; one of KHANDWAWALA, on a GPU; or there
            "output_unread" or "output_unused", which add pixels whatever the codes.
        **attributes: Bits (4), strides, and the powers of two that weights have (3).

    Returns:
        Planes, `[1, out_channels, out_height, out_width]`.

    Raises:
        ImportError: The library was not built.
    """
    return load().inq_conv_study(
        inputs, codes, top_exponent, kernel=kernel, **attributes
    )
