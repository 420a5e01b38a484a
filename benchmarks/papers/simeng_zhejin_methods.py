# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Ways to compute high-order convolution: those of Simeng and Zhejin, and ours.

Each is timed by itself, with given filters, and in the paper's module: a convolution
generates the filters, and the image is added to the result.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import tensorflow as tf

import tf_capsops
from benchmarks.papers import outcome, pad_slice_multiply, studies
from tf_capsops.bench.report import OURS

CHANNELS, IMAGE, KERNEL = 3, (224, 224), (5, 5)
POSITIONS = KERNEL[0] * KERNEL[1]
PAPER, NCHW, NHWC = "paper", "NCHW", "NHWC"


@dataclasses.dataclass(frozen=True)
class Method:
    """A way to compute the convolution.

    Attributes:
        compute: From inputs and weights to the output.
        layout: Of its tensors, a key of `layouts`.
        one_op: Whether it is a single op, whose launch must not count for much.
        xla: Whether it is compiled.
    """

    compute: Callable[..., tf.Tensor]
    layout: str = PAPER
    one_op: bool = True
    xla: bool = False


def methods(kind: str) -> dict[str, Method]:
    """Returns what is timed on a type of device, by name."""

    def ours(data_format, xla=False):
        compute = functools.partial(
            tf_capsops.high_order_conv2d, kernel_size=KERNEL, data_format=data_format
        )
        return Method(compute, data_format, xla=xla)

    python = functools.partial(pad_slice_multiply.python, kernel_size=KERNEL)
    cpp = functools.partial(pad_slice_multiply.cpp, kernel_size=KERNEL)
    cuda = functools.partial(studies.high_order_conv2d, kernel_size=KERNEL)
    return {
        "python": Method(python, one_op=False),
        "cpp": Method(cpp, one_op=False),
        **({"cuda": Method(cuda)} if kind == "GPU" else {}),
        "python, XLA": Method(python, xla=True),
        OURS: ours(NCHW),
        f"{OURS}, NHWC": ours(NHWC),
        # XLA's convolutions on a CPU are many times slower than TensorFlow's.
        **({f"{OURS}, NHWC, XLA": ours(NHWC, xla=True)} if kind == "GPU" else {}),
    }


def label_of(name: str) -> str:
    """Returns a method's name as tables and charts show it."""
    return outcome.name(name, "HighOrderConv") + (", NCHW" if name == OURS else "")


def layouts(batch: int) -> dict[str, tuple[tuple[int, ...], ...]]:
    """Returns the shapes of the output's gradient, the input and the weights."""
    first = batch, CHANNELS, *IMAGE
    last = batch, *IMAGE, CHANNELS
    return {
        PAPER: (first, first, (POSITIONS, batch, 1, *IMAGE)),
        NCHW: (first, first, (batch, POSITIONS, *IMAGE)),
        NHWC: (last, last, (batch, *IMAGE, POSITIONS)),
    }


def generator() -> tuple[tf.Tensor, tf.Tensor]:
    """Draws kernel and bias of the convolution that generates the filters."""
    kernel = tf.random.uniform((*KERNEL, CHANNELS, POSITIONS), -0.1, 0.1)
    return kernel, tf.random.uniform((POSITIONS,), -0.1, 0.1)


def _filters(images, kernel, bias, layout: str, kind: str) -> tf.Tensor:
    """Generates filters; TensorFlow's CPU convolves with channels last only."""
    if layout == NHWC:
        return tf.nn.conv2d(images, kernel, 1, "SAME") + bias
    if kind == "GPU":
        filters = tf.nn.conv2d(images, kernel, 1, "SAME", data_format=NCHW)
        filters += bias[:, tf.newaxis, tf.newaxis]
        if layout == PAPER:
            filters = tf.transpose(filters, [1, 0, 2, 3])
    else:
        last = tf.transpose(images, [0, 2, 3, 1])
        filters = tf.nn.conv2d(last, kernel, 1, "SAME") + bias
        filters = tf.transpose(
            filters, [3, 0, 1, 2] if layout == PAPER else [0, 3, 1, 2]
        )
    return filters[:, :, tf.newaxis] if layout == PAPER else filters


def module(method: Method, kind: str) -> Callable[..., tf.Tensor]:
    """Returns the paper's module, from images and the generator's kernel and bias."""

    def compute(images, kernel, bias):
        filters = _filters(images, kernel, bias, method.layout, kind)
        return method.compute(images, filters) + images

    return compute
