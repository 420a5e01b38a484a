# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Convolution of capsules with routing by agreement at each pixel."""

import math

import tensorflow as tf

from tf_capsops import _library, _portable
from tf_capsops.arguments import (
    boolean,
    float_tensors,
    int_between,
    positive_float32,
    window_attributes,
)
from tf_capsops.ops.capsule_conv_nd import (
    LINE,
    VOLUME,
    as_volume,
    require_kernel,
    taps_as_channels,
    windows_as_channels,
)
from tf_capsops.ops.capsule_routing import MOST_ITERATIONS, plain_agreement
from tf_capsops.ops.conv2d import IMAGE, conv2d, conv_transpose
from tf_capsops.ops.undifferentiable import register as register_refusal
from tf_capsops.shapes import ShapeRule, dimensions, joined, shape_text, sizes

_AXES = {1: LINE, 2: IMAGE, 3: VOLUME}
_ATTRIBUTES = (
    *("iterations", "epsilon", "strides", "dilations", "padding"),
    *("transposed", "leaky"),
)


def capsule_conv_routing(
    inputs,
    weights,
    bias=None,
    logits=None,
    *,
    iterations=3,
    strides=1,
    padding="VALID",
    dilations=1,
    transposed=False,
    leaky=False,
    epsilon=1e-7,
    name=None,
):
    """Convolves capsules, and routes the types of children by agreement at each pixel.

    This is a slim capsule layer: the locally constrained dynamic routing of LaLonde and
    Bagci, "Capsules for Object Segmentation" (2018), algorithm 1. At a pixel, each type
    of child has one vote for each parent, which a convolution sums over the window.
    Routing by agreement (Sabour, Frosst and Hinton, 2017) then divides the types, not
    the individual children, among the parents at that pixel:

        votes[n, p, i, j] = sum over taps t of
            inputs[n, p * strides + t * dilations - before, i] @ weights[t(, i)][:, j]
        b = logits, at every pixel
        repeat `iterations` times:
            c = softmax of b[i] over the parents j
            s[j] = sum over i of c[i, j] votes[i, j] + bias[j]
            v = s |s|^2 / (1 + |s|^2) / sqrt(|s|^2 + epsilon)
            b = b + <votes, v>
        output = v

    Pixels outside of the image are zeros. Votes are stored for a few rows of pixels at
    a time: in addition to inputs, outputs and gradients, the op uses 64 MiB of memory,
    or that of the votes of one row if they take more. It is differentiable once, in all
    four operands and through every iteration; a second derivative raises a
    `LookupError` that names the op. In half types, sums and routing are computed in
    float32, and the votes in between are rounded.

    Args:
      inputs: Capsules, `[batch, spatial..., types, in_dim]`, of type float32, float64,
        float16 or bfloat16. There are one, two or three spatial axes: width; height and
        width; or depth, height and width. If the rank is unknown, the length of
        `strides` or `dilations` gives their number; two if both are integers.
      weights: One kernel for all types of children, `[kernel..., in_dim, parents,
        out_dim]`, or one kernel for each type, `[kernel..., types, in_dim, parents,
        out_dim]`; of the type of `inputs`.
      bias: `[parents, out_dim]`, of the same type; zeros by default.
      logits: The logits that routing starts from, `[types, parents]`, of the same type;
        zeros by default.
      iterations: How often the parents are computed, 1 to 2^31 - 1.
      strides: Pixels from one window to the next: a positive integer, or one for each
        axis. For a transposed convolution, these are pixels of the output.
      padding: "VALID" or "SAME", as for `tf.nn.convolution`.
      dilations: Pixels from one tap of the kernel to the next: a positive integer, or
        one for each axis; 1 for a transposed convolution.
      transposed: Whether the votes are those of a transposed convolution, as in
        `tf.nn.conv_transpose`. An axis then has `size * stride` pixels for "SAME" and
        `size * stride + max(kernel - stride, 0)` for "VALID".
      leaky: Whether the softmax has one extra entry with logit 0, whose share is
        discarded (as in the code of Sabour et al., 2017). A single parent then need not
        take everything.
      epsilon: A positive number (a normal float32), which keeps values and gradients
        finite where `s` is zero.
      name: Name of the operation in a graph.

    Returns:
      Parents, `[batch, spatial..., parents, out_dim]`, of length below one.

    Raises:
      ValueError: An attribute is not as above, or an operand is of another type, ragged
        or sparse.
      tf.errors.InvalidArgumentError: A rank or a dimension does not fit, or the kernel
        is larger than the image under "VALID" (a `ValueError` while a graph is built).
      ImportError: The operator library is missing or of another TensorFlow version.

    Example:

    >>> import tensorflow as tf
    >>> import tf_capsops
    >>> image = tf.ones([1, 9, 9, 4, 8])    # four types of capsules of eight numbers
    >>> kernel = tf.ones([5, 5, 8, 2, 16])  # to two of sixteen
    >>> tf_capsops.capsule_conv_routing(image, kernel, strides=2, padding="SAME").shape
    TensorShape([1, 5, 5, 2, 16])
    """
    owner = "capsule_conv_routing"
    operands = _operands(owner, inputs, weights, bias, logits)
    window = strides, padding, dilations
    options = iterations, epsilon, transposed, leaky
    attributes = _attributes(owner, operands[0], window, *options)
    if _portable.is_on():
        return _portable.compute(plain, *operands, **attributes, name=name or owner)
    return _library.load().capsule_conv_routing(*operands, **attributes, name=name)


def rounded_conv_routing(
    inputs,
    weights,
    bias,
    rounded,
    *,
    iterations,
    strides,
    padding,
    dilations,
    transposed,
    leaky,
):
    """Computes `capsule_conv_routing` with rounded arrays, in TensorFlow's own ops.

    `rounded` is as for `plain_agreement`.
    """
    owner = "capsule_conv_routing"
    operands = _operands(owner, inputs, weights, bias, None)
    window = strides, padding, dilations
    options = iterations, 1e-7, transposed, leaky
    attributes = _attributes(owner, operands[0], window, *options)
    return _portable.compute(
        plain, *operands, **attributes, rounded=rounded, name=owner
    )


def plain(
    inputs,
    weights,
    bias,
    logits,
    iterations,
    strides,
    padding,
    dilations,
    transposed=False,
    leaky=False,
    epsilon=1e-7,
    rounded=None,
):
    """The definition of `capsule_conv_routing` in TensorFlow's own ops.

    It stores all votes.

    Args:
      inputs, weights, bias, logits: As for `capsule_conv_routing`, tensors; the ranks
        of the first two must be known.
      iterations, transposed, leaky, epsilon: As for `capsule_conv_routing`.
      strides, padding, dilations: As `window_attributes` returns them.
      rounded: As for `plain_agreement`.
    """
    window = {"strides": strides, "padding": padding, "dilations": dilations}
    operands = _bound((inputs, weights, bias, logits), window, transposed)
    inputs, weights, bias, logits = operands
    votes, size = _votes(inputs, weights, window, transposed)
    outputs, _ = plain_agreement(
        votes,
        tf.transpose(logits)[tf.newaxis, :, tf.newaxis, :],
        iterations,
        epsilon,
        bias=tf.expand_dims(bias, 1),
        leaky=leaky,
        rounded=rounded,
    )
    return tf.reshape(outputs, [dimensions(inputs)[0], *size, *dimensions(bias)])


def _votes(inputs, weights, window, transposed):
    """Returns votes, `[pixels, parents, types, out_dim]`, and the output's size."""
    batch, *image, types, in_dim = dimensions(inputs)
    *kernel, _, parents, out_dim = dimensions(weights)
    own = len(kernel) > len(image)  # Whether each type has its own weights.
    if own and tf.is_tensor(types):
        types = kernel[-1]
    if own and types == 0:  # TensorFlow cannot concatenate an empty list.
        return _votes(inputs, tf.reduce_sum(weights, -4), window, transposed)
    images = tf.reshape(inputs, [batch, math.prod(image), types, in_dim])
    images = tf.transpose(images, (2, 0, 1, 3))
    if own:
        *kernel, _ = kernel
        numbers = [math.prod(kernel), types, in_dim, parents * out_dim]
        filters = tf.transpose(tf.reshape(weights, numbers), (1, 0, 2, 3))
        pairs = zip(tf.unstack(images, types), tf.unstack(filters, types), strict=True)
    else:
        pairs = [(images, weights)]
    count = batch if own else types * batch
    votes = [
        _convolution(
            tf.reshape(each, [count, *image, in_dim]),
            tf.reshape(filters, [*kernel, in_dim, parents * out_dim]),
            window,
            transposed,
        )
        for each, filters in pairs
    ]
    size = dimensions(votes[0])[1:-1]
    shape = [types, batch * math.prod(size), parents, out_dim]
    return tf.transpose(tf.reshape(tf.concat(votes, 0), shape), (1, 2, 0, 3)), size


def _convolution(images, filters, window, transposed):
    """Convolves lines, images or volumes of numbers."""
    strides, padding, dilations = window.values()
    batch = dimensions(images)[0]
    if len(strides) == 1:
        moved = {"strides": (1, *strides), "dilations": (1, *dilations)}
        images, filters = tf.expand_dims(images, 1), tf.expand_dims(filters, 0)
        return tf.squeeze(
            _convolution(images, filters, {**window, **moved}, transposed), 1
        )
    if transposed:
        return conv_transpose(images, filters, strides, padding)
    if len(strides) == 2:
        return conv2d(images, filters, strides, padding, dilations)
    # TensorFlow has no dilated convolution of volumes on a CPU.
    images, depth = windows_as_channels(
        images, filters.shape[0], strides[0], dilations[0], padding
    )
    filters = taps_as_channels(filters)
    outputs = conv2d(images, filters, strides[1:], padding, dilations[1:])
    return as_volume(outputs, batch, depth)


def _axes_of(inputs, *attributes):
    """Returns the number of spatial axes; two if the op must reject the rank."""
    if inputs.shape.rank in (4, 5, 6):
        return inputs.shape.rank - 3
    given = (len(each) for each in attributes if isinstance(each, (list, tuple)))
    return next((count for count in given if count in _AXES), 2)


def _attributes(owner, inputs, window, iterations, epsilon, transposed, leaky):
    """Returns the op's attributes; `window` is strides, padding and dilations."""
    strides, padding, dilations = window
    axes = _axes_of(inputs, strides, dilations)
    attributes = {
        "iterations": int_between(owner, "iterations", iterations, 1, MOST_ITERATIONS),
        "epsilon": positive_float32(owner, "epsilon", epsilon),
        "transposed": boolean(owner, "transposed", transposed),
        "leaky": boolean(owner, "leaky", leaky),
        **window_attributes(owner, strides, padding, dilations, axes),
    }
    if attributes["transposed"] and {*attributes["dilations"]} != {1}:
        raise ValueError(
            f"{owner}: dilations must be 1 where transposed, got {dilations!r}"
        )
    return attributes


def _operands(owner, inputs, weights, bias, logits):
    """Returns the four operands as tensors of one type, zeros for those not given."""
    given = {"inputs": inputs, "weights": weights, "bias": bias, "logits": logits}
    for name in ("bias", "logits"):
        if given[name] is None:
            del given[name]
    tensors = dict(zip(given, float_tensors(owner, **given), strict=True))
    inputs, weights = tensors["inputs"], tensors["weights"]
    zeros = {
        "bias": sizes(weights)[-2:],
        "logits": joined(sizes(inputs)[-2:-1], sizes(weights)[-2:-1]),
    }
    for name, shape in zeros.items():
        if name not in tensors:
            tensors[name] = tf.zeros(shape, inputs.dtype)
    return [tensors[name] for name in ("inputs", "weights", "bias", "logits")]


def _bound(operands, window, transposed):
    """Checks that operands fit each other, and returns them with known ranks."""
    inputs, weights, bias, logits = operands
    rule, count = ShapeRule("CapsuleConvRouting"), len(window["strides"])
    axes = _AXES[count]
    kernel = tuple(f"kernel_{axis}" for axis in axes)
    inputs = rule.bind(
        "input", inputs, ("batch", *(f"in_{axis}" for axis in axes), "types", "in_dim")
    )
    shared = (*kernel, "in_dim", "parents", "out_dim")
    own = (*kernel, "types", *shared[-3:])
    ranks = " or ".join(f"{len(each)} [{', '.join(each)}]" for each in (shared, own))
    by_rank = {len(each): each for each in (shared, own)}
    of_weights = by_rank.get(weights.shape.rank)
    rule.require(
        of_weights, f"weights must have rank {ranks}, got {shape_text(weights.shape)}"
    )
    weights = rule.bind("weights", weights, of_weights)
    rule.require(
        of_weights == shared or rule.sizes["types"] is not None,
        "types must be known under portable() where each has weights",
    )
    padding = "SAME" if transposed else window["padding"]
    require_kernel(rule, inputs, weights, axes, padding, window["dilations"])
    bias = rule.bind("bias", bias, ("parents", "out_dim"))
    logits = rule.bind("logits", logits, ("types", "parents"))
    return rule.checked(inputs, weights, bias, logits)


@tf.RegisterGradient("CapsuleConvRouting")
def _capsule_conv_routing_grad(op, grad):
    attributes = {name: op.get_attr(name) for name in _ATTRIBUTES}
    return _library.load().capsule_conv_routing_grad(grad, *op.inputs, **attributes)


register_refusal("CapsuleConvRoutingGrad", "CapsuleConvRouting")
