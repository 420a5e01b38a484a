# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Cases, rivals and costs of CapsuleMoments.

A case names the optional inputs that it has. The op's tuple of moments is one tensor
here, `[batch, out_height, out_width, out_channels, 1 + order * pose]`, and statistics
are drawn in the type of the poses and converted to their own.
"""

from __future__ import annotations

import functools

import tensorflow as tf

from tf_capsops.arguments import window_attributes
from tf_capsops.bench import cases
from tf_capsops.bench.cases import Case, Cost
from tf_capsops.ops import capsule_moments

_DIMS = ("batch", "height", "width", "channels", "parents", "rows", "inner", "columns")
ALL = ("activations", "bias", "linear", "precision", "center", "prior")
EM = ("activations", "bias", "precision", "center")


def _case(name, sizes, *uses, kernel=(1, 1), given=ALL, devices=("CPU", "GPU"), **more):
    sizes = dict(zip((*_DIMS, "kernel_height", "kernel_width"), (*sizes, *kernel)))
    window = {"strides": 1, "padding": "VALID", "dilations": 1}
    attributes = {"given": given, "order": 2, "normalize": "parents", **window, **more}
    return Case(name, sizes, uses, devices, attributes)


def _normalized(name, sizes, *uses, **more):
    """Yields a case for each set that shares may be normalized over."""
    for normalize in capsule_moments.NORMALIZATIONS:
        yield _case(f"{name}_{normalize}", sizes, *uses, normalize=normalize, **more)


def _correctness_cases():
    use = cases.CORRECTNESS
    yield _case("ones", (1, 1, 1, 1, 1, 1, 1, 1), use)
    primes, three = (2, 7, 5, 3, 11, 2, 3, 5), {"kernel": (3, 2), "padding": "SAME"}
    yield from _normalized("primes", primes, use, **three)
    yield from _normalized("strides", primes, use, **three, strides=(2, 3))
    yield from _normalized("dilations", primes, use, **three, dilations=(2, 1))
    yield from _normalized("matrices", (2, 5, 5, 9, 17, 4, 4, 4), use, kernel=(3, 3))
    yield from _normalized("coordinates", (2, 3, 3, 5, 10, 4, 5, 4), use)
    # Parents for all lanes of a warp, and more windows than a block has.
    rows = (3, 4, 5, 8, 32, 4, 4, 4)
    yield from _normalized("rows_of_warps", rows, use, kernel=(2, 2))
    equal = ("activations", "center")
    yield from _normalized("equal_shares", rows, use, kernel=(2, 2), given=equal)
    yield from _normalized("capsules", (5, 1, 1, 37, 10, 1, 8, 16), use)
    for order in (0, 1):
        yield from _normalized(f"order_{order}", primes, use, **three, order=order)
    for given in (
        *((), ("activations",), ("bias",), ("prior",), ("linear",), ("precision",)),
        *(("linear", "center"), ("precision", "center"), EM),
    ):
        name = "_".join(("given", *given))
        yield from _normalized(
            name, (2, 4, 3, 3, 5, 2, 3, 2), use, **three, given=given
        )
    for parents in (1, 3, 4, 8, 15, 16, 31, 32, 33, 100):
        yield _case(f"parents_{parents}", (1, 3, 2, 2, parents, 3, 2, 3), use, **three)
    for channels in (1, 2, 4, 5, 31, 32, 33, 67):
        yield _case(
            f"channels_{channels}", (1, 3, 3, channels, 5, 2, 2, 2), use, **three
        )
    for pose in ((1, 1, 7), (5, 1, 2), (3, 8, 9), (8, 2, 1), (2, 17, 6), (1, 3, 33)):
        name = "pose_" + "_".join(map(str, pose))
        yield _case(name, (2, 2, 3, 3, 6, *pose), use, kernel=(2, 2))
    yield from _normalized(
        "beyond", (2, 2, 3, 2, 3, 2, 2, 2), use, kernel=(5, 4), padding="SAME"
    )
    yield from _normalized("gaps", (2, 5, 5, 2, 3, 2, 2, 2), use, strides=3)
    for name, sizes in (
        ("empty_batch", (0, 3, 3, 2, 3, 4, 4, 4)),
        ("no_channels", (2, 3, 3, 0, 3, 4, 4, 4)),
        ("no_parents", (2, 3, 3, 2, 0, 4, 4, 4)),
        ("no_image", (2, 0, 3, 2, 3, 4, 4, 4)),
    ):
        yield from _normalized(name, sizes, use)


def _all_cases():
    yield from _correctness_cases()
    small = {"kernel": (2, 2), "padding": "SAME"}
    sizes, odd = (1, 3, 2, 2, 3, 2, 2, 1), (1, 2, 3, 1, 2, 1, 3, 2)
    for order in (0, 1, 2):
        name = f"gradient_{order}"
        yield from _normalized(name, sizes, cases.GRADIENT, **small, order=order)
    yield from _normalized("gradient_odd", odd, cases.GRADIENT, strides=(1, 2))
    yield _case("smoke", (2, 3, 3, 2, 3, 2, 2, 2), cases.SMOKE, given=("prior",))
    first = {"kernel": (3, 3), "strides": 2}
    for batch, device in ((64, "GPU"), (4, "CPU")):
        sizes = (batch, 14, 14, 32, 32, 4, 4, 4)
        for normalize in ("parents", "all"):
            more = {"given": EM, "normalize": normalize, "devices": (device,)}
            name = f"em_first_b{batch}_{normalize}"
            yield _case(name, sizes, cases.ANCHORS, **first, **more)
    yield _case(
        *("em_second_b64", (64, 6, 6, 32, 32, 4, 4, 4), cases.ANCHORS),
        **{"kernel": (3, 3), "given": EM, "devices": ("GPU",)},
    )
    em = {"given": EM, "devices": ("CPU",)}
    second = (4, 6, 6, 32, 32, 4, 4, 4)
    yield _case("em_second_b4", second, cases.NETWORKS, kernel=(3, 3), **em)
    for batch, device in ((64, "GPU"), (4, "CPU")):
        # All positions in one window; their coordinates are a pose's fifth column.
        sizes, em["devices"] = (batch, 4, 4, 32, 10, 4, 5, 4), (device,)
        name = f"em_classes_b{batch}"
        yield _case(name, sizes, cases.NETWORKS, kernel=(4, 4), **em)
    # The convolutional capsules of Tsai et al. (2020), as vectors and as matrices.
    attention = {"kernel": (3, 3), "given": ("linear",), "order": 1}
    yield _case("attention", (16, 7, 7, 32, 32, 1, 6, 6), cases.NETWORKS, **attention)
    matrices = (16, 7, 7, 32, 32, 6, 6, 6)
    yield _case("attention_matrices", matrices, cases.NETWORKS, **attention)
    yield _case(
        *("efficient", (32, 1, 1, 16, 10, 1, 8, 16), cases.NETWORKS),
        **{"given": ("linear",), "order": 1},
    )


def _shapes(case):
    """Returns the shapes of all inputs by name, and the shape of the output."""
    batch, height, width, channels, parents, rows, inner, columns, *kernel = (
        case.sizes.values()
    )
    attributes = {
        name: case.attributes[name] for name in ("strides", "padding", "dilations")
    }
    window = window_attributes("CapsuleMoments", **attributes)
    moved = zip((height, width), kernel, window["strides"], window["dilations"])
    out = []
    for size, taps, stride, dilation in moved:
        reach = 0 if window["padding"] == "SAME" else (taps - 1) * dilation
        out.append((size - reach - 1) // stride + 1 if size else 0)
    window = (batch, *out, parents)
    shapes = {
        "poses": (batch, height, width, channels, rows, inner),
        "weights": (*kernel, channels, parents, inner, columns),
        "activations": (batch, height, width, channels),
        "bias": window,
        **dict.fromkeys(("linear", "precision", "center"), (*window, rows, columns)),
        "prior": (*kernel, channels, parents),
    }
    inputs = {n: shapes[n] for n in ("poses", "weights", *case.attributes["given"])}
    return inputs, (*window, 1 + case.attributes["order"] * rows * columns)


def _draw(case, rng):
    """Draws inputs with votes of about one; activations and precisions are positive."""
    scale = (3 / max(1, case.sizes["inner"])) ** 0.5
    low = {"activations": 0, "precision": 0, "weights": -scale}
    high = {"precision": 2, "weights": scale}
    return tuple(
        rng.uniform(low.get(name, -1), high.get(name, 1), shape)
        for name, shape in _shapes(case)[0].items()
    )


def _as_one(compute, poses, weights, *others, given, order, **attributes):
    """Calls a function of the op's arguments, and joins the moments."""
    wide = tf.float64 if poses.dtype == tf.float64 else tf.float32
    named = dict(zip(given, others, strict=True))
    activations = named.pop("activations", None)
    named = {name: tf.cast(each, wide) for name, each in named.items()}
    mass, *others = compute(
        poses, activations, weights, **named, order=order, **attributes
    )
    joined = [mass[..., tf.newaxis]]
    for each in others:
        shape = tf.shape(each)
        pose = [shape[4] * shape[5]]
        if each.shape.rank is not None and None not in each.shape[4:].as_list():
            pose = [each.shape[4] * each.shape[5]]
        joined.append(tf.reshape(each, tf.concat([shape[:4], pose], 0)))
    return tf.cast(tf.concat(joined, -1), poses.dtype)


def _plain(*operands, strides, padding, dilations, **others):
    window = window_attributes("CapsuleMoments", strides, padding, dilations)
    return capsule_moments.plain(*operands, **others, **window)


def _counts(case):
    """Returns the shapes of inputs and output, and how many numbers all votes have."""
    shapes, output = _shapes(case)
    sizes = case.sizes
    pairs = sizes["kernel_height"] * sizes["kernel_width"] * sizes["channels"]
    votes = output[0] * output[1] * output[2] * pairs * sizes["parents"]
    return shapes, output, votes * sizes["rows"] * sizes["columns"]


def _elements(*shapes):
    return sum(int(tf.TensorShape(shape).num_elements()) for shape in shapes)


def _flops(case, votes, passes):
    """Counts the votes, three operations per statistic, and two per moment."""
    statistics = sum(
        name in ("linear", "precision") for name in case.attributes["given"]
    )
    each = 2 * case.sizes["inner"] + 3 * statistics + 2 * case.attributes["order"]
    return passes * votes * each


def _forward_cost(case):
    shapes, output, votes = _counts(case)
    return Cost(_elements(*shapes.values(), output), _flops(case, votes, 1))


def _training_cost(case):
    """Counts three passes over the votes, and the products with both operands."""
    shapes, output, votes = _counts(case)
    flops = _flops(case, votes, 3) + 4 * votes * case.sizes["inner"]
    return Cost(3 * _elements(*shapes.values()) + 2 * _elements(output), flops)


SUITE = cases.OpSuite(
    op="CapsuleMoments",
    cases=tuple(_all_cases()),
    draw=_draw,
    output_shape=lambda case: _shapes(case)[1],
    ours=functools.partial(_as_one, capsule_moments.capsule_moments),
    rivals={"votes": functools.partial(_as_one, _plain)},
    forward_cost=_forward_cost,
    training_cost=_training_cost,
    torch="torch_moments.py",
)
