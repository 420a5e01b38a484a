# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The base class of layers that route capsules by a rule of `tf_capsops.routing`."""

import math

import keras
import tensorflow as tf

from tf_capsops import _portable
from tf_capsops.arguments import float_tensors, positive_int
from tf_capsops.layers.coded import Coded
from tf_capsops.layers.masks import seen_capsules, without_masked
from tf_capsops.layers.weights import own_name, require_built
from tf_capsops.ops.capsule_conv import capsule_conv2d
from tf_capsops.ops.capsule_conv_nd import capsule_conv1d, capsule_conv3d
from tf_capsops.ops.capsule_moments import capsule_moments, moment_shares
from tf_capsops.routing import EM
from tf_capsops.routing.poses import of_poses
from tf_capsops.routing.rule import copy_of
from tf_capsops.shapes import dimensions


class Routed(Coded):
    """Base class of layers that route pose matrices by a rule, such as `ConvCaps2D`.

    A subclass defines `children(inputs, mask)`, which returns the first three arguments
    of `capsule_moments` and its window's attributes; and `of_parents(values)` if the
    layer's outputs have other shapes than the op's.

    No rule sees a child whose activation is 0 or that a mask leaves out, even if its
    pose is NaN or infinite; in exported models, only a mask hides such a pose. Children
    that share the weights also share a rule's priors.
    """

    channel_axes = (-3,)

    share_weights = False

    def __init__(
        self,
        pose_shape,
        routing,
        kernel_initializer,
        kernel_regularizer,
        kernel_constraint,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.pose_shape = checked_pose_shape(self, pose_shape)
        self.routing = copy_of(EM() if routing is None else routing, _name(self))
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.kernel_constraint = keras.constraints.get(kernel_constraint)

    def add_kernel(self, shape, input_shape):
        """Adds the kernel, `[..., Q, R]`.

        Later calls must have the types, pose rows and pose columns of `input_shape`.
        """
        types, rows, inner = input_shape[0][-3:]
        # Any number of children may share the weights.
        self.children_shape = (None if self.share_weights else types, rows, inner)
        *capsules, inner, columns = shape

        def initialize(shape, dtype=None):
            # Each number of a vote is a sum over the Q numbers of a pose's row. Keras'
            # initializers would also count the capsules, which routing averages.
            size = (inner, math.prod(capsules) * columns)
            flat = self.kernel_initializer(size, dtype=dtype)
            flat = keras.ops.convert_to_tensor(flat, dtype)
            flat = keras.ops.reshape(flat, (inner, *capsules, columns))
            return keras.ops.moveaxis(flat, 0, -2)

        self.kernel = self.add_weight(
            name="kernel",
            shape=shape,
            initializer=initialize,
            regularizer=self.kernel_regularizer,
            constraint=self.kernel_constraint,
        )

    def build_routing(self, weights_shape, output_shape):
        """Adds the variables of the rule; the arguments are those of `Rule.build`."""
        if not hasattr(self.routing, "build"):
            return
        before = {id(each) for each in self.variables}
        self.routing.build(self, weights_shape, output_shape)
        added = [each for each in self.variables if id(each) not in before]
        # TensorFlow's checkpoints and SavedModels hold what is an attribute of a layer.
        # Variables of sublayers are attributes of these already.
        added = [each for each in added if own_name(self, each) == each.name]
        for number, variable in enumerate(added):
            setattr(self, f"routing_variable_{number}", variable)

    def call(self, inputs, training=None, mask=None):
        (poses, *others), window = self.children(inputs, mask)
        results, _ = self._routed((poses, *others), window, training)
        return tuple(self.of_parents(tf.cast(each, poses.dtype)) for each in results)

    def compute_mask(self, inputs, previous_mask):
        return None

    def shares(self, inputs, mask=None):
        """Returns the final shares by which the rule divides children among parents.

        `tf_capsops.moment_shares` computes those of the last pass over the votes that
        divides children: the last iteration, or the second pass of `SelfAttention`
        (without the priors that this rule adds). They are not differentiable.

        Args:
          inputs: the layer's input, `[poses, activations]`.
          mask: the Keras mask of the children, or a list of two, or None.

        Returns:
          Shares, zero for children that do not exist. `ConvCaps2D`: `[B, H', W', KH,
          KW, C, filters]`, for each parent the children in its window. `ClassCaps`:
          `[B, H, W, C, num_classes]`. `DenseCaps`: `[B, I, num_capsules]`.

        Raises:
          ValueError: if the layer has not been built.
        """
        require_built(self)
        children, window = self.children(inputs, mask)
        _, passes = self._routed(children, window, training=False)
        divide = [each for each in passes if each["normalize"] != "none"]
        found = moment_shares(*children, **(divide or passes)[-1], **window)
        _, activations, weights = children
        found *= tf.cast(_seen(activations, weights, found, window), found.dtype)
        return tf.stop_gradient(self.of_parents(found))

    def of_parents(self, values):
        """Reshapes the op's values or shares of parents to the layer's output shape."""
        return values

    def _routed(self, children, window, training):
        """Returns the rule's results, and the arguments of each pass over votes."""
        dtype = tf.float64 if children[0].dtype == tf.float64 else tf.float32
        if tf.config.experimental.tensor_float_32_execution_enabled():
            # Every pass reads the children, so 16-bit types are widened here, once.
            # TF32 holds them exactly. Without TF32, float32 kernels would be slower.
            children = [tf.cast(each, dtype) for each in children]
        poses, activations, weights = children
        exist = _existing(activations)
        passes = []

        def moments(
            *, order=1, normalize="parents", use_activations=True, **statistics
        ):
            statistics = {
                name: None if each is None else tf.cast(each, dtype)
                for name, each in statistics.items()
            }
            if self.share_weights and statistics.get("prior") is not None:
                shape = dimensions(weights)[:-2]
                statistics["prior"] = tf.broadcast_to(statistics["prior"], shape)
            passes.append({"normalize": normalize, **statistics})
            factors = activations if use_activations else exist
            shares = None
            if order == 1:
                shares = _fixed_shares(weights, normalize, dtype, **statistics)
            if shares is not None:
                return _weighted_sums(poses, factors, weights, shares, **window)
            return capsule_moments(
                poses, factors, weights, order=order, **passes[-1], **window
            )

        parents = self.routing.route(moments, training=training)
        return _checked_parents(self.routing, parents, poses, weights), passes

    def get_config(self):
        return {
            **super().get_config(),
            "pose_shape": self.pose_shape,
            "routing": keras.saving.serialize_keras_object(self.routing),
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "kernel_regularizer": keras.regularizers.serialize(self.kernel_regularizer),
            "kernel_constraint": keras.constraints.serialize(self.kernel_constraint),
        }


def _existing(activations):
    """Returns 1 for each child that exists (activation not 0), and 0 for the others."""
    return tf.cast(tf.not_equal(activations, 0), activations.dtype)


def _seen(activations, weights, shares, window):
    """Returns factors for shares: 1 for each child in a window that exists, else 0."""
    axes = activations.shape.rank - 2
    kernel = [*dimensions(weights)[: axes + 1], 1, 1, 1]
    windows = [*dimensions(shares)[: axes + 1], 1, 1, 1]
    # Shares without normalization are the logits. Here these are the votes, and the
    # votes are 1 for children that exist.
    return moment_shares(
        of_poses(_existing(activations)),
        None,
        tf.ones(kernel, activations.dtype),
        linear=tf.ones(windows, shares.dtype),
        normalize="none",
        **window,
    )


def _fixed_shares(weights, normalize, dtype, prior=None, **statistics):
    """Returns shares `[..., C, O]` that do not depend on the votes, or else None.

    A prior of a wrong shape also gives None, so that the op raises its error. So do
    equal shares in portable graphs: these store all votes anyway, and TFLite files
    would hold the weights twice, the second time as filters.
    """
    given = any(each is not None for each in statistics.values())
    if normalize == "none" and not given and prior is not None:
        return prior if prior.shape == weights.shape[:-2] else None
    is_equal = normalize == "parents" and not given and prior is None
    if is_equal and not _portable.is_on():
        parents = weights.shape[-3]
        return tf.fill(dimensions(weights)[:-2], tf.constant(1 / parents, dtype))
    return None


def _weighted_sums(poses, factors, weights, shares, **window):
    """Returns mass and first moment by convolutions, which are faster than the op.

    Args:
      poses, weights: as for `capsule_moments`.
      factors: the factor of each child, `[N, ..., C]`.
      shares: the fixed shares, `[..., C, O]`, in the type of the moments.
      **window: the window's attributes.
    """
    axes = poses.shape.rank - 4
    convolve = {1: capsule_conv1d, 2: capsule_conv2d, 3: capsule_conv3d}[axes]

    def convolved(inputs, weights):
        return convolve(inputs, weights * of_poses(shares), **window)

    poses, factors, weights = (
        tf.cast(each, shares.dtype) for each in (poses, of_poses(factors), weights)
    )
    first = convolved(poses * factors, weights)
    # The mass is a convolution, too: windows at the border have fewer children.
    mass = convolved(factors, tf.ones([1, 1], shares.dtype))
    # TFLite's converter fails to squeeze negative axes of a transposed tensor.
    return tf.squeeze(mass, [axes + 2, axes + 3]), first


def _checked_parents(rule, parents, poses, weights):
    """Returns the result of a rule's `route`, if it is poses and activations.

    Raises:
      ValueError: if not; the message names the rule and what it returned.
    """
    of_map = ("D'", "H'", "W'")[-(poses.shape.rank - 4) :]
    capsules = (poses.shape[0], *(None for _ in of_map), weights.shape[-3])
    expected = ((*capsules, poses.shape[-2], weights.shape[-1]), capsules)
    is_pair = isinstance(parents, (list, tuple)) and len(parents) == 2
    if is_pair and all(
        hasattr(each, "shape") and tf.TensorShape(shape).is_compatible_with(each.shape)
        for each, shape in zip(parents, expected)
    ):
        return parents
    if isinstance(parents, (list, tuple)):
        got = f"{len(parents)}: {', '.join(map(_described, parents))}"
    else:
        got = f"one: {_described(parents)}"
    *_, filters, rows, columns = expected[0]
    parents = f"N, {', '.join(of_map)}, {filters}"
    raise ValueError(
        f"{type(rule).__name__}.route must return two tensors, poses "
        f"[{parents}, {rows}, {columns}] and activations [{parents}], got {got}"
    )


def _described(value):
    if hasattr(value, "shape"):
        return f"a tensor of shape {tuple(value.shape)}"
    return f"a {type(value).__name__}"


def checked_pose_shape(layer, shape):
    """Returns a pose shape as a tuple of two ints.

    Raises:
      ValueError: if it is not two positive ints; the message names layer and shape.
    """
    owner = _name(layer)
    if not isinstance(shape, (list, tuple)) or len(shape) != 2:
        raise ValueError(f"{owner}: pose_shape must be (rows, columns), got {shape!r}")
    return tuple(positive_int(owner, "pose_shape", size) for size in shape)


def pair_of_tensors(layer, inputs, mask=None):
    """Returns poses and activations as tensors of one type.

    Children that a mask leaves out become zeros in both. If the activation is 0,
    numbers of the pose that are not finite become zeros.

    Args:
      layer: the layer, named in error messages.
      inputs: `[poses, activations]`.
      mask: the Keras mask of the children, or a list of one for each input, or None.

    Raises:
      ValueError: if inputs or mask do not fit; the message names layer and input.
    """
    owner, pair = _name(layer), _pair(layer, inputs)
    named = dict(zip(("poses", "activations"), pair))
    poses, activations = float_tensors(owner, **named)
    _check_built_for(layer, poses.shape, activations.shape)
    for each in mask if _is_pair_of_masks(mask) else [mask]:
        seen = seen_capsules(owner, poses, each, last=2)
        poses = without_masked(poses, seen)
        activations = without_masked(activations, seen)
    return _finite_where_absent(poses, activations), activations


def _finite_where_absent(poses, activations):
    """Zeroes the NaNs and infinities in poses of children whose activation is 0.

    The ops multiply a child's votes by its activation, and NaN times 0 is NaN. Finite
    poses stay, so that the activations keep their gradients. Portable graphs skip this
    step, because its comparisons have no good ranges in int8.
    """
    if _portable.is_on():
        return poses
    present = tf.not_equal(activations, 0)[..., tf.newaxis, tf.newaxis]
    return tf.where(present | (tf.abs(poses) <= poses.dtype.max), poses, 0)


def _check_built_for(layer, poses, activations):
    """Raises a ValueError if shapes do not fit those the layer was built for."""
    owner, built = _name(layer), tf.TensorShape(layer.children_shape)
    if poses.rank is None:
        return
    if not built.is_compatible_with(poses[-3:]):
        types, *pose = ("?" if each is None else each for each in layer.children_shape)
        raise ValueError(
            f"{owner}: poses must be [..., {types}, {', '.join(map(str, pose))}], as "
            f"when the layer was built, got shape {poses}"
        )
    _check_activations(owner, poses, activations)


def _check_activations(owner, poses, activations):
    if not tf.TensorShape(activations).is_compatible_with(poses[:-2]):
        raise ValueError(
            f"{owner}: activations must have the shape of poses but for the last two "
            f"axes, {tuple(poses[:-2])}, got {tuple(activations)}"
        )


def _is_pair_of_masks(mask):
    """Whether a mask is a list of two masks, each a tensor or None."""
    return (
        isinstance(mask, (list, tuple))
        and len(mask) == 2
        and all(each is None or hasattr(each, "shape") for each in mask)
    )


def pair_of_shapes(layer, shapes, axes, may_be_unknown=1):
    """Returns the shapes of poses and activations as tuples, if they fit the layer.

    Args:
      layer: its `pose_shape` is checked; None means that of the children.
      shapes: the shapes of the two inputs.
      axes: names of the axes before a pose's rows and columns.
      may_be_unknown: how many of the first axes may be unknown.

    Raises:
      ValueError: if not; the message names the layer and the given shapes.
    """
    owner = _name(layer)
    poses, activations = map(tuple, _pair(layer, shapes))
    described = f"[{', '.join(axes)}, pose rows, pose columns]"
    if len(poses) != len(axes) + 2 or None in poses[may_be_unknown:]:
        known = ", ".join(axes[:may_be_unknown])
        raise ValueError(
            f"{owner}: poses must be {described}, of which only {known} may be "
            f"unknown, got shape {poses}"
        )
    _check_activations(owner, poses, activations)
    if layer.pose_shape is not None and poses[-2] != layer.pose_shape[0]:
        raise ValueError(
            f"{owner}: routing keeps the rows of a pose: pose_shape must be "
            f"{(poses[-2], layer.pose_shape[1])} for poses of shape {poses}, got "
            f"{layer.pose_shape}"
        )
    return poses, activations


def _pair(layer, pair):
    if not isinstance(pair, (list, tuple)) or len(pair) != 2:
        raise ValueError(
            f"{_name(layer)}: the input must be [poses, activations], got {pair!r}"
        )
    return pair


def _name(layer):
    return type(layer).__name__
