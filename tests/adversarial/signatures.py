# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""What each raw op takes and returns: axes by name, attributes, and the right answers.

The rules are written a second time here, from the ops' documentation: `accepts` says of
a call whether it is valid, and knows nothing of the C++ that decides the same.
"""

import math

import numpy as np
import tensorflow as tf
from reference import (
    capsule_conv,
    capsule_prediction,
    high_order_conv,
    inq_conv,
    inq_conv_int8,
)

_INT32_MAX = 2**31 - 1

# Axes of inputs and results. `p` is the depth of capsules of rank 3, and `f` how many
# numbers a pixel's filters have. What begins with `sizes:` holds a shape of these axes.
# `<`, `+` and `>` stand for one to three axes of images, of kernels and of outputs. `*`
# is before an axis that only kernels of each type have.
_POSES = {
    "input": "n h w c p r q",
    "weights": "y x c o p q s",
    "bias": "o p r s",
    "grad": "n H W o p r s",
}
_IMAGES = {"input": "n h w c", "codes": "y x c o", "grad": "n H W o"}
_SLIM = {
    "input": "n < i k",
    "weights": "+ *i k j d",
    "bias": "j d",
    "logits": "i j",
}
_SPATIAL = {"<": "zhw", "+": "ayx", ">": "ZHW"}
_PAIRS = {"input": "b i k", "weights": "i j d k", "grad": "b i j d"}
_ROUTED = {"input": "b i k", "weights": "i j d k", "logits": "i j"}
_FILTERED = {"grad": "n h w c", "input": "n h w c", "filters": "n h w f"}
_SUMS = {"sums": "t b j d"}
_WINDOW = dict.fromkeys(("linear", "precision", "center"), "n H W o r s")
STATISTICS = {"bias": "n H W o", **_WINDOW, "prior": "y x c o"}
_VOTES = {
    "poses": "n h w c r q",
    "activations": "n h w c",
    "weights": "y x c o q s",
    **STATISTICS,
}
_MOMENTS = {"mass": "n H W o", "first": "n H W o r s", "second": "n H W o r s"}
_MOMENT_GRADS = {f"grad_{name}": axes for name, axes in _MOMENTS.items()}


def _some(axes, *names):
    return {name: axes[name] for name in names}


INPUTS = {
    "CapsulePrediction": _some(_PAIRS, "input", "weights"),
    "CapsulePredictionGrad": _some(_PAIRS, "grad", "input", "weights"),
    "CapsuleRouting": _ROUTED,
    "CapsuleRoutingWithSums": _ROUTED,
    "CapsuleRoutingGrad": {"grad": "b j d", **_ROUTED, **_SUMS},
    "CapsuleRoutingCoefficients": {**_ROUTED, **_SUMS},
    "InqCapsuleRouting": {
        "input": "b i k",
        "codes": "i j d k",
        "top_exponent": "",
        "logits": "i j",
    },
    "CapsuleConv": _some(_POSES, "input", "weights"),
    "CapsuleConvBiasRelu": _some(_POSES, "input", "weights", "bias"),
    "CapsuleConvBackpropInput": {
        "input_sizes": f"sizes:{_POSES['input']}",
        **_some(_POSES, "weights", "grad"),
    },
    "CapsuleConvBackpropWeights": {
        **_some(_POSES, "input"),
        "weight_sizes": f"sizes:{_POSES['weights']}",
        **_some(_POSES, "grad"),
    },
    "CapsuleConvRouting": _SLIM,
    "CapsuleConvRoutingGrad": {"grad": "n > j d", **_SLIM},
    "CapsuleMoments": _VOTES,
    "CapsuleMomentsGrad": {
        **_MOMENT_GRADS,
        **_VOTES,
        **_some(_MOMENTS, "mass", "first"),
    },
    "CapsuleMomentShares": _VOTES,
    "HighOrderConv": _some(_FILTERED, "input", "filters"),
    "HighOrderConvGrad": _FILTERED,
    "InqConv": {**_some(_IMAGES, "input", "codes"), "top_exponent": ""},
    "InqConvBackpropInput": {
        "input_sizes": f"sizes:{_IMAGES['input']}",
        **_some(_IMAGES, "codes"),
        "top_exponent": "",
        **_some(_IMAGES, "grad"),
    },
    "InqConvInt8": {
        **_some(_IMAGES, "input", "codes"),
        "scale": "",
        "zero_point": "",
        "multipliers": "o",
    },
    "InqDecode": {"codes": "n c", "top_exponents": "c"},
}
RESULTS = {
    "CapsulePrediction": ["b i j d"],
    "CapsulePredictionGrad": ["b i k", "i j d k"],
    "CapsuleRouting": ["b j d"],
    "CapsuleRoutingWithSums": ["b j d", "t b j d"],
    "CapsuleRoutingGrad": ["b i k", "i j d k", "i j"],
    "CapsuleRoutingCoefficients": ["b i j"],
    "InqCapsuleRouting": ["b j d", "t b j d"],
    "CapsuleConv": [_POSES["grad"]],
    "CapsuleConvBiasRelu": [_POSES["grad"]],
    "CapsuleConvBackpropInput": [_POSES["input"]],
    "CapsuleConvBackpropWeights": [_POSES["weights"]],
    "CapsuleConvRouting": ["n > j d"],
    "CapsuleConvRoutingGrad": list(_SLIM.values()),
    "CapsuleMoments": list(_MOMENTS.values()),
    "CapsuleMomentsGrad": list(_VOTES.values()),
    "CapsuleMomentShares": ["n H W y x c o"],
    "HighOrderConv": ["n h w c"],
    "HighOrderConvGrad": ["n h w c", "n h w f"],
    "InqConv": [_IMAGES["grad"]],
    "InqConvBackpropInput": [_IMAGES["input"]],
    "InqConvInt8": [_IMAGES["grad"]],
    "InqDecode": ["n c"],
}


def axes_of(text, form):
    """Returns the names of axes as a form of an op has them.

    Args:
        text: The axes as in `INPUTS`.
        form: "flat", of capsules without depth, or "NCHW" leave out or move an axis;
            "shared" or "own" and a number of axes say what kernels there are.
    """
    axes = text.removeprefix("sizes:").split()
    if form.startswith(("shared", "own")):
        count = int(form[-1])
        axes = [
            axis for each in axes for axis in _SPATIAL.get(each, "")[-count:] or [each]
        ]
        return [a.strip("*") for a in axes if form.startswith("own") or "*" not in a]
    if form == "flat" and "p" in axes:
        axes.remove("p")
    if form == "NCHW":
        axes.insert(1, axes.pop())
    return axes


def forms_of(op, attributes):
    """Returns the forms that the shapes of a call may have."""
    if is_slim(op):
        count = len(attributes["strides"])
        return [f"shared{count}", f"own{count}"]
    if op.startswith("CapsuleConv"):
        return ["flat", "deep"]
    return [attributes.get("data_format", "NHWC")]


def is_moments(op):
    return op.startswith("CapsuleMoment")


def is_wide(op, name):
    """Tells whether an input is of the type of sums, not of the type of the poses."""
    wide = (*STATISTICS, *_MOMENTS, *_MOMENT_GRADS) if is_moments(op) else ("sums",)
    return name in wide


def is_optional(op, name):
    return is_moments(op) and name in ("activations", *STATISTICS)


def is_left_out(name, attributes):
    """Tells whether the order says that a moment, or its gradient, is not there."""
    least = {"first": 1, "second": 2}.get(name.removeprefix("grad_"), 0)
    return attributes.get("order", 2) < least


def is_routing(op):
    return op.startswith(("CapsuleRouting", "InqCapsuleRouting"))


def fixed_types(op):
    """Returns the types of the inputs, by name, whose types no attribute chooses."""
    return {
        "codes": tf.uint8,
        "top_exponent": tf.int64 if is_routing(op) else tf.int32,
        "top_exponents": tf.int64,
        "zero_point": tf.int32,
        "scale": tf.float32,
        "multipliers": tf.float32,
    }


def is_slim(op):
    return op.startswith("CapsuleConvRouting")


def is_routed(op):
    """Tells whether results are not sums of products."""
    return is_routing(op) or is_moments(op) or is_slim(op)


def _is_pair(values):
    return len(values) == 2 and all(0 < v <= _INT32_MAX for v in values)


def _attributes_hold(op, attributes):
    """Tells whether the attributes of a call are good whatever its shapes."""
    if is_slim(op):
        strides, dilations = attributes["strides"], attributes["dilations"]
        if not len(strides) == len(dilations) in (1, 2, 3):
            return False
        if not all(0 < v <= _INT32_MAX for v in (*strides, *dilations)):
            return False
        if attributes["transposed"] and {*dilations} != {1}:
            return False
        attributes = {**attributes, "strides": [1, 1], "dilations": [1, 1]}
    rules = {
        **dict.fromkeys(("transposed", "leaky"), lambda value: value in (True, False)),
        "strides": _is_pair,
        "dilations": _is_pair,
        "kernel_size": lambda sizes: _is_pair(sizes) and all(v % 2 for v in sizes),
        "padding": lambda text: text in ("VALID", "SAME"),
        "data_format": lambda text: text in ("NHWC", "NCHW"),
        "groups": lambda number: 0 < number < 2**63,
        "bits": lambda number: 2 <= number <= (5 if op == "InqConvInt8" else 8),
        "iterations": lambda number: 1 <= number <= _INT32_MAX,
        "order": lambda number: 0 <= number <= 2,
        "normalize": lambda text: text in ("parents", "all", "none"),
        "epsilon": lambda number: 2**-126 <= number <= float(np.finfo(np.float32).max),
    }
    return all(rules[name](value) for name, value in attributes.items())


def window(size, kernel, stride, dilation, padding):
    """Returns the output pixels of one axis, or None where the kernel does not fit."""
    if not 1 <= kernel <= _INT32_MAX:
        return None
    reach = (kernel - 1) * dilation
    if size == 0:
        return 0
    if padding == "SAME":
        return (size - 1) // stride + 1
    return (size - 1 - reach) // stride + 1 if reach < size else None


def transposed_window(size, kernel, stride, dilation, padding):
    """Returns the output pixels of one axis of a transposed convolution, or None."""
    if not 1 <= kernel <= _INT32_MAX:
        return None
    return size * stride + (max(kernel - stride, 0) if padding == "VALID" else 0)


def follow(op, dims, attributes):
    """Adds the dimensions that follow from others; False where that cannot be."""
    if "strides" in attributes:
        strides, dilations = attributes["strides"], attributes["dilations"]
        sized = transposed_window if attributes.get("transposed") else window
        axes = ("zaZ", "hyH", "wxW")[-len(strides) :]
        for axis, (size, kernel, out) in enumerate(axes):
            moved = strides[axis], dilations[axis], attributes["padding"]
            dims[out] = sized(dims[size], dims[kernel], *moved)
            if dims[out] is None:
                return False
    if op == "InqConvInt8":
        largest = 255 * 2 ** (2 ** (attributes["bits"] - 2) - 1)
        return dims["y"] * dims["x"] * dims["c"] * largest < 2**31
    if "kernel_size" in attributes:
        dims["f"] = attributes["groups"] * math.prod(attributes["kernel_size"])
        return dims["c"] % attributes["groups"] == 0 and dims["f"] < 2**63
    if is_routing(op) or is_slim(op):
        dims.setdefault("t", attributes.get("iterations"))
        return op != "CapsuleRoutingGrad" or dims["t"] >= 1
    return True


def accepts(op, shapes, attributes):
    """Returns the form and the dimensions of a valid call, or None.

    Args:
        op: Its name.
        shapes: Of all inputs in order; for sizes, what they hold, and None where that
            is no vector.
        attributes: All of them.
    """
    if not _attributes_hold(op, attributes):
        return None
    for form in forms_of(op, attributes):
        given, good = {}, True
        for (name, text), shape in zip(INPUTS[op].items(), shapes, strict=True):
            if is_left_out(name, attributes):
                good &= shape == (0,)
                continue
            if is_optional(op, name) and shape == (0,):
                continue
            axes = axes_of(text, form)
            good &= (
                shape is not None
                and len(axes) == len(shape)
                and min(shape, default=0) >= 0
            )
            for axis, size in zip(axes, shape or ()):
                good &= given.setdefault(axis, size) == size
        if not good:
            continue
        dims = dict(given)
        if follow(op, dims, attributes) and given.items() <= dims.items():
            return form, dims
    return None


def result_shapes(op, form, dims, shapes, attributes):
    """Returns the shapes of the results; an empty vector for what is left out."""
    results = [tuple(dims[a] for a in axes_of(text, form)) for text in RESULTS[op]]
    if op == "CapsuleMoments":
        absent = [is_left_out(name, attributes) for name in _MOMENTS]
    elif op == "CapsuleMomentsGrad":
        absent = [is_optional(op, name) and shapes[name] == (0,) for name in _VOTES]
    else:
        absent = [False] * len(results)
    return [(0,) if out else shape for out, shape in zip(absent, results, strict=True)]


def _conv_bias_relu(inputs, weights, bias, **attributes):
    return np.maximum(capsule_conv.forward(inputs, weights, **attributes) + bias, 0)


def answers(op, form, arrays, attributes):
    """Returns the right results of a small call of any op but routing.

    Args:
        arrays: The inputs in order, in float64; of sizes the shape.
    """
    if op == "CapsulePrediction":
        return [capsule_prediction.forward(*arrays)]
    if op == "CapsulePredictionGrad":
        return capsule_prediction.backward(*arrays)
    if op.startswith("HighOrderConv"):
        attributes = {k: v for k, v in attributes.items() if k != "data_format"}
        if form == "NCHW":
            arrays = [np.moveaxis(array, 1, 3) for array in arrays]
        if op == "HighOrderConv":
            results = [high_order_conv.forward(*arrays, **attributes)]
        else:
            results = high_order_conv.backward(*arrays, **attributes)
        return [np.moveaxis(r, 3, 1) if form == "NCHW" else r for r in results]
    reference = {
        "CapsuleConv": capsule_conv.forward,
        "CapsuleConvBiasRelu": _conv_bias_relu,
        "CapsuleConvBackpropInput": capsule_conv.backprop_input,
        "CapsuleConvBackpropWeights": capsule_conv.backprop_weights,
        "InqConv": inq_conv.forward,
        "InqConvBackpropInput": inq_conv.backprop_input,
        "InqConvInt8": inq_conv_int8.forward,
        "InqDecode": inq_conv.decode_columns,
    }[op]
    return [reference(*arrays, **attributes)]
