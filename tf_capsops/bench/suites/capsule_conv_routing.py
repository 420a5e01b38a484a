# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Cases, rivals and costs of CapsuleConvRouting.

A case has one, two or three spatial axes. `kernels` is the number of kernels: one for
all types of children, or one for each type.
"""

from __future__ import annotations

import math

from tf_capsops.bench import cases
from tf_capsops.bench.cases import Case, Cost
from tf_capsops.ops.capsule_conv_routing import capsule_conv_routing, plain
from tf_capsops.ops.conv2d import steps_of_axes, transposed_sizes

_AXES = ("depth", "height", "width")
_CAPSULES = ("types", "in_dim", "parents", "out_dim")
_SAME, _BOTH = {"padding": "SAME"}, ("CPU", "GPU")
_UP = {"transposed": True, "strides": 2, "padding": "SAME"}


def _case(
    name,
    image,
    kernel,
    capsules,
    *uses,
    batch=2,
    own=False,
    devices=_BOTH,
    strides=1,
    dilations=1,
    **more,
):
    """Returns a case; `own` says whether each type has a kernel of its own."""
    axes, count = _AXES[-len(image) :], len(image)
    sizes = {"batch": batch, **dict(zip(axes, image, strict=True))}
    sizes |= {f"kernel_{axis}": k for axis, k in zip(axes, kernel, strict=True)}
    sizes |= dict(zip(_CAPSULES, capsules, strict=True))
    sizes["kernels"] = sizes["types"] if own else 1
    window = {"strides": strides, "dilations": dilations}
    attributes = {
        **{"iterations": 3, "padding": "VALID", "transposed": False, "leaky": False},
        **{n: v if isinstance(v, tuple) else (v,) * count for n, v in window.items()},
        **more,
    }
    return Case(name, sizes, uses, devices, attributes)


def _window_cases(*uses):
    """Yields windows over 1, 2 and 3 axes, small enough for finite differences."""
    up, leaky, own = {"transposed": True}, {"leaky": True}, {"own": True}
    yield _case("ones", (1,), (1,), (1, 1, 1, 1), *uses)
    yield _case("line", (11,), (3,), (2, 3, 5, 7), *uses, strides=2, dilations=2)
    yield _case("line_own", (7,), (4,), (3, 2, 4, 5), *uses, **own, **_SAME)
    yield _case("line_up", (4,), (5,), (2, 3, 3, 4), *uses, **up, strides=3)
    image = (5, 7), (3, 2), (3, 4, 2, 5)
    yield _case("image", *image, *uses, **_SAME, strides=(2, 1))
    dilated = (7, 5), (2, 3), (2, 2, 3, 3)
    yield _case("image_dilated", *dilated, *uses, dilations=(3, 2))
    yield _case("image_leaky", (3, 4), (2, 2), (4, 3, 3, 2), *uses, **leaky)
    yield _case("image_own", (4, 5), (3, 3), (3, 2, 3, 4), *uses, **own, **_SAME)
    image = (3, 4), (4, 3), (2, 3, 3, 5)
    yield _case("image_up", *image, *uses, **up, **_SAME, strides=(2, 1))
    gaps = (3, 2), (1, 2), (2, 2, 3, 3)
    yield _case("image_up_gaps", *gaps, *uses, **up, **own, **leaky, strides=(3, 2))
    volume = (5, 4, 4), (3, 2, 3), (2, 3, 3, 4)
    yield _case("volume", *volume, *uses, strides=(2, 1, 1))
    volume = (3, 2, 4), (2, 3, 2), (3, 2, 2, 3)
    moved = {"dilations": (1, 2, 1), **_SAME}
    yield _case("volume_own", *volume, *uses, **own, **leaky, **moved)
    volume = (2, 3, 2), (3, 2, 3), (2, 2, 3, 2)
    yield _case("volume_up", *volume, *uses, **up, **_SAME, strides=(2, 2, 1))
    volume = (2, 1, 3), (2, 2, 1), (3, 2, 2, 3)
    yield _case("volume_up_own", *volume, *uses, **up, **own, strides=(1, 2, 2))
    yield _case("one_parent", (3, 3), (3, 3), (5, 2, 1, 6), *uses, **leaky)
    yield _case("one_pixel", (3, 5), (1, 1), (3, 4, 2, 9), *uses)
    yield _case("many_parents", (3, 4), (2, 3), (3, 2, 5, 4), *uses, **_SAME)
    for iterations in (1, 2, 5):
        name = f"iterations_{iterations}"
        yield _case(name, (3, 3), (2, 1), (3, 2, 2, 3), *uses, iterations=iterations)


def _correctness_cases():
    use = cases.CORRECTNESS
    yield from _window_cases(use, cases.GRADIENT)
    yield _case("primes", (7, 5), (3, 2), (5, 3, 7, 11), use, leaky=True)
    yield _case("large_primes", (13, 11), (5, 3), (7, 5, 3, 13), use, own=True, **_SAME)
    # Numbers of capsules around the widths of vectors and warps.
    for place, name in enumerate(_CAPSULES):
        for size in (1, 2, 7, 8, 9, 16, 17, 31, 32, 33, 65):
            capsules = [3, 4, 3, 4]
            capsules[place] = size
            yield _case(f"{name}_{size}", (3, 3), (2, 2), capsules, use)
    for pixels in (1, 2, 15, 16, 17, 31, 33, 65, 257):
        yield _case(f"pixels_{pixels}", (1, pixels), (1, 1), (3, 2, 3, 4), use)
    yield _case("many_samples", (1, 2), (1, 1), (2, 2, 2, 3), use, batch=3001)
    yield _case("beyond", (2, 2), (5, 4), (2, 3, 3, 2), use, **_SAME)
    yield _case("gaps", (11, 13), (2, 2), (2, 3, 3, 2), use, strides=(3, 5))
    # More votes than are stored at a time, in bands of rows and in whole images.
    for name, image, batch, more in (
        ("bands", (67, 70), 2, {}),
        ("bands_strided", (133, 67), 1, {"strides": 2}),
        ("bands_up", (32, 35), 1, _UP),
        ("images", (9, 11), 41, {}),
        ("slices", (7, 19, 23), 2, {}),
        ("slices_up", (4, 9, 11), 1, _UP),
    ):
        kernel = (3,) * len(image)
        more = {**_SAME, **more, "batch": batch}
        yield _case(name, image, kernel, (4, 3, 8, 16), use, **more)
    # For kernels with wgmma that work on slabs: votes of rows or windows, and gradients
    # of weights. These need a row's positions (pixels times types) to be a multiple of
    # 32, or of 64 in 16 bits.
    for name, image, kernel, in_dim, more in (
        ("rows", (13, 20), (3, 3), 32, {"dilations": 2}),
        ("rows_up", (43, 64), (3, 4), 32, {**_UP, "strides": (1, 2), "batch": 1}),
        ("windows", (32, 42), (5, 5), 32, {"strides": 2}),
        ("windows_whole", (32, 48), (5, 5), 16, {"strides": 2}),
        ("windows_volume", (8, 26, 26), (3, 3, 3), 16, {"strides": 2}),
        ("windows_volume_up", (5, 9, 12), (2, 4, 4), 8, {**_UP, "batch": 1}),
        ("rows_volume", (7, 6, 20), (3, 2, 3), 32, {"strides": (2, 1, 1)}),
    ):
        more = {**_SAME, "devices": ("GPU",), **more}
        yield _case(name, image, kernel, (8, in_dim, 4, 32), use, **more)
    # For gradients of the image, which tiles of whole pixels add up.
    for name, image, kernel, capsules, more in (
        ("tiles_direct", (9, 57), (3, 1), (5, 24, 3, 16), {}),
        ("tiles_gaps", (9, 61), (3, 4), (7, 40, 3, 16), {"strides": 3, "dilations": 2}),
        ("tiles_wide", (7, 70), (2, 5), (4, 64, 4, 16), {}),
        ("tiles_up", (6, 45), (4, 4), (6, 16, 2, 16), {**_UP}),
        ("tiles_volume", (7, 6, 40), (3, 2, 3), (3, 12, 4, 16), {"strides": (2, 1, 2)}),
        ("tiles_planes", (6, 5, 32), (3, 2, 1), (1, 20, 2, 16), {"dilations": 2}),
        ("tiles_rows", (11, 9), (3, 3), (3, 12, 4, 16), {"strides": (2, 1)}),
        ("tiles_narrow", (41, 2), (3, 2), (1, 4, 1, 16), {"strides": (3, 1)}),
        ("tiles_lanes", (5, 7), (3, 2), (17, 64, 1, 16), {"strides": (1, 2)}),
        ("tiles_images", (5, 24, 24), (3, 3, 3), (8, 8, 4, 32), {"batch": 3}),
        ("tiles_half", (9, 32), (3, 3), (4, 16, 2, 16), {}),
        ("tiles_columns", (6, 32), (3, 2), (2, 24, 3, 40), {}),
        ("weights_far", (3, 256), (2, 5), (1, 16, 4, 16), {"strides": (1, 4)}),
        ("weights_farthest", (3, 256), (2, 9), (2, 32, 2, 16), {"strides": (1, 8)}),
        # Horizontal taps share boxes, in each kind of tile.
        ("weights_groups", (5, 40), (5, 5), (8, 16, 4, 16), {}),
        ("weights_columns", (4, 16), (5, 5), (8, 32, 8, 32), {}),
        ("weights_types", (5, 8), (3, 3), (32, 16, 4, 16), {}),
        ("weights_channels", (4, 8), (5, 5), (8, 20, 4, 16), {}),
        ("weights_dilated", (7, 16), (5, 5), (4, 16, 4, 16), {"dilations": 2}),
        ("weights_volume", (3, 3, 12), (3, 3, 3), (8, 16, 4, 16), {}),
    ):
        more = {**_SAME, "devices": ("GPU",), **more}
        yield _case(name, image, kernel, capsules, use, **more)
    for place, name in enumerate(("batch", "height", "width", *_CAPSULES)):
        sizes = [2, 3, 4, 3, 2, 4, 5]
        sizes[place] = 0
        batch, *image = sizes[:3]
        arguments = image, (2, 3), sizes[3:], use
        yield _case(f"no_{name}", *arguments, batch=batch, own=True, **_SAME)


def _all_cases():
    yield from _correctness_cases()
    yield _case("smoke", (4, 3), (2, 2), (2, 3, 3, 4), cases.SMOKE)
    gpu, use = {"devices": ("GPU",), "batch": 1, **_SAME}, cases.ANCHORS
    # Layers in the manner of SegCaps, on images of 512 x 512 pixels.
    image = (128, 128), (5, 5), (8, 32, 8, 32)
    yield _case("n1_128x128_8x32_8x32_k5", *image, use, **gpu)
    image = (256, 256), (5, 5), (4, 16, 8, 32)
    yield _case("n1_256x256_4x16_8x32_k5_s2", *image, use, **gpu, strides=2)
    image = (256, 256), (5, 5), (8, 16, 4, 16)
    yield _case("n1_256x256_8x16_4x16_k5", *image, use, **gpu)
    up = {**gpu, **_UP}
    yield _case("segcaps_up_64", (64, 64), (4, 4), (8, 32, 8, 32), use, **up)
    # Layers of DeepCaps and of 3D-UCaps, and a volume on the way up.
    image = (8, 8), (3, 3), (32, 8, 32, 8)
    yield _case("n64_8x8_32x8_32x8_k3", *image, use, **{**gpu, "batch": 64})
    volume = (32, 64, 64), (5, 5, 5), (8, 16, 8, 32)
    yield _case("n1_32x64x64_8x16_8x32_k5_s2", *volume, use, **gpu, strides=2)
    volume = (16, 32, 32), (4, 4, 4), (8, 16, 8, 16)
    yield _case("volume_up_16", *volume, use, **up)
    cpu = {**gpu, "devices": ("CPU",)}
    yield _case("segcaps_64", (64, 64), (5, 5), (4, 16, 8, 16), use, **cpu)
    half = {**gpu, "devices": _BOTH, "strides": 2}
    use = cases.NETWORKS
    yield _case("segcaps_down_64", (64, 64), (5, 5), (4, 16, 4, 32), use, **half)
    yield _case("volume_32", (32, 32, 32), (5, 5, 5), (4, 8, 4, 8), use, **half)


def _image(case):
    """Returns the sizes of the image, and of the kernel."""
    axes = [axis for axis in _AXES if axis in case.sizes]
    return [[case.sizes[prefix + axis] for axis in axes] for prefix in ("", "kernel_")]


def _draw(case, rng):
    """Draws weights with which sums of votes are about 1 long, as for CapsuleRouting.

    Biases are three times as long: the direction of a sum of length 0, and with it all
    gradients, would depend on how its terms were rounded. If there are no votes, the
    bias is zero, and so are the parents.
    """
    image, kernel = _image(case)
    sizes = case.sizes
    types, in_dim, parents, out_dim = (sizes[name] for name in _CAPSULES)
    terms = types * out_dim * math.prod(kernel) * in_dim
    scale = min(1, 3 * parents / max(1, terms) ** 0.5)
    has_own = sizes["kernels"] == types != 1
    own = (types,) if has_own else ()
    bias = 2 / max(1, out_dim) ** 0.5 * (0 not in sizes.values())
    return (
        rng.uniform(-1, 1, (sizes["batch"], *image, types, in_dim)),
        rng.uniform(-scale, scale, (*kernel, *own, in_dim, parents, out_dim)),
        rng.choice([-bias, bias], (parents, out_dim))
        * rng.uniform(1, 2, (parents, out_dim)),
        rng.uniform(-1, 1, (types, parents)),
    )


def _output_size(case):
    image, kernel = _image(case)
    strides, padding, dilations = (
        case.attributes[name] for name in ("strides", "padding", "dilations")
    )
    if case.attributes["transposed"]:
        return transposed_sizes(image, kernel, strides, padding)
    axes = steps_of_axes(image, kernel, strides, padding, dilations)
    return [size for size, _ in axes]


def _output_shape(case):
    sizes = case.sizes
    return (sizes["batch"], *_output_size(case), sizes["parents"], sizes["out_dim"])


def _elements(case):
    """Returns the elements of all inputs, and of the output."""
    image, kernel = _image(case)
    sizes = case.sizes
    types, in_dim, parents, out_dim = (sizes[name] for name in _CAPSULES)
    inputs = sizes["batch"] * math.prod(image) * types * in_dim
    weights = math.prod(kernel) * sizes["kernels"] * in_dim * parents * out_dim
    inputs += weights + parents * out_dim + types * parents
    return inputs, math.prod(_output_shape(case))


def _flops(case):
    """Returns the FLOPs of the convolution, and of a sum over all votes."""
    image, kernel = _image(case)
    sizes = case.sizes
    few = image if case.attributes["transposed"] else _output_size(case)
    pairs = sizes["batch"] * sizes["types"] * sizes["parents"] * sizes["out_dim"]
    votes = 2 * pairs * math.prod(few) * math.prod(kernel) * sizes["in_dim"]
    return votes, 2 * pairs * math.prod(_output_size(case))


def _forward_cost(case):
    """Counts votes, their sum in each iteration, and R - 1 updates of the logits."""
    votes, each = _flops(case)
    return Cost(
        sum(_elements(case)), votes + (2 * case.attributes["iterations"] - 1) * each
    )


def _training_cost(case):
    """Counts forward; votes and routing again; and the two products of the gradient.

    In the backward pass, `2 R` products give the gradients of shares and votes, and
    `2 (R - 1)` more give those that pass through the logits.
    """
    inputs, output = _elements(case)
    votes, each = _flops(case)
    iterations = case.attributes["iterations"]
    routing = 2 * (2 * iterations - 1) + 2 * iterations + 2 * (iterations - 1)
    return Cost(3 * inputs + 2 * output, 4 * votes + routing * each)


SUITE = cases.OpSuite(
    op="CapsuleConvRouting",
    cases=tuple(_all_cases()),
    draw=_draw,
    output_shape=_output_shape,
    ours=capsule_conv_routing,
    rivals={"votes": plain},
    forward_cost=_forward_cost,
    training_cost=_training_cost,
    torch="torch_slim_caps.py",
)
