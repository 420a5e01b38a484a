# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Moments of votes: one pass of any routing algorithm over capsules in windows."""

import functools

import tensorflow as tf

from tf_capsops import _library, _portable
from tf_capsops.arguments import (
    float_tensors,
    int_between,
    tensor_of,
    window_attributes,
)
from tf_capsops.ops.capsule_conv_nd import LINE, VOLUME
from tf_capsops.ops.capsule_moments_nd import (
    existing_slices,
    over_each_tap,
    over_line,
    over_volume,
)
from tf_capsops.ops.capsule_moments_plain import (
    STATISTICS,
    axes_of,
    plain,
    plain_shares,
)
from tf_capsops.ops.conv2d import IMAGE
from tf_capsops.ops.undifferentiable import register as register_refusal
from tf_capsops.shapes import ShapeRule, dimensions

NORMALIZATIONS = ("parents", "all", "none")
_WINDOW = ("strides", "dilations", "padding")


def capsule_moments(
    poses,
    activations,
    weights,
    *,
    bias=None,
    linear=None,
    precision=None,
    center=None,
    prior=None,
    order=1,
    strides=1,
    padding="VALID",
    dilations=1,
    normalize="parents",
    name=None,
):
    """Computes weighted moments of the votes of the capsules in each window.

    A parent capsule `o` at (y, x) sees the children `k = (kh, kw, c)` that
    `capsule_conv2d` would read there. Each child votes for the parent's pose, and the
    statistics of the parents determine the shares by which votes are weighted:

        vote[k, o]  = pose[k] @ weights[k, o]
        u           = vote - center[o]
        logit[k, o] = prior[k, o] + bias[o] + <linear[o], vote>
                      - 1/2 <precision[o], u^2>
        share       = softmax of the logit        (see `normalize`)
        mass[o]     = sum over k of activation[k] share[k, o]
        first[o]    = sum over k of activation[k] share[k, o] u
        second[o]   = sum over k of activation[k] share[k, o] u^2

    The logits of dynamic, EM, variational Bayes and attention routing are all quadratic
    in the vote, and these algorithms need no more of the votes than the three moments.
    `tf_capsops.routing` implements them. With a `center`, the mean of the votes is
    `center + first / mass`, and their variance `second / mass - (first / mass)^2`.

    Votes are never stored. In addition to inputs and outputs, the op uses a bounded
    workspace (on a GPU it may hold the shares of a few samples), and for "all" two
    numbers per child, three in the gradient. It is differentiable once, in all
    operands; a second derivative raises a `LookupError` that names the op.

    Args:
      poses: Children, `[batch, in_height, in_width, in_channels, pose_rows,
        pose_inner]`, of type float32, float64, float16 or bfloat16. For a line of
        capsules, leave out the height in this and in all other shapes; for a volume,
        add a depth before it. Windows over a volume need memory for copies, at a stride
        of 1 `kernel_depth` times as large: of the poses or, for "all", of the
        statistics.
      activations: `[batch, in_height, in_width, in_channels]`, of the same type; ones
        by default.
      weights: `[kernel_height, kernel_width, in_channels, out_channels, pose_inner,
        pose_columns]`, of the same type.
      bias: `[batch, out_height, out_width, out_channels]`. This and the next four are
        statistics: zeros by default, of the type of `poses`, or float32 if that is a
        half type. They do not broadcast.
      linear, precision, center: `[batch, out_height, out_width, out_channels,
        pose_rows, pose_columns]`.
      prior: `[kernel_height, kernel_width, in_channels, out_channels]`.
      order: The highest moment to compute: 0, 1 or 2.
      strides, padding, dilations: As for `capsule_conv2d`. Padding adds no children.
      normalize: The parents over which a child's shares add up to one. "parents": those
        of one position. "all": those of all positions that see the child. "none": there
        is no softmax, and the share is the logit itself.
      name: Name of the operation in a graph.

    Returns:
      A tuple of `order + 1` tensors of the statistics' type: mass, `[batch, out_height,
      out_width, out_channels]`, then first and second, `[batch, out_height, out_width,
      out_channels, pose_rows, pose_columns]`.

    Raises:
      ValueError: `order`, `strides`, `padding`, `dilations` or `normalize` is not as
        above, or an operand is of another type, ragged or sparse.
      tf.errors.InvalidArgumentError: A rank or a dimension does not fit, or the kernel
        is larger than the image under "VALID" (a `ValueError` while a graph is built).
      ImportError: The operator library is missing or of another TensorFlow version.

    Example:

    >>> import tensorflow as tf
    >>> import tf_capsops
    >>> poses = tf.ones([1, 5, 5, 8, 4, 4])
    >>> weights = tf.ones([3, 3, 8, 2, 4, 4])
    >>> mass, first = tf_capsops.capsule_moments(poses, None, weights)
    >>> mass.shape, first.shape
    (TensorShape([1, 3, 3, 2]), TensorShape([1, 3, 3, 2, 4, 4]))
    >>> float(mass[0, 0, 0, 0])    # half of each of 72 children
    36.0
    """
    owner = "capsule_moments"
    order = int_between(owner, "order", order, 0, 2)
    statistics = (bias, linear, precision, center, prior)
    operands = _operands(owner, poses, activations, weights, statistics)
    axes = _axes(*operands[:3])
    window = window_attributes(owner, strides, padding, dilations, axes)
    of_votes = {"order": order, "normalize": _normalization(owner, normalize)}
    if axes == 2:
        return _moments(name, *operands, **window, **of_votes)
    compute = functools.partial(_moments, None, **of_votes)
    with tf.name_scope(name or owner):
        if axes == 1:
            return tuple(over_line(owner, compute, operands, window))
        if normalize != "all":
            return tuple(over_volume(owner, compute, operands, window))
        of_taps = over_each_tap(owner, compute, operands, window, axis=3)
        return tuple(map(tf.add_n, zip(*of_taps, strict=True)))


def _moments(name, *operands, order, **attributes):
    """Returns the moments of windows over images, by our op or its plain definition."""
    if _portable.is_on():
        with tf.name_scope(name or "capsule_moments"):
            return plain(*operands, order=order, **attributes)
    op = _library.load().capsule_moments
    moments = op(*_without_nones(operands), order=order, **attributes, name=name)
    return moments[: order + 1]


def moment_shares(
    poses,
    activations,
    weights,
    *,
    bias=None,
    linear=None,
    precision=None,
    center=None,
    prior=None,
    order=1,
    strides=1,
    padding="VALID",
    dilations=1,
    normalize="parents",
    name=None,
):
    """Returns the shares by which `capsule_moments` divides children among parents.

    They are for inspection: no gradient flows through them, and a tape gives None. All
    arguments are those of `capsule_moments`; `activations` and `order` are checked, but
    have no effect.

    Returns:
      Shares, `[batch, out_height, out_width, kernel_height, kernel_width, in_channels,
      out_channels]`, of the statistics' type; zero for children outside of the image.

    Raises:
      ValueError: An argument is not as `capsule_moments` takes it.
      tf.errors.InvalidArgumentError: A rank or a dimension does not fit (a
        `ValueError` while a graph is built).
      ImportError: The operator library is missing or of another TensorFlow version.

    Example:

    >>> import tensorflow as tf
    >>> import tf_capsops
    >>> poses = tf.ones([1, 3, 3, 1, 4, 4])
    >>> weights = tf.ones([2, 2, 1, 5, 4, 4])
    >>> shares = tf_capsops.moment_shares(poses, None, weights, normalize="all")
    >>> round(1 / float(shares[0, 0, 0, 1, 1, 0, 0]))    # four windows of five parents
    20
    """
    owner = "moment_shares"
    int_between(owner, "order", order, 0, 2)
    statistics = (bias, linear, precision, center, prior)
    operands = _operands(owner, poses, activations, weights, statistics)
    axes = _axes(*operands[:3])
    window = window_attributes(owner, strides, padding, dilations, axes)
    normalize = _normalization(owner, normalize)
    if axes == 2:
        return _shares(name, *operands, **window, normalize=normalize)

    def compute(*operands, **attributes):
        return [_shares(None, *operands, **attributes, normalize=normalize)]

    with tf.name_scope(name or owner):
        if axes == 1:
            return tf.squeeze(over_line(owner, compute, operands, window)[0], 2)
        if normalize == "all":
            of_taps = over_each_tap(owner, compute, operands, window, axis=6)
            shares = tf.stack([each for (each,) in of_taps], axis=4)
        else:
            (shares,) = over_volume(owner, compute, operands, window)
            *windows, _, parents = dimensions(shares)
            taps = operands[2].shape[0]
            shares = tf.reshape(shares, [*windows, taps, -1, parents])
            shares = tf.transpose(shares, (0, 1, 2, 3, 6, 4, 5, 7, 8))
        exist = existing_slices(operands[0], operands[2], window, shares.dtype)
        depth, taps = dimensions(exist)
        return shares * tf.reshape(exist, [1, depth, 1, 1, taps, 1, 1, 1, 1])


def _shares(name, *operands, **attributes):
    """Returns the shares of windows over images, by our op or its plain definition."""
    if _portable.is_on():
        with tf.name_scope(name or "moment_shares"):
            return tf.stop_gradient(plain_shares(*operands, **attributes))
    op = _library.load().capsule_moment_shares
    return op(*_without_nones(operands), **attributes, name=name)


def _axes(poses, _, weights):
    """Returns the number of spatial axes; two if the op must reject the rank."""
    axes = (poses.shape.rank or weights.shape.rank or 6) - 4
    return axes if axes in (1, 3) else 2


def _normalization(owner, normalize):
    if normalize not in NORMALIZATIONS:
        raise ValueError(
            f"{owner}: normalize must be 'parents', 'all' or 'none', got {normalize!r}"
        )
    return normalize


def _operands(owner, poses, activations, weights, statistics):
    """Returns the eight operands as tensors, or None for those not given."""
    given = {"poses": poses, "activations": activations, "weights": weights}
    if activations is None:
        given.pop("activations")
    tensors = dict(zip(given, float_tensors(owner, **given), strict=True))
    dtype = tensors["poses"].dtype
    dtype = tf.float64 if dtype == tf.float64 else tf.float32
    statistics = [
        None if each is None else tensor_of(owner, name, each, dtype)
        for name, each in zip(STATISTICS, statistics, strict=True)
    ]
    first = (tensors.get(name) for name in ("poses", "activations", "weights"))
    operands = (*first, *statistics)
    names = {1: LINE, 2: IMAGE, 3: VOLUME}[_axes(*operands[:3])]
    for each, (name, axes) in zip(operands, axes_of(names).items(), strict=True):
        # The op would take an empty vector for None, so its rank is checked here.
        if each is not None and each.shape == [0]:
            ShapeRule(owner).bind(name, each, axes)
    return operands


def _without_nones(operands):
    """Returns the operands as the op takes them: an empty vector stands for None."""
    dtype = operands[0].dtype
    statistics = tf.float64 if dtype == tf.float64 else tf.float32
    types = [dtype] * 3 + [statistics] * len(STATISTICS)
    return [
        tf.zeros([0], dtype) if each is None else each
        for each, dtype in zip(operands, types, strict=True)
    ]


@tf.RegisterGradient("CapsuleMoments")
def _capsule_moments_grad(op, *grads):
    attributes = {name: op.get_attr(name) for name in ("order", "normalize", *_WINDOW)}
    mass, first, _ = op.outputs
    return _library.load().capsule_moments_grad(
        *grads, *op.inputs, mass, first, **attributes
    )


register_refusal("CapsuleMomentsGrad", "CapsuleMoments")
tf.no_gradient("CapsuleMomentShares")
