# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The networks that the benchmark trains, in plain Keras.

They are written as one would without this package: their layers call the ops' rivals.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import keras
import numpy as np
import tensorflow as tf

from tf_capsops.bench.plain_capsules import (
    EMCaps,
    SelfAttentionCaps,
    exponential_squash,
    lengths,
)
from tf_capsops.bench.suites import capsule_conv, capsule_routing, high_order_conv
from tf_capsops.models import denoisers

IMAGE = ("in_depth", "in_height", "in_width")  # images have only the last two
_EPSILON = 1e-7


@dataclasses.dataclass(frozen=True)
class Trainee:
    """A network that is ready to be compiled.

    Attributes:
        model: The network.
        compiling: Losses and metrics, as `compile` takes them.
        arrange: A function from inputs and targets, as `draw` makes them, to a batch
            for `fit`.
    """

    model: keras.Model
    compiling: Mapping[str, object]
    arrange: Callable[[tf.Tensor, tf.Tensor], tuple] = lambda inputs, targets: (
        inputs,
        targets,
    )


def image_shape(case):
    """Returns the sizes of a case's images or volumes, and their channels."""
    names = (*IMAGE, "channels")
    return tuple(case.sizes[name] for name in names if name in case.sizes)


def _squash(vectors):
    squared = keras.ops.sum(keras.ops.square(vectors), axis=-1, keepdims=True)
    return vectors * squared / (1 + squared) / keras.ops.sqrt(squared + _EPSILON)


def _margin_loss(one_hot, lengths):
    present = keras.ops.square(keras.ops.maximum(0.9 - lengths, 0.0))
    absent = keras.ops.square(keras.ops.maximum(lengths - 0.1, 0.0))
    losses = one_hot * present + 0.5 * (1 - one_hot) * absent
    return keras.ops.sum(losses, axis=-1)


def _squared_errors(images, reconstruction):
    return keras.ops.sum(keras.ops.square(images - reconstruction), axis=(1, 2, 3))


class _Weighted(keras.layers.Layer):
    """A layer with one kernel of a given shape, and perhaps a bias."""

    def __init__(self, compute, kernel_shape, output_shape, bias_shape=None):
        super().__init__()
        self._compute, self._output_shape = compute, output_shape
        self.kernel = self.add_weight(
            shape=kernel_shape,
            initializer=keras.initializers.RandomNormal(stddev=0.05),
        )
        self.bias = None
        if bias_shape is not None:
            self.bias = self.add_weight(shape=bias_shape, initializer="zeros")

    def call(self, inputs):
        outputs = self._compute(inputs, tf.convert_to_tensor(self.kernel))
        return outputs if self.bias is None else outputs + self.bias

    def compute_output_shape(self, input_shape):
        return (input_shape[0], *self._output_shape)


def capsnet(
    case,
    *,
    filters,
    kernel_size,
    primary_channels,
    primary_dim,
    primary_kernel_size,
    primary_strides,
    capsule_dim,
    routing_iterations,
    decoder_units,
    reconstruction_weight,
):
    classes = case.sizes["classes"]
    images = keras.Input(image_shape(case), name="images")
    children = primary_capsules(
        images,
        filters=filters,
        kernel_size=kernel_size,
        primary_channels=primary_channels,
        primary_dim=primary_dim,
        primary_kernel_size=primary_kernel_size,
        primary_strides=primary_strides,
    )
    in_caps = children.shape[1]

    def route(inputs, weights):
        logits = tf.zeros((in_caps, classes), inputs.dtype)
        einsum = capsule_routing.SUITE.rivals["einsum"]
        return einsum(inputs, weights, logits, routing_iterations)

    shape = (classes, capsule_dim)
    capsules = _Weighted(route, (in_caps, *shape, primary_dim), shape)(children)
    return with_decoder(
        case,
        images,
        capsules,
        decoder_units=decoder_units,
        reconstruction_weight=reconstruction_weight,
    )


def primary_capsules(
    images,
    *,
    filters,
    kernel_size,
    primary_channels,
    primary_dim,
    primary_kernel_size,
    primary_strides,
):
    """Returns the primary capsules `[B, I, primary_dim]` of Sabour et al. (2017)."""
    features = keras.layers.Conv2D(filters, kernel_size, activation="relu")(images)
    features = keras.layers.Conv2D(
        primary_channels * primary_dim, primary_kernel_size, primary_strides
    )(features)
    in_caps = features.shape[1] * features.shape[2] * primary_channels
    return _squash(keras.ops.reshape(features, (-1, in_caps, primary_dim)))


def with_decoder(case, images, capsules, *, decoder_units, reconstruction_weight):
    """Returns a network with a decoder, from the class capsules of its images."""
    ops, (classes, capsule_dim) = keras.ops, capsules.shape[1:]
    one_hot = keras.Input((classes,), name="labels")
    masked = capsules * ops.cast(one_hot, capsules.dtype)[..., None]
    drawn = ops.reshape(masked, (-1, classes * capsule_dim))
    for units in decoder_units:
        drawn = keras.layers.Dense(units, activation="relu")(drawn)
    pixels = int(np.prod(image_shape(case)))
    drawn = keras.layers.Dense(pixels, activation="sigmoid", dtype="float32")(drawn)
    outputs = {
        "lengths": lengths(capsules),
        "reconstruction": ops.reshape(drawn, (-1, *image_shape(case))),
    }
    compiling = {
        "loss": {"lengths": _margin_loss, "reconstruction": _squared_errors},
        "loss_weights": {"lengths": 1.0, "reconstruction": reconstruction_weight},
        "metrics": {"lengths": ["accuracy"]},
    }

    def arrange(images, labels):
        labels = tf.one_hot(labels, classes)
        targets = {"lengths": labels, "reconstruction": images}
        return {"images": images, "labels": labels}, targets

    model = keras.Model({"images": images, "labels": one_hot}, outputs)
    return Trainee(model, compiling, arrange)


def p_capsnet(
    case,
    *,
    filters,
    kernel_sizes,
    strides,
    pose_shape,
    negative_slope,
    squash_size,
    use_bias,
):
    classes, ops = case.sizes["classes"], keras.ops
    images = keras.Input(image_shape(case), name="images")
    capsules = ops.reshape(images, (-1, *image_shape(case), 1, 1))
    one_for_all = isinstance(pose_shape[0], int)
    shapes = [pose_shape] * (len(filters) + 1) if one_for_all else pose_shape

    def convolution(capsules, filters, kernel, stride, columns):
        *size, channels, rows, inner = capsules.shape[1:]
        out = tuple((each - k) // stride + 1 for each, k in zip(size, kernel))

        def fold(inputs, weights):
            rival = capsule_conv.SUITE.rivals["fold"]
            moved = {"strides": (stride, stride), "dilations": (1, 1)}
            return rival(inputs, weights, padding="VALID", **moved)

        pose = (filters, rows, columns)
        weights = (*kernel, channels, filters, inner, columns)
        bias = pose if use_bias else None
        return _Weighted(fold, weights, (*out, *pose), bias)(capsules)

    def relu(capsules):
        return ops.leaky_relu(capsules, negative_slope or 0.0)

    layers = zip(filters, kernel_sizes, strides, shapes[:-1], strict=True)
    for number, (count, kernel, stride, (rows, columns)) in enumerate(layers):
        width = columns if number else rows * columns
        capsules = relu(convolution(capsules, count, (kernel, kernel), stride, width))
        outer = (-1, *capsules.shape[1:4])
        if squash_size:
            vectors = (*outer, rows * columns // squash_size, squash_size)
            capsules = exponential_squash(ops.reshape(capsules, vectors))
        capsules = ops.reshape(capsules, (*outer, rows, columns))
    rows, columns = shapes[-1]
    capsules = convolution(capsules, classes, capsules.shape[1:3], 1, columns)
    capsules = capsules if negative_slope is None else relu(capsules)
    flat = ops.reshape(ops.cast(capsules, "float32"), (-1, classes, rows * columns))
    flat = exponential_squash(flat) if squash_size else _squash(flat)
    compiling = {"loss": _margin_loss, "metrics": ["accuracy"]}

    def arrange(images, labels):
        return images, tf.one_hot(labels, classes)

    return Trainee(keras.Model(images, lengths(flat)), compiling, arrange)


def efficient_capsnet(
    case, *, filters, kernel_sizes, strides, primary_dim, capsule_dim
):
    classes = case.sizes["classes"]
    images = features = keras.Input(image_shape(case), name="images")
    for count, kernel_size, stride in zip(filters, kernel_sizes, strides, strict=True):
        features = keras.layers.Conv2D(count, kernel_size, stride, activation="relu")(
            features
        )
        features = keras.layers.BatchNormalization()(features)
    features = keras.layers.DepthwiseConv2D(features.shape[1:3])(features)
    children = filters[-1] // primary_dim
    vectors = keras.ops.reshape(features, (-1, children, primary_dim))
    capsules = SelfAttentionCaps(children, classes, primary_dim, capsule_dim)(
        exponential_squash(vectors)
    )
    compiling = {"loss": _margin_loss, "metrics": ["accuracy"]}

    def arrange(images, labels):
        return images, tf.one_hot(labels, classes)

    return Trainee(keras.Model(images, lengths(capsules)), compiling, arrange)


def _spread_loss(one_hot, activations):
    true = keras.ops.sum(one_hot * activations, axis=-1, keepdims=True)
    excess = keras.ops.square(keras.ops.maximum(0.9 - (true - activations), 0.0))
    return keras.ops.sum((1 - one_hot) * excess, axis=-1)


def matrix_capsnet(
    case,
    *,
    filters,
    kernel_size,
    strides,
    primary_capsules,
    capsules,
    capsule_kernel_sizes,
    capsule_strides,
    pose_shape,
):
    classes, inner = case.sizes["classes"], primary_capsules
    numbers = inner * pose_shape[0] * pose_shape[1]
    images = keras.Input(image_shape(case), name="images")
    features = keras.layers.Conv2D(filters, kernel_size, strides, activation="relu")(
        images
    )
    size = features.shape[1:3]
    features = keras.layers.Conv2D(numbers + inner, 1)(features)
    poses = keras.ops.reshape(features[..., :numbers], (-1, *size, inner, *pose_shape))
    pair = poses, keras.ops.sigmoid(features[..., numbers:])
    layers = zip(capsules, capsule_kernel_sizes, capsule_strides, strict=True)
    for parents, kernel_size, stride in layers:
        pair = EMCaps(size, inner, parents, pose_shape, kernel_size, stride)(pair)
        size = tuple((each - kernel_size) // stride + 1 for each in size)
        inner = parents
    _, scores = EMCaps(size, inner, classes, pose_shape, 0, 1)(pair)
    scores = keras.ops.cast(keras.ops.reshape(scores, (-1, classes)), "float32")
    compiling = {"loss": _spread_loss, "metrics": ["accuracy"]}

    def arrange(images, labels):
        return images, tf.one_hot(labels, classes)

    return Trainee(keras.Model(images, scores), compiling, arrange)


def denoiser(case, *, width, depth, kernel_size, dilations):
    batch = case.sizes["batch"]
    noisy = keras.Input(image_shape(case), batch_size=batch, name="noisy")
    seen = denoisers.features(noisy, width, depth)
    image = noisy
    for dilation in dilations:
        filters = keras.layers.Conv2D(kernel_size**2, 1, activation="softmax")(seen)
        image = _Slices(kernel_size, dilation)(image, filters)
    return Trainee(keras.Model(noisy, image), {"loss": "mse"})


class _Slices(keras.layers.Layer):
    """Applies the filters of every pixel."""

    def __init__(self, kernel_size, dilation):
        super().__init__()
        self._bound = {
            "kernel_size": (kernel_size, kernel_size),
            "groups": 1,
            "dilations": (dilation, dilation),
            "data_format": "NHWC",
        }

    def call(self, inputs, filters):
        return high_order_conv.SUITE.rivals["slices"](inputs, filters, **self._bound)

    def compute_output_shape(self, inputs_shape, filters_shape):
        return inputs_shape
