# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Cases, rivals and costs of HighOrderConv.

The cases are images and channels below, at and above the tile sizes (powers of two);
windows of every form, also far larger than the image; dilations up to the largest;
sizes above the limit of one dimension of a CUDA grid; and images wider than the 1024
pixels at which the paper's kernel stops. Each comes in both orders of axes.
"""

from __future__ import annotations

import math

import tensorflow as tf

from tf_capsops.bench import cases
from tf_capsops.bench.cases import Case, Cost
from tf_capsops.ops.high_order_conv import high_order_conv2d, offsets, plain

_IMAGE = ("batch", "height", "width", "channels")
_PATCHES_BYTES = 1 << 33  # the most bytes that the rival `patches` may gather


def _pair(value):
    return tuple(value) if isinstance(value, tuple) else (value, value)


def _case(
    name,
    image,
    kernel,
    *uses,
    groups=1,
    dilations=1,
    data_format="NHWC",
    devices=("CPU", "GPU"),
):
    """Makes a case; `image` is in the order NHWC, whatever the format."""
    attributes = {
        "kernel_size": _pair(kernel),
        "groups": groups,
        "dilations": _pair(dilations),
        "data_format": data_format,
    }
    sizes = dict(zip(_IMAGE, image, strict=True))
    return Case(name, sizes, uses, devices, attributes)


def _both(name, image, kernel, *uses, **options):
    """Yields a case for each order of axes."""
    yield _case(name, image, kernel, *uses, **options)
    options["data_format"] = "NCHW"
    yield _case(f"{name}_NCHW", image, kernel, *uses, **options)


def _correctness_cases():
    use = cases.CORRECTNESS
    yield from _both("ones", (1, 1, 1, 1), 1, use, cases.GRADIENT)
    yield from _both("paper_small", (2, 8, 8, 3), 5, use)
    yield from _both("primes", (3, 11, 7, 5), (3, 5), use)
    yield from _both("large_primes", (1, 37, 41, 13), (7, 5), use)
    yield from _both("tiles_of_all", (2, 35, 131, 6), 5, use, groups=2)
    for size in (
        2,
        3,
        4,
        5,
        7,
        8,
        9,
        15,
        16,
        17,
        31,
        32,
        33,
        63,
        64,
        65,
        127,
        128,
        129,
    ):
        yield from _both(f"width_{size}", (2, 2, size, 2), 3, use)
        yield from _both(f"channels_{size}", (1, 2, 3, size), 3, use)
    for size in (2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 65):
        yield from _both(f"height_{size}", (2, size, 3, 3), 3, use)
    yield from _both("channels_256", (1, 3, 2, 256), 3, use)
    # Fewer groups in the last pass of a task, and in the last task.
    yield from _both("fewer_groups_at_a_time", (1, 5, 56, 8), 5, use, groups=8)
    yield from _both("fewer_groups_in_a_task", (1, 7, 20, 576), 7, use, groups=36)
    for channels, groups in (
        *((3, 3), (4, 2), (12, 3), (12, 12), (16, 4), (32, 2), (51, 3), (64, 4)),
        *((64, 64), (66, 33), (130, 2), (256, 16)),
    ):
        name = f"channels_{channels}_groups_{groups}"
        yield from _both(name, (2, 3, 5, channels), 3, use, groups=groups)
    for kernel in (
        *((1, 1), (1, 3), (3, 1), (3, 3), (5, 5), (7, 7), (1, 7), (7, 1), (9, 3)),
        *((3, 9), (11, 11), (1, 15), (15, 1)),
    ):
        name = f"kernel_{kernel[0]}_{kernel[1]}"
        yield from _both(name, (2, 9, 10, 3), kernel, use)
        yield from _both(f"{name}_groups", (1, 6, 19, 4), kernel, use, groups=2)
    # Strips of rows, and packs of four pixels, for windows of these sizes.
    yield from _both("kernel_5_5_width_600", (1, 9, 600, 3), 5, use)
    yield from _both("kernel_7_7_width_12", (2, 9, 12, 3), 7, use)
    # More channels than a CPU task handles at a time, in several steps of rows.
    yield from _both("channels_3001_kernel_9", (1, 9, 9, 3001), 9, use)
    for image, kernel in (
        ((1, 1, 1, 3), (7, 7)),
        ((2, 1, 5, 3), (5, 5)),
        ((2, 5, 1, 3), (5, 5)),
        ((2, 3, 4, 2), (9, 9)),
        ((1, 2, 3, 4), (31, 31)),
        ((2, 2, 3, 2), (1001, 1)),
        ((2, 3, 2, 2), (1, 1001)),
    ):
        name = f"image_{image[1]}_{image[2]}_kernel_{kernel[0]}_{kernel[1]}"
        yield from _both(name, image, kernel, use, groups=image[3])
    yield from _dilated_cases(use)
    yield from _both("wide", (1, 2, 1025, 3), 5, use)
    yield from _both("wider", (1, 2, 4099, 2), 3, use, groups=2)
    yield from _both("tall", (1, 1025, 3, 3), 5, use)
    yield from _both("long_sums_of_channels", (1, 3, 4, 1009), 3, use)
    yield from _both("long_sums_of_taps", (1, 20, 19, 2), 31, use)
    yield from _grid_cases(use)
    yield from _empty_cases(use)


def _dilated_cases(use):
    for dilations in ((2, 2), (1, 3), (3, 1), (4, 5)):
        name = f"dilations_{dilations[0]}_{dilations[1]}"
        yield from _both(name, (2, 8, 11, 4), 3, use, dilations=dilations, groups=2)
        yield from _both(f"{name}_large", (1, 9, 13, 3), 5, use, dilations=dilations)
    name = "dilations_3_1_channels_8"
    yield from _both(name, (2, 8, 11, 8), 3, use, dilations=(3, 1), groups=2)
    # The last row or column that reaches the image, and the first that does not.
    for dilation in (6, 7, 8):
        name = f"dilations_{dilation}_of_7"
        yield from _both(name, (2, 7, 7, 3), 3, use, dilations=dilation)
    for dilation in (50000, 2**16, 2**30, 2**31 - 1):
        name = f"dilations_{dilation}"
        yield from _both(name, (2, 3, 4, 2), 5, use, dilations=dilation)
    # Four times 2^30 rows wrap to zero in 32 bits.
    far = {"dilations": (2**30, 2**29)}
    yield from _both("dilations_that_wrap", (1, 3, 4, 2), (9, 17), use, **far)


def _grid_cases(use):
    """Yields cases with a dimension above 65535, each in turn."""
    many = 70001
    yield from _both("grid_of_samples", (many, 1, 1, 1), 1, use)
    yield from _both("grid_of_images", (many, 1, 2, 1), (1, 3), use)
    yield from _both("grid_of_rows", (1, many, 2, 1), (3, 1), use)
    yield from _both("grid_of_columns", (1, 2, many, 1), (1, 3), use)
    yield from _both("grid_of_channels", (1, 1, 2, many), (1, 3), use)
    yield from _both("grid_of_groups", (1, 1, 2, many), (1, 3), use, groups=many)


def _empty_cases(use):
    yield from _both("no_samples", (0, 3, 4, 2), 3, use)
    yield from _both("no_rows", (2, 0, 4, 2), 3, use)
    yield from _both("no_columns", (2, 3, 0, 2), 3, use)
    yield from _both("no_channels", (2, 3, 4, 0), 3, use)
    yield from _both("no_channels_in_groups", (2, 3, 4, 0), 3, use, groups=3)


def _all_cases():
    yield from _correctness_cases()
    use = cases.GRADIENT
    yield from _both("gradient", (2, 2, 3, 2), 3, use)
    moved = {"groups": 2, "dilations": (1, 2)}
    yield from _both("gradient_groups", (1, 3, 4, 4), (1, 3), use, **moved)
    yield from _both("gradient_beside", (1, 1, 2, 2), (3, 5), use)
    yield _case("smoke", (2, 6, 5, 4), 3, cases.SMOKE, groups=2, dilations=(1, 2))
    gpu, cpu = {"devices": ("GPU",)}, {"devices": ("CPU",)}
    use = cases.ANCHORS
    yield from _both("n64_224x224_c3_k5", (64, 224, 224, 3), 5, use, **gpu)
    yield from _both("n8_224x224_c3_k5", (8, 224, 224, 3), 5, use, **cpu)
    # The batches of the paper's charts; then Li et al., "Involution" (2021), with
    # groups of 16 channels.
    use = cases.NETWORKS
    for batch in (8, 16, 32, 128, 256, 512):
        yield _case(f"paper_b{batch}", (batch, 224, 224, 3), 5, use, **gpu)
    for size, channels in ((56, 64), (28, 128), (14, 256), (7, 512)):
        name, image = f"involution_{size}x{size}_c{channels}", (size, size, channels)
        groups = {"groups": channels // 16}
        yield from _both(f"{name}_b32", (32, *image), 7, use, **groups, **gpu)
        yield from _both(f"{name}_b2", (2, *image), 7, use, **groups, **cpu)


def _shapes(case):
    """Returns the shapes of input and filters."""
    *image, channels = (case.sizes[name] for name in _IMAGE)
    depth = case.attributes["groups"] * math.prod(case.attributes["kernel_size"])
    if case.attributes["data_format"] == "NCHW":
        batch, *image = image
        return (batch, channels, *image), (batch, depth, *image)
    return (*image, channels), (*image, depth)


def _draw(case, rng):
    return tuple(rng.uniform(-1, 1, shape) for shape in _shapes(case))


def _output_shape(case):
    return _shapes(case)[0]


def _patches(inputs, filters, kernel_size, groups, dilations, data_format):
    """Gathers the patch that each pixel reads, and reduces it with the filters."""
    gathered = inputs.shape.num_elements() * math.prod(kernel_size) * inputs.dtype.size
    if gathered > _PATCHES_BYTES:
        text = f"the patches would be {gathered / 1e9:.1f} GB"
        raise tf.errors.ResourceExhaustedError(None, None, text)
    to_last = data_format == "NCHW"
    if to_last:
        inputs, filters = (tf.transpose(t, (0, 2, 3, 1)) for t in (inputs, filters))
    *image, channels = inputs.shape
    patches = tf.image.extract_patches(
        inputs, (1, *kernel_size, 1), (1, 1, 1, 1), (1, *dilations, 1), "SAME"
    )
    patches = tf.reshape(patches, (*image, -1, groups, channels // groups))
    filters = tf.reshape(filters, (*image, groups, -1))
    output = tf.einsum("nyxkgc,nyxgk->nyxgc", patches, filters)
    output = tf.reshape(output, (*image, channels))
    return tf.transpose(output, (0, 3, 1, 2)) if to_last else output


def _forward_cost(case):
    """Counts two FLOPs for each product of numbers inside the image."""
    reads = math.prod(
        sum(max(0, size - abs(offset)) for _, offset in offsets(size, kernel, dilation))
        for size, kernel, dilation in zip(
            (case.sizes["height"], case.sizes["width"]),
            case.attributes["kernel_size"],
            case.attributes["dilations"],
            strict=True,
        )
    )
    image, filters = map(math.prod, _shapes(case))
    flops = 2 * reads * case.sizes["batch"] * case.sizes["channels"]
    return Cost(2 * image + filters, flops)


def _training_cost(case):
    """Counts the forward pass, one read of inputs and grad, and two gradients written.

    Each gradient takes as many products as the output.
    """
    image, filters = map(math.prod, _shapes(case))
    return Cost(5 * image + 3 * filters, 3 * _forward_cost(case).flops)


SUITE = cases.OpSuite(
    op="HighOrderConv",
    cases=tuple(_all_cases()),
    draw=_draw,
    output_shape=_output_shape,
    ours=high_order_conv2d,
    rivals={"slices": plain, "patches": _patches},
    forward_cost=_forward_cost,
    training_cost=_training_cost,
)
