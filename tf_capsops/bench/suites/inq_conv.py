# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Cases, rival and costs of InqConv.

The cases are channels and pixels below, at and above the sizes of tiles; every number
of bits; all kinds of strides, dilations and padding; images smaller than the window;
long sums; and sizes above the limit of one dimension of a CUDA grid.
"""

from __future__ import annotations

import itertools
import math

import numpy as np

from tf_capsops.bench import cases, window
from tf_capsops.bench.cases import Case, Cost
from tf_capsops.ops.conv2d import conv2d, steps_of_axes
from tf_capsops.ops.inq_conv import decoded, inq_conv2d

_IMAGE = ("batch", "in_height", "in_width")
_CHANNELS = ("in_channels", "out_channels")
_KERNEL = ("kernel_height", "kernel_width")


def _case(
    name,
    image,
    channels,
    kernel,
    *uses,
    bits=5,
    strides=1,
    padding="SAME",
    dilations=1,
    devices=("CPU", "GPU"),
):
    names = (*_IMAGE, *_CHANNELS, *_KERNEL)
    sizes = zip(names, (*image, *channels, *window.pair(kernel)), strict=True)
    attributes = {
        "bits": bits,
        "strides": window.pair(strides),
        "padding": padding,
        "dilations": window.pair(dilations),
    }
    return Case(name, dict(sizes), uses, devices, attributes)


def _correctness_cases():
    use = cases.CORRECTNESS
    yield _case("ones", (1, 1, 1), (1, 1), 1, use, cases.GRADIENT)
    yield _case("primes", (3, 11, 7), (5, 7), (3, 2), use)
    yield _case("large_primes", (1, 13, 17), (11, 13), (2, 3), use, padding="VALID")
    for bits in range(2, 9):
        yield _case(f"bits_{bits}", (2, 6, 5), (7, 9), 3, use, bits=bits)
        yield _case(f"bits_{bits}_by_16", (1, 5, 8), (32, 16), 1, use, bits=bits)
    for channels in (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 129):
        yield _case(f"in_channels_{channels}", (2, 4, 5), (channels, 3), (2, 3), use)
        yield _case(f"out_channels_{channels}", (2, 4, 5), (3, channels), (2, 3), use)
        yield _case(f"channels_{channels}", (1, 3, 4), (channels, channels), 2, use)
    for pixels in (15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 257):
        yield _case(f"pixels_{pixels}", (1, 1, pixels), (3, 2), 1, use)
        yield _case(f"pixels_{pixels}_by_16", (1, 1, pixels), (16, 16), (1, 3), use)
    for strides, padding in itertools.product(
        ((1, 1), (2, 2), (3, 3), (1, 2), (3, 1)), ("VALID", "SAME")
    ):
        name = f"strides_{strides[0]}_{strides[1]}_{padding}"
        moved = {"strides": strides, "padding": padding}
        yield _case(name, (2, 8, 9), (2, 3), (3, 2), use, **moved)
        yield _case(f"{name}_large", (1, 9, 11), (16, 8), (5, 4), use, **moved)
    yield _case("strides_2_2_by_64", (2, 7, 8), (32, 64), 3, use, strides=2)
    for dilations, strides, padding in itertools.product(
        ((2, 2), (1, 3), (3, 2)), (1, 2), ("VALID", "SAME")
    ):
        name = f"dilations_{dilations[0]}_{dilations[1]}_by_{strides}_{padding}"
        moved = {"dilations": dilations, "strides": strides, "padding": padding}
        yield _case(name, (2, 8, 9), (8, 3), 3, use, **moved)
    for kernel in ((1, 1), (1, 5), (5, 1), (4, 2), (7, 7)):
        name, sizes = f"kernel_{kernel[0]}_{kernel[1]}", ((2, 8, 7), (4, 3), kernel)
        yield _case(name, *sizes, use)
        yield _case(f"{name}_VALID", *sizes, use, padding="VALID")
    for strides, dilations in ((1, 1), (2, 1), (1, 3)):
        name = f"small_image_{strides}_{dilations}"
        moved = {"strides": strides, "dilations": dilations}
        yield _case(name, (2, 2, 1), (3, 2), 7, use, **moved)
    yield _case("gaps", (2, 11, 13), (2, 3), 2, use, strides=(3, 5), padding="VALID")
    far = {"strides": (2**30, 2**31 - 1)}
    yield _case("far_strides", (2, 3, 4), (2, 3), 2, use, padding="VALID", **far)
    far = {"dilations": (2**30, 2**31 - 1)}
    yield _case("far_dilations", (2, 3, 4), (2, 3), 3, use, **far)
    # Taps outside of the image, at distances that still fit in 32 bits.
    yield _case("beside", (1, 4, 4), (1, 2), 2, use, dilations=(50000, 65532))
    # Most pixels of the input reach no output.
    yield _case("pixels_left_out", (3, 14, 13), (16, 16), 1, use, strides=(3, 2))
    yield _case("wide", (1, 3, 300), (2, 3), 3, use)
    yield _case("tall", (1, 300, 3), (3, 2), (3, 2), use, strides=(2, 1))
    yield _case("dense", (33, 1, 1), (70, 65), 1, use)
    # Kernel positions that read consecutive pixels in the middle of an image.
    for channels, strides in itertools.product((1, 3, 65), (1, 2)):
        name, sizes = f"rows_{channels}_by_{strides}", ((2, 9, 40), (channels, 16), 7)
        yield _case(name, *sizes, use, strides=strides)
    # Consecutive tiles of a row, at the edges and in several groups.
    for width in (29, 43, 70):
        yield _case(f"spans_{width}", (2, 5, width), (16, 32), 3, use)
        yield _case(
            f"spans_{width}_by_2", (1, 5, 2 * width), (32, 16), 3, use, strides=2
        )
        yield _case(
            f"spans_{width}_VALID", (2, 5, width), (16, 16), 3, use, padding="VALID"
        )
    yield _case("spans_dilated", (1, 5, 70), (16, 48), 3, use, dilations=2)
    yield _case("spans_of_parts", (1, 4, 50), (144, 272), 3, use)
    # No tap reads inside the image for the row in the middle.
    yield _case("spans_of_nothing", (1, 3, 40), (16, 16), (2, 1), use, dilations=(4, 1))
    yield _case("parts_of_rows", (1, 24, 44), (1, 16), 20, use)
    yield _case("rows_wider_than_image", (2, 4, 6), (2, 16), (3, 20), use)
    yield _case("long_sums", (1, 6, 6), (129, 1), 5, use)
    yield _case("long_sums_of_grad", (1, 6, 6), (1, 129), 5, use)
    yield _case("longer_sums", (1, 3, 3), (515, 8), 3, use)
    yield from _grid_cases(use)
    yield from _empty_cases(use)


def _grid_cases(use):
    """Yields cases with a dimension above 65535, each in turn."""
    many = 70001
    yield _case("grid_of_samples", (many, 1, 1), (1, 1), 1, use)
    yield _case("grid_of_rows", (1, many, 2), (1, 2), (2, 1), use)
    yield _case("grid_of_columns", (1, 2, many), (1, 2), (1, 2), use)
    yield _case("grid_of_in_channels", (2, 1, 1), (many, 1), 1, use)
    yield _case("grid_of_out_channels", (2, 1, 1), (1, many), 1, use)


def _empty_cases(use):
    yield _case("empty_batch", (0, 3, 4), (2, 3), 2, use)
    yield _case("empty_image", (2, 3, 0), (2, 3), 2, use)
    yield _case("empty_image_VALID", (2, 0, 4), (2, 3), 2, use, padding="VALID")
    yield _case("no_in_channels", (2, 3, 4), (0, 3), 2, use)
    yield _case("no_out_channels", (2, 3, 4), (2, 0), 2, use)


def _all_cases():
    yield from _correctness_cases()
    use = cases.GRADIENT
    yield _case("gradient_valid", (2, 3, 4), (2, 3), (2, 3), use, padding="VALID")
    moved = {"strides": (2, 1), "dilations": (1, 2), "bits": 3}
    yield _case("gradient_same", (1, 4, 3), (2, 2), 2, use, **moved)
    yield _case("smoke", (2, 6, 5), (3, 4), (3, 2), cases.SMOKE)
    gpu, cpu = {"devices": ("GPU",)}, {"devices": ("CPU",)}
    use = cases.ANCHORS
    yield _case("n4_56x56_c64_o64_k3", (4, 56, 56), (64, 64), 3, use, **cpu)
    yield _case("n4_14x14_c256_o256_k3", (4, 14, 14), (256, 256), 3, use, **cpu)
    yield _case("n1_256x256_c4_o128_k3", (1, 256, 256), (4, 128), 3, use, **cpu)
    yield _case("n32_56x56_c64_o64_k3", (32, 56, 56), (64, 64), 3, use, **gpu)
    yield _case("n32_14x14_c256_o256_k3", (32, 14, 14), (256, 256), 3, use, **gpu)
    # The setup of Khandwawala, "Weight Sharing on CNN" (2018).
    yield _case("n1_1024x1024_c4_o128_k3", (1, 1024, 1024), (4, 128), 3, use, **gpu)
    # Other layers of ResNet-18, and the second of AlexNet; Zhou et al. quantize both.
    use = cases.NETWORKS
    yield _case("resnet_first_b8", (8, 224, 224), (3, 64), 7, use, strides=2)
    yield _case("resnet_2_b8", (8, 56, 56), (64, 128), 3, use, strides=2)
    yield _case("resnet_2_shortcut_b8", (8, 56, 56), (64, 128), 1, use, strides=2)
    yield _case("resnet_4_b8", (8, 7, 7), (512, 512), 3, use)
    yield _case("alexnet_2_b8", (8, 27, 27), (96, 256), 5, use)
    yield _case("dense_b64", (64, 1, 1), (4096, 1000), 1, use)


def _shapes(case):
    """Returns the shapes of input, codes and output."""
    batch, in_height, in_width, in_channels, out_channels, *kernel = (
        case.sizes[name] for name in (*_IMAGE, *_CHANNELS, *_KERNEL)
    )
    height, width = (out for out, _ in _case_steps(case))
    return (
        (batch, in_height, in_width, in_channels),
        (*kernel, in_channels, out_channels),
        (batch, height, width, out_channels),
    )


def _moved(attributes):
    """Returns the attributes without the number of bits."""
    return {name: value for name, value in attributes.items() if name != "bits"}


def _case_steps(case):
    image, kernel = ([case.sizes[name] for name in d] for d in (_IMAGE[1:], _KERNEL))
    return steps_of_axes(image, kernel, **_moved(case.attributes))


def _draw(case, rng):
    """Draws inputs and codes; all codes of the book are equally likely."""
    image, codes, _ = _shapes(case)
    last = 2 ** (case.attributes["bits"] - 1)
    return (
        rng.uniform(-1, 1, image),
        rng.integers(0, last, codes, np.uint8, endpoint=True),
        np.int32(-1),
    )


def _output_shape(case):
    return _shapes(case)[2]


def _decoded(inputs, codes, top_exponent, bits, **_):
    """Returns input and decoded weights, as any other convolution takes them."""
    return inputs, decoded(codes, top_exponent, bits, inputs.dtype)


def _conv2d(inputs, weights, bits, **moved):
    return conv2d(inputs, weights, **moved)


def _forward_cost(case):
    """Counts two FLOPs for each product inside the image, and a byte for each code."""
    batch, channels = case.sizes["batch"], [case.sizes[name] for name in _CHANNELS]
    flops = 2 * math.prod((batch, window.reads(_case_steps(case)), *channels))
    inputs, codes, output = map(math.prod, _shapes(case))
    return Cost(inputs + output, flops, more_bytes=codes)


def _training_cost(case):
    """Counts the forward pass, reading codes and grad, and writing one gradient."""
    forward = _forward_cost(case)
    return Cost(2 * forward.elements, 2 * forward.flops, 2 * forward.more_bytes)


SUITE = cases.OpSuite(
    op="InqConv",
    cases=tuple(_all_cases()),
    draw=_draw,
    output_shape=_output_shape,
    ours=inq_conv2d,
    rivals={"conv2d": _conv2d},
    forward_cost=_forward_cost,
    training_cost=_training_cost,
    prepare=_decoded,
    sources=1,
)
