# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The networks whose training steps are measured, ours and in plain Keras.

A plain network has as many trainable weights as ours, in the same order and of the same
shapes, so that it computes the same from the same weights. It is written as one would
without this package: its layers call the ops' rivals.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping

import keras
import numpy as np
import tensorflow as tf

from tf_capsops import models
from tf_capsops.bench import cases
from tf_capsops.bench.cases import Case
from tf_capsops.bench.suites import capsule_conv, capsule_routing, high_order_conv
from tf_capsops.losses import MarginLoss
from tf_capsops.models import denoisers

_EPSILON = 1e-7
_LEAST_SQUARE = 1e-12  # of a length, whose root then has a gradient at 0 too


@dataclasses.dataclass(frozen=True)
class Trainee:
    """A network that is ready to be compiled.

    Attributes:
        model: The network.
        compiling: Losses and metrics, as `compile` takes them.
        arrange: What `fit` takes, of a batch of inputs and targets as `draw` makes.
    """

    model: keras.Model
    compiling: Mapping[str, object]
    arrange: Callable[[tf.Tensor, tf.Tensor], tuple] = lambda inputs, targets: (
        inputs,
        targets,
    )


@dataclasses.dataclass(frozen=True)
class Network:
    """A network in both ways of writing it.

    Attributes:
        ours: Makes it with our layers, for a case.
        plain: Makes it in plain Keras.
        draw: `(case, samples, random generator) -> (inputs, targets)`.
    """

    ours: Callable[[Case], Trainee]
    plain: Callable[[Case], Trainee]
    draw: Callable[[Case, int, np.random.Generator], tuple[np.ndarray, np.ndarray]]


def _squash(vectors):
    squared = keras.ops.sum(keras.ops.square(vectors), axis=-1, keepdims=True)
    return vectors * squared / (1 + squared) / keras.ops.sqrt(squared + _EPSILON)


def _lengths(capsules):
    capsules = keras.ops.cast(capsules, "float32")
    return keras.ops.sqrt(
        keras.ops.sum(keras.ops.square(capsules), axis=-1) + _LEAST_SQUARE
    )


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


def _images(case):
    return tuple(case.sizes[name] for name in ("in_height", "in_width", "channels"))


def _draw_classes(case, samples, rng):
    images = rng.random((samples, *_images(case)), np.float32)
    return images, rng.integers(0, case.sizes["classes"], samples, np.int32)


def _our_capsnet(case):
    model = models.capsnet(_images(case), case.sizes["classes"], **case.attributes)
    return Trainee(model, {"loss": MarginLoss(), "metrics": ["accuracy"]})


def _plain_capsnet(
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
    classes, ops = case.sizes["classes"], keras.ops
    images = keras.Input(_images(case), name="images")
    one_hot = keras.Input((classes,), name="labels")
    features = keras.layers.Conv2D(filters, kernel_size, activation="relu")(images)
    features = keras.layers.Conv2D(
        primary_channels * primary_dim, primary_kernel_size, primary_strides
    )(features)
    in_caps = features.shape[1] * features.shape[2] * primary_channels
    capsules = _squash(ops.reshape(features, (-1, in_caps, primary_dim)))

    def route(inputs, weights):
        logits = tf.zeros((in_caps, classes), inputs.dtype)
        einsum = capsule_routing.SUITE.rivals["einsum"]
        return einsum(inputs, weights, logits, routing_iterations)

    shape = (classes, capsule_dim)
    capsules = _Weighted(route, (in_caps, *shape, primary_dim), shape)(capsules)
    masked = capsules * ops.cast(one_hot, capsules.dtype)[..., None]
    drawn = ops.reshape(masked, (-1, classes * capsule_dim))
    for units in decoder_units:
        drawn = keras.layers.Dense(units, activation="relu")(drawn)
    pixels = int(np.prod(_images(case)))
    drawn = keras.layers.Dense(pixels, activation="sigmoid", dtype="float32")(drawn)
    outputs = {
        "lengths": _lengths(capsules),
        "reconstruction": ops.reshape(drawn, (-1, *_images(case))),
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


def _our_p_capsnet(case):
    model = models.p_capsnet(_images(case), case.sizes["classes"], **case.attributes)
    return Trainee(model, {"loss": MarginLoss(), "metrics": ["accuracy"]})


def _plain_p_capsnet(case, *, filters, kernel_sizes, strides):
    classes = case.sizes["classes"]
    images = keras.Input(_images(case), name="images")
    poses = keras.ops.reshape(images, (-1, *_images(case), 1, 1))

    def convolution(poses, filters, kernel, stride, columns):
        *size, channels, rows, inner = poses.shape[1:]
        out = tuple((each - k) // stride + 1 for each, k in zip(size, kernel))

        def fold(inputs, weights):
            rival = capsule_conv.SUITE.rivals["fold"]
            moved = {"strides": (stride, stride), "dilations": (1, 1)}
            return rival(inputs, weights, padding="VALID", **moved)

        pose = (filters, rows, columns)
        weights = (*kernel, channels, filters, inner, columns)
        return _Weighted(fold, weights, (*out, *pose), pose)(poses)

    layers = zip(filters, kernel_sizes, strides, strict=True)
    for number, (count, kernel, stride) in enumerate(layers):
        columns = 4 if number else 16
        poses = convolution(poses, count, (kernel, kernel), stride, columns)
        poses = keras.ops.relu(keras.ops.reshape(poses, (-1, *poses.shape[1:4], 4, 4)))
    poses = convolution(poses, classes, poses.shape[1:3], 1, 4)
    flat = keras.ops.reshape(keras.ops.cast(poses, "float32"), (-1, classes, 16))
    compiling = {"loss": _margin_loss, "metrics": ["accuracy"]}

    def arrange(images, labels):
        return images, tf.one_hot(labels, classes)

    return Trainee(keras.Model(images, _lengths(_squash(flat))), compiling, arrange)


def _our_denoiser(case):
    return Trainee(denoisers.averaging_network(**case.attributes), {"loss": "mse"})


def _plain_denoiser(case, *, width, depth, kernel_size, dilations):
    batch = case.sizes["batch"]
    noisy = keras.Input(_images(case), batch_size=batch, name="noisy")
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


def _draw_photographs(case, samples, rng):
    clean = rng.random((samples, *_images(case)), np.float32)
    noise = rng.normal(0, 25 / 255, clean.shape).astype(np.float32)
    return clean + noise, clean


def _like(build, ours):
    """Gives a plain network a case's attributes, and else the defaults of ours."""
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(ours).parameters.items()
        if parameter.default is not inspect.Parameter.empty
    }
    wanted = inspect.getfullargspec(build).kwonlyargs

    def plain(case):
        arguments = {**defaults, **case.attributes}
        return build(case, **{name: arguments[name] for name in wanted})

    return plain


NETWORKS = {
    "capsnet": Network(
        _our_capsnet, _like(_plain_capsnet, models.CapsNet), _draw_classes
    ),
    "p_capsnet": Network(
        _our_p_capsnet, _like(_plain_p_capsnet, models.p_capsnet), _draw_classes
    ),
    "denoiser": Network(
        _our_denoiser,
        _like(_plain_denoiser, denoisers.averaging_network),
        _draw_photographs,
    ),
}


def _case(name, batch, image, use, *devices, classes=None, **attributes):
    names = ("batch", "in_height", "in_width", "channels")
    sizes = dict(zip(names, (batch, *image), strict=True))
    if classes:
        sizes["classes"] = classes
    return Case(name, sizes, (use,), devices or ("CPU", "GPU"), attributes)


def _all_cases():
    use, digits = cases.TRAINING, {"classes": 10}
    for device, batch in (("GPU", 128), ("CPU", 32)):
        # The network of Sabour et al. (2017), and their batches on a GPU.
        yield _case("capsnet", batch, (28, 28, 1), use, device, **digits)
        yield _case("p_capsnet", batch, (28, 28, 1), use, device, **digits)
    # As `tf-capsops denoise` trains it.
    yield _case("denoiser", 8, (64, 64, 3), use)
    use, digits = cases.TRAINING_SMOKE, {"classes": 3}
    small = {"filters": 4, "kernel_size": 3, "primary_channels": 2, "primary_dim": 4}
    small |= {"primary_kernel_size": 3, "capsule_dim": 4, "decoder_units": (8,)}
    yield _case("capsnet", 2, (8, 9, 2), use, **digits, **small)
    small = {"filters": (2, 3), "kernel_sizes": (3, 2), "strides": (2, 1)}
    yield _case("p_capsnet", 2, (8, 9, 2), use, **digits, **small)
    small = {"width": 4, "depth": 2, "kernel_size": 3, "dilations": (1, 2)}
    yield _case("denoiser", 2, (8, 9, 3), use, **small)


CASES = tuple(_all_cases())
