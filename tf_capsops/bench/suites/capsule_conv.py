# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Cases, rivals and costs of CapsuleConv.

The cases are poses of 4x4x4 with channels below, at and above the tile sizes (powers of
two); poses of other sizes, and of one row, at the edges of other tiles; all kinds of
strides, dilations and padding; images smaller than the window; long sums of each kind;
and sizes above the limit of one dimension of a CUDA grid.
"""

from __future__ import annotations

import functools
import itertools
import math

import tensorflow as tf

from tf_capsops.bench import cases, window
from tf_capsops.bench.cases import Case, Cost
from tf_capsops.ops.capsule_conv import capsule_conv2d, plain
from tf_capsops.ops.conv2d import conv2d, product_of_patches, steps_of_axes

_IMAGE = ("batch", "in_height", "in_width")
_CHANNELS = ("in_channels", "out_channels")
_KERNEL = ("kernel_height", "kernel_width")
_POSE = ("pose_depth", "pose_rows", "pose_inner", "pose_columns")
_POSES = (  # apart from 4x4x4: vectors, similar sizes, primes, and larger ones
    *((1, 1, 1), (1, 8, 16), (3, 3, 3), (2, 4, 3), (5, 7, 2), (8, 8, 8), (4, 4, 16)),
    *((4, 4, 1), (4, 1, 4), (1, 4, 4), (4, 4, 5), (4, 3, 4), (3, 4, 4), (17, 9, 13)),
    *((3, 3, 3, 3), (2, 2, 4, 4), (2, 4, 4, 4), (5, 1, 8, 3), (1, 4, 4, 4)),
)


def _case(
    name,
    image,
    channels,
    kernel,
    *uses,
    pose=(4, 4, 4),
    strides=1,
    padding="VALID",
    dilations=1,
    devices=("CPU", "GPU"),
):
    """Makes a case; a `pose` of four numbers means capsules of rank 3."""
    names = (*_IMAGE, *_CHANNELS, *_KERNEL, *_POSE[-len(pose) :])
    sizes = zip(names, (*image, *channels, *window.pair(kernel), *pose), strict=True)
    attributes = {
        "strides": window.pair(strides),
        "padding": padding,
        "dilations": window.pair(dilations),
    }
    return Case(name, dict(sizes), uses, devices, attributes)


def _correctness_cases():
    use = cases.CORRECTNESS
    yield _case("ones", (1, 1, 1), (1, 1), 1, use, cases.GRADIENT, pose=(1, 1, 1))
    yield _case("all_ones_48", (1, 5, 5), (1, 1), 4, use, pose=(3, 3, 3, 3))
    yield _case("primes", (3, 11, 7), (5, 7), (3, 2), use)
    yield _case("large_primes", (1, 13, 17), (11, 13), (2, 3), use)
    for channels in (1, 2, 3, 5, 8, 16, 31, 32, 33):
        sizes = (2, 4, 5), (channels, 3), (2, 3)
        yield _case(f"in_channels_{channels}", *sizes, use)
        sizes = (2, 4, 5), (3, channels), (2, 3)
        yield _case(f"out_channels_{channels}", *sizes, use)
        sizes = (1, 3, 4), (channels, channels), (1, 2)
        yield _case(f"channels_{channels}", *sizes, use)
    for pixels in (15, 16, 17, 31, 32, 33, 63, 64, 65):
        yield _case(f"pixels_{pixels}", (1, 1, pixels), (3, 2), 1, use)
    for strides, padding in itertools.product(
        ((1, 1), (2, 2), (3, 3), (1, 2), (3, 1)), ("VALID", "SAME")
    ):
        name = f"strides_{strides[0]}_{strides[1]}_{padding}"
        moved = {"strides": strides, "padding": padding}
        yield _case(name, (2, 8, 9), (2, 3), (3, 2), use, **moved)
        yield _case(f"{name}_large", (1, 9, 11), (3, 2), (5, 4), use, **moved)
    for dilations, strides, padding in itertools.product(
        ((2, 2), (1, 3), (3, 2)), (1, 2), ("VALID", "SAME")
    ):
        name = f"dilations_{dilations[0]}_{dilations[1]}_by_{strides}_{padding}"
        moved = {"dilations": dilations, "strides": strides, "padding": padding}
        yield _case(name, (2, 8, 9), (2, 3), 3, use, **moved)
    for kernel in ((1, 1), (1, 5), (5, 1), (4, 2), (7, 7)):
        name, sizes = f"kernel_{kernel[0]}_{kernel[1]}", ((2, 8, 7), (2, 3), kernel)
        yield _case(name, *sizes, use)
        yield _case(f"{name}_SAME", *sizes, use, padding="SAME")
    yield _case("gaps", (2, 11, 13), (2, 3), 2, use, strides=(3, 5))
    yield _case("far_strides", (2, 3, 4), (2, 3), 2, use, strides=(2**30, 2**31 - 1))
    far = {"dilations": (2**30, 2**31 - 1), "padding": "SAME"}
    yield _case("far_dilations", (2, 3, 4), (2, 3), 3, use, **far)
    # Taps outside of the image, at distances that still fit in 32 bits.
    for dilation in (50000, 65532):
        far = {"dilations": (dilation, dilation), "padding": "SAME"}
        yield _case(f"dilations_{dilation}", (1, 4, 4), (1, 2), 2, use, **far)
    # Most pixels of the input reach no output.
    for channels in (5, 16, 32):
        name = f"pixels_left_out_{channels}"
        sizes = (3, 14, 13), (channels, channels), 1
        yield _case(name, *sizes, use, strides=(2, 2))
        yield _case(f"{name}_wide", *sizes, use, strides=(3, 1))
    for pose in _POSES:
        name = "pose_" + "_".join(map(str, pose))
        yield _case(name, (2, 5, 6), (3, 5), (2, 3), use, pose=pose)
        moved = {"strides": 2, "padding": "SAME"}
        yield _case(f"{name}_moved", (1, 5, 6), (2, 3), 3, use, pose=pose, **moved)
    for strides, dilations in ((1, 1), (2, 1), (1, 3)):
        name = f"small_image_{strides}_{dilations}"
        moved = {"strides": strides, "dilations": dilations, "padding": "SAME"}
        yield _case(name, (2, 2, 1), (3, 2), (5, 4), use, **moved)
    yield _case("wide", (1, 3, 300), (2, 3), 3, use)
    yield _case("tall", (1, 300, 3), (3, 2), (3, 2), use, strides=(2, 1))
    yield _case("wide_SAME", (1, 3, 300), (2, 1), (3, 5), use, padding="SAME")
    yield _case("long_sums", (1, 6, 6), (129, 1), 5, use)
    yield _case("long_sums_of_grad", (1, 6, 6), (1, 129), 5, use)
    # More planes of a patch than a block has in shared memory, many times over.
    yield _case("many_planes", (2, 9, 9), (64, 32), 3, use)
    for rows, channels in ((4, 15), (5, 17), (17, 33), (64, 6)):
        sizes = (2, 7, 13), (channels, channels), (2, 3)
        yield _case(f"planes_{rows}", *sizes, use, pose=(rows, 4, 4))
    yield _case("long_sums_of_pixels", (40, 12, 13), (1, 2), 2, use)
    yield _case("many_samples", (70001, 1, 1), (1, 1), 1, use)
    # Filters around 16 KB, the largest that a GPU's block keeps whole.
    for taps in (3, 4, 6, 8, 11):
        yield _case(f"small_taps_{taps}", (2, 5, 21), (3, 1), (2, taps), use)
    for rows, columns in ((1, 8), (2, 9), (8, 16), (16, 17)):
        pose = {"pose": (rows, 4, columns)}
        yield _case(f"small_rows_{rows}", (2, 6, 19), (2, 1), (3, 2), use, **pose)
    for channels in (16, 17):
        yield _case(f"small_channels_{channels}", (1, 5, 6), (channels, 4), 2, use)
    yield from _one_row_cases(use)
    yield from _row_cases(use)
    yield from _boxes_cases(use)
    yield from _few_columns_cases(use)
    yield from _grid_cases(use)
    yield from _empty_cases(use)


def _one_row_cases(use):
    """Yields cases of poses of one row; their contraction may fit in a block."""
    one = {"pose": (1, 1, 1)}
    for columns in (4, 28, 36, 64, 68, 132, 260, 6000):
        sizes = (2, 9, 39 if columns > 260 else 8), (1, columns), 3
        yield _case(f"one_row_columns_{columns}", *sizes, use, **one)
    for terms in (7, 8, 9, 32, 33, 64, 65, 96, 97, 256, 257):
        sizes = (2, 4, 5), (terms, 12), 1
        yield _case(f"one_row_terms_{terms}", *sizes, use, **one)
    for pixels in (15, 16, 17, 31, 32, 33, 1025):
        sizes = (1, 1, pixels), (3, 8), 1
        yield _case(f"one_row_pixels_{pixels}", *sizes, use, **one)
    moved = {"strides": (2, 3), "dilations": (3, 2), "padding": "SAME"}
    yield _case("one_row_moved", (3, 17, 19), (3, 8), (5, 4), use, **moved, **one)
    for pose in ((1, 1, 8), (1, 3, 4), (1, 6, 8), (1, 3, 6)):
        name = "one_row_pose_" + "_".join(map(str, pose))
        yield _case(name, (3, 11, 9), (2, 6), (3, 2), use, pose=pose, padding="SAME")
    yield _case("one_row_long_sums", (9, 61, 62), (1, 4), 2, use, **one)


def _row_cases(use):
    """Yields poses of one row, with sizes around the CPU's tiles for such poses."""
    one, vectors = {"pose": (1, 1, 1)}, {"pose": (1, 2, 4)}
    for columns in (15, 16, 17, 32, 47, 65, 127, 128, 129):
        sizes = (2, 5, 4), (5, columns), (2, 3)
        yield _case(f"row_out_channels_{columns}", *sizes, use, **one)
        sizes = (2, 5, 4), (columns, 17), (2, 3)
        yield _case(f"row_in_channels_{columns}", *sizes, use, padding="SAME", **one)
    for pixels in (1, 5, 6, 7, 11, 12, 13, 25, 257):
        sizes = (1, 1, pixels), (3, 5), 1
        yield _case(f"row_pixels_{pixels}", *sizes, use, **vectors)
    for strides, dilations, padding in itertools.product(
        ((1, 1), (2, 2), (3, 1)), ((1, 1), (2, 1), (1, 2)), ("VALID", "SAME")
    ):
        moved = {"strides": strides, "dilations": dilations, "padding": padding}
        name = f"{strides[0]}_{strides[1]}_by_{dilations[0]}_{dilations[1]}_{padding}"
        yield _case(f"row_{name}", (2, 9, 8), (5, 5), 3, use, **vectors, **moved)
        yield _case(f"taps_{name}", (2, 9, 8), (2, 17), 3, use, **one, **moved)
        yield _case(f"wide_{name}", (2, 9, 8), (3, 8), (2, 3), use, **moved)
    yield _case("row_first_convolution", (3, 28, 28), (1, 16), 9, use, **one)
    yield _case("row_first_SAME", (3, 9, 8), (1, 16), 5, use, padding="SAME", **one)
    pose = {"pose": (1, 1, 8)}
    yield _case("row_primary", (3, 20, 20), (16, 4), 9, use, strides=2, **pose)
    yield _case("row_wide", (1, 3, 300), (4, 4), (2, 3), use, padding="SAME", **vectors)
    yield _case("taps_of_many_parts", (1, 40, 50), (1, 400), (3, 2), use, **one)
    for pose in ((3, 3, 5), (4, 8, 4), (5, 7, 16)):
        sizes = (3, 5, 4), (5, 96 // pose[-1]), 2
        yield _case(f"wide_pose_{pose[-1]}", *sizes, use, pose=pose, padding="SAME")
    yield _case("wide_pieces", (2, 4, 5), (70, 24), 2, use)
    yield _case("wide_chunks", (9, 13, 14), (8, 16), 3, use)
    yield _case("row_of_two_parts", (1, 4, 4), (257, 17), 2, use, **one)
    yield _case("row_of_many_parts", (1, 3, 3), (8200, 16), 3, use, **one)
    yield _case("row_of_two_pieces", (2, 3, 3), (513, 17), 1, use, **one)
    yield _case("row_of_many_chunks", (40, 24, 25), (16, 17), 2, use, **one)
    yield _case("row_small_image", (2, 2, 1), (8, 8), 5, use, padding="SAME", **vectors)
    for place, name in enumerate((*_IMAGE, *_CHANNELS)):
        sizes = [2, 3, 4, 16, 17]
        sizes[place] = 0
        image, channels = tuple(sizes[:3]), tuple(sizes[3:])
        yield _case(f"row_no_{name}", image, channels, 2, use, padding="SAME", **one)


def _few_columns_cases(use):
    """Yields long sums over kernel rows and channels, with up to 16 columns."""
    one_way = {"pose": (3, 4, 3)}
    moved = {"strides": (2, 3), "dilations": (2, 1), "padding": "SAME"}
    halved = {"strides": (2, 2), "padding": "SAME"}
    deep = {"pose": (2, 3, 4, 4)}
    yield _case("few_columns", (2, 7, 11), (32, 2), 3, use)
    yield _case("few_columns_moved", (2, 9, 13), (32, 3), (3, 4), use, **moved)
    yield _case("few_columns_odd", (2, 6, 7), (33, 3), (3, 2), use, **one_way)
    yield _case("few_columns_of_input", (2, 8, 9), (2, 32), 3, use)
    yield _case("few_columns_of_input_moved", (1, 9, 12), (3, 32), 5, use, **halved)
    yield _case("few_columns_of_input_deep", (2, 6, 5), (3, 35), (4, 3), use, **deep)


def _boxes_cases(use):
    """Yields poses of one row around 128 rows, 64 terms, and 128 and 256 columns."""
    pose = {"pose": (1, 8, 8)}
    for channels in (7, 8, 9, 15, 16, 17, 31, 32, 33):
        sizes = (3, 4, 5), (channels, 3), (2, 3)
        yield _case(f"boxes_in_channels_{channels}", *sizes, use, **pose)
        sizes = (3, 4, 5), (3, channels), (2, 3)
        yield _case(f"boxes_out_channels_{channels}", *sizes, use, **pose)
    for batch in (31, 32, 33, 127, 128, 129):
        sizes = (batch, 3, 2), (3, 4), 2
        yield _case(f"boxes_batch_{batch}", *sizes, use, padding="SAME", **pose)
    for strides in ((2, 3), (8, 8)):
        name = f"boxes_strides_{strides[0]}_{strides[1]}"
        moved = {"strides": strides, **pose}
        yield _case(name, (2, 19, 17), (3, 4), 2, use, **moved)
        moved["padding"] = "SAME"
        yield _case(f"{name}_SAME", (2, 19, 17), (3, 4), 3, use, **moved)
    moved = {"strides": (2, 1), "dilations": (3, 2), "padding": "SAME"}
    yield _case("boxes_dilations", (2, 9, 11), (3, 4), 3, use, **moved, **pose)
    # Tiles that several blocks share, and blocks that share no tile.
    yield _case("boxes_terms", (1, 5, 5), (1024, 24), 3, use, pose=(1, 1, 1))
    yield _case("boxes_tiles", (5, 40, 41), (24, 24), 3, use, pose=(1, 1, 1))
    for pose in ((1, 8, 3), (1, 3, 8), (1, 1, 1), (1, 8, 64)):
        name = "boxes_pose_" + "_".join(map(str, pose[1:]))
        yield _case(name, (3, 6, 5), (24, 24), (3, 2), use, pose=pose)


def _grid_cases(use):
    """Yields cases with a dimension above 65535, each in turn; most poses are 1x1x1."""
    many, one = 70001, {"pose": (1, 1, 1)}
    yield _case("grid_of_rows", (1, many, 2), (1, 2), (2, 1), use, **one)
    yield _case("grid_of_columns", (1, 2, many), (1, 2), (1, 2), use, **one)
    yield _case("grid_of_in_channels", (2, 1, 1), (many, 1), 1, use, **one)
    yield _case("grid_of_out_channels", (2, 1, 1), (1, many), 1, use, **one)
    for place, name in enumerate(_POSE):
        pose = [1, 2, 1, 2]
        pose[place] = many
        yield _case(f"grid_of_{name}", (1, 2, 1), (1, 2), 1, use, pose=tuple(pose))


def _empty_cases(use):
    yield _case("empty_batch", (0, 3, 4), (2, 3), 2, use)
    yield _case("empty_image", (2, 0, 4), (2, 3), 2, use)
    yield _case("empty_image_SAME", (2, 3, 0), (2, 3), 2, use, padding="SAME")
    yield _case("no_in_channels", (2, 3, 4), (0, 3), 2, use)
    yield _case("no_out_channels", (2, 3, 4), (2, 0), 2, use)
    for place, name in enumerate(_POSE):
        pose = [2, 3, 4, 5]
        pose[place] = 0
        yield _case(f"no_{name}", (2, 3, 4), (2, 3), 2, use, pose=tuple(pose))


def _all_cases():
    yield from _correctness_cases()
    use = cases.GRADIENT
    yield _case("gradient_valid", (2, 3, 4), (2, 3), (2, 3), use, pose=(2, 3, 2))
    moved = {"strides": (2, 1), "dilations": (1, 2), "padding": "SAME"}
    yield _case("gradient_same", (1, 4, 3), (2, 1), 2, use, pose=(2, 1, 3), **moved)
    yield _case("gradient_rank_3", (1, 2, 3), (1, 2), 2, use, pose=(2, 2, 1, 2))
    yield _case("smoke", (2, 6, 5), (3, 4), (3, 2), cases.SMOKE)
    gpu, cpu = {"devices": ("GPU",)}, {"devices": ("CPU",)}
    use = cases.ANCHORS
    yield _case("n1_128x128_c3_o1_k5", (1, 128, 128), (3, 1), 5, use)
    yield _case("n1_128x128_c3_o32_k5", (1, 128, 128), (3, 32), 5, use, **gpu)
    yield _case("n64_14x14_c32_o32_k3", (64, 14, 14), (32, 32), 3, use, **gpu)
    yield _case("n128_32x32_c16_o16_k3", (128, 32, 32), (16, 16), 3, use, **gpu)
    yield _case("n16_128x128_c16_o32_k5", (16, 128, 128), (16, 32), 5, use, **gpu)
    sizes = (16, 15, 15), (32, 32), 3
    yield _case("n16_15x15_c32_o32_k3_s2", *sizes, use, strides=2, **cpu)
    yield _case("n16_14x14_c32_o32_k3", (16, 14, 14), (32, 32), 3, use, **cpu)
    yield _case("n4_64x64_c8_o16_k5", (4, 64, 64), (8, 16), 5, use, **cpu)
    # The convolutions of Sabour et al. (2017), of poses of one number.
    one = {"pose": (1, 1, 1)}
    for batch, device in ((128, gpu), (32, cpu)):
        sizes = (batch, 28, 28), (1, 256), 9
        yield _case(f"first_convolution_b{batch}", *sizes, use, **one, **device)
        sizes = (batch, 20, 20), (256, 256), 9
        yield _case(f"primary_caps_b{batch}", *sizes, use, strides=2, **one, **device)
    # Hinton et al., "Matrix capsules with EM routing" (2018), for smallNORB; vectors as
    # Sabour's; and capsules of rank 3 as in P-CapsNets.
    use = cases.NETWORKS
    yield _case("em_caps1_b32", (32, 14, 14), (32, 32), 3, use, strides=2)
    yield _case("em_caps2_b32", (32, 6, 6), (32, 32), 3, use)
    yield _case("em_class_b32", (32, 4, 4), (32, 5), 1, use)
    pose = {"pose": (1, 8, 16)}
    yield _case("vectors_b32", (32, 14, 14), (8, 16), 3, use, strides=2, **pose)
    pose = {"pose": (3, 3, 3, 3)}
    yield _case("rank_3_b32", (32, 14, 14), (16, 16), 3, use, strides=2, **pose)
    yield from _plain_cases(use)


def _plain_cases(use):
    """Yields ordinary convolutions: He et al., "Deep Residual Learning" (2016)."""
    one = {"pose": (1, 1, 1)}
    for batch, device in ((64, "GPU"), (8, "CPU")):
        for size, channels, filters, kernel, strides in (
            *((224, 3, 64, 7, 2), (56, 64, 64, 3, 1), (56, 64, 256, 1, 1)),
            *((28, 128, 128, 3, 1), (28, 128, 512, 1, 1), (14, 256, 256, 3, 1)),
            *((14, 1024, 256, 1, 1), (14, 256, 256, 3, 2), (7, 512, 512, 3, 1)),
        ):
            name = f"plain_b{batch}_{size}x{size}_c{channels}_o{filters}_k{kernel}"
            moved = {"strides": strides, "padding": "SAME", "devices": (device,)}
            sizes = (batch, size, size), (channels, filters), kernel
            name += "_s2" if strides == 2 else ""
            yield _case(name, *sizes, use, **one, **moved)


def _case_steps(case):
    image, kernel = ([case.sizes[name] for name in d] for d in (_IMAGE[1:], _KERNEL))
    return steps_of_axes(image, kernel, **case.attributes)


def _shapes(case):
    """Returns the shapes of input, weights and output."""
    batch, in_channels, out_channels, kernel_height, kernel_width = (
        case.sizes[name] for name in (_IMAGE[0], *_CHANNELS, *_KERNEL)
    )
    *depth, rows, inner, columns = (
        case.sizes[name] for name in _POSE if name in case.sizes
    )
    height, width = (out for out, _ in _case_steps(case))
    image = (batch, case.sizes["in_height"], case.sizes["in_width"], in_channels)
    kernel = (kernel_height, kernel_width, in_channels, out_channels)
    return (
        (*image, *depth, rows, inner),
        (*kernel, *depth, inner, columns),
        (batch, height, width, out_channels, *depth, rows, columns),
    )


def _draw(case, rng):
    return tuple(rng.uniform(-1, 1, shape) for shape in _shapes(case)[:2])


def _output_shape(case):
    return _shapes(case)[2]


def _convolution_of_the_fold(inputs, weights, **attributes):
    """Convolves the numbers as if they were folded already, without a transpose."""
    batch, height, width, in_channels, *depth, rows, inner = inputs.shape
    *kernel, _, out_channels, columns = (*weights.shape[:4], weights.shape[-1])
    images = math.prod((batch, *depth, rows))
    output = conv2d(
        tf.reshape(inputs, (images, height, width, in_channels * inner)),
        tf.reshape(weights, (*kernel, in_channels * inner, out_channels * columns)),
        **attributes,
    )
    shape = (batch, *output.shape[1:3], out_channels, *depth, rows, columns)
    return tf.reshape(output, shape)


def _forward_cost(case):
    """Counts two FLOPs for each product of numbers inside the image."""
    reads = window.reads(_case_steps(case))
    pose = [case.sizes[name] for name in _POSE if name in case.sizes]
    channels = [case.sizes[name] for name in _CHANNELS]
    flops = 2 * math.prod((case.sizes["batch"], reads, *channels, *pose))
    return Cost(sum(map(math.prod, _shapes(case))), flops)


def _training_cost(case):
    """Counts the forward pass, one read of inputs and grad, and two gradients written.

    Each gradient takes as many products as the output.
    """
    inputs, weights, output = map(math.prod, _shapes(case))
    return Cost(3 * (inputs + weights) + 2 * output, 3 * _forward_cost(case).flops)


SUITE = cases.OpSuite(
    op="CapsuleConv",
    cases=tuple(_all_cases()),
    draw=_draw,
    output_shape=_output_shape,
    ours=capsule_conv2d,
    rivals={
        "fold": plain,
        "patches": functools.partial(plain, convolve=product_of_patches),
    },
    parts={"fold: conv alone": _convolution_of_the_fold},
    forward_cost=_forward_cost,
    training_cost=_training_cost,
)
