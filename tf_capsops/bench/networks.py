# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The networks that the benchmark trains: ours, and most in plain Keras, too.

A plain network has as many trainable weights as ours, in the same order and of the same
shapes, so that it computes the same from the same weights.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable

import numpy as np

from tf_capsops import models
from tf_capsops.bench import cases, plain_networks
from tf_capsops.bench.cases import Case
from tf_capsops.bench.plain_networks import IMAGE, Trainee, image_shape
from tf_capsops.cli.presets import PRESETS
from tf_capsops.losses import MarginLoss, SpreadLoss
from tf_capsops.models import denoisers


@dataclasses.dataclass(frozen=True)
class Network:
    """A network with our layers, and in plain Keras.

    Attributes:
        ours: Builds it with our layers, for a case.
        plain: Builds it in plain Keras; None if its only rival is in PyTorch.
        draw: `(case, samples, random generator) -> (inputs, targets)`.
    """

    ours: Callable[[Case], Trainee]
    plain: Callable[[Case], Trainee] | None
    draw: Callable[[Case, int, np.random.Generator], tuple[np.ndarray, np.ndarray]]


def _draw_classes(case, samples, rng):
    images = rng.random((samples, *image_shape(case)), np.float32)
    return images, rng.integers(0, case.sizes["classes"], samples, np.int32)


def _classifier(make, loss):
    """Returns a function that builds a network of ours for a case."""

    def build(case):
        model = make(image_shape(case), case.sizes["classes"], **case.attributes)
        return Trainee(model, {"loss": loss(), "metrics": ["accuracy"]})

    return build


def _segmenter(make):
    """Returns a `Network` for masks, with its usual loss."""

    def build(case):
        classes = case.sizes["classes"]
        model = make(image_shape(case), classes, **case.attributes)
        crossentropy = "sparse_categorical_crossentropy"
        if classes == 1:
            crossentropy = "binary_crossentropy"
        default = getattr(model, "default_loss", None)
        return Trainee(model, {"loss": default() if default else crossentropy})

    return Network(build, None, _draw_masks)


def _draw_masks(case, samples, rng):
    shape = (samples, *image_shape(case))
    classes = max(2, case.sizes["classes"])
    masks = rng.integers(0, classes, (*shape[:-1], 1), np.int32)
    return rng.random(shape, np.float32), masks


def _last_spread():
    """Returns the spread loss with the last of its margins."""
    return SpreadLoss(steps=1, start=0.9, end=0.9)


def _our_denoiser(case):
    return Trainee(denoisers.averaging_network(**case.attributes), {"loss": "mse"})


def _draw_photographs(case, samples, rng):
    clean = rng.random((samples, *image_shape(case)), np.float32)
    noise = rng.normal(0, 25 / 255, clean.shape).astype(np.float32)
    return clean + noise, clean


def _like(build, ours):
    """Returns a function that builds a plain network, with the defaults of ours."""
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


_P_CAPSNET = Network(
    _classifier(models.p_capsnet, MarginLoss),
    _like(plain_networks.p_capsnet, models.p_capsnet),
    _draw_classes,
)

NETWORKS = {
    "capsnet": Network(
        _classifier(models.capsnet, MarginLoss),
        _like(plain_networks.capsnet, models.CapsNet),
        _draw_classes,
    ),
    "p_capsnet": _P_CAPSNET,
    "p_capsnet-chen": _P_CAPSNET,
    "efficient_capsnet": Network(
        _classifier(models.efficient_capsnet, MarginLoss),
        _like(plain_networks.efficient_capsnet, models.efficient_capsnet),
        _draw_classes,
    ),
    "matrix_capsnet": Network(
        _classifier(models.matrix_capsnet, _last_spread),
        _like(plain_networks.matrix_capsnet, models.matrix_capsnet),
        _draw_classes,
    ),
    "deepcaps": Network(_classifier(models.deepcaps, MarginLoss), None, _draw_classes),
    "segcaps": _segmenter(models.segcaps),
    "ucaps3d": _segmenter(models.ucaps3d),
    "unet": _segmenter(models.unet),
    "denoiser": Network(
        _our_denoiser,
        _like(plain_networks.denoiser, denoisers.averaging_network),
        _draw_photographs,
    ),
}


def _case(name, batch, image, use, *devices, classes=None, **attributes):
    names = ("batch", *IMAGE[-len(image) + 1 :], "channels")
    sizes = dict(zip(names, (batch, *image), strict=True))
    if classes:
        sizes["classes"] = classes
    return Case(name, sizes, (use,), devices or ("CPU", "GPU"), attributes)


def _all_cases():
    use, digits = cases.TRAINING, {"classes": 10}
    for device, batch in (("GPU", 128), ("CPU", 32)):
        # The network of Sabour et al. (2017), and their batches on a GPU.
        yield _case("capsnet", batch, (28, 28, 1), use, device, **digits)
        for name in ("p_capsnet", "efficient_capsnet"):
            yield _case(name, batch, (28, 28, 1), use, device, **digits)
        # The network that Chen et al. published with their code.
        chen = PRESETS["p_capsnet"]["chen"].network
        yield _case("p_capsnet-chen", batch, (28, 28, 1), use, device, **digits, **chen)
    # Rivals of this network store votes of 15 MB per sample, and several copies.
    yield _case("matrix_capsnet", 128, (28, 28, 1), use, "GPU", **digits)
    yield _case("matrix_capsnet", 8, (28, 28, 1), use, "CPU", **digits)
    # The sizes of the papers on a GPU, and smaller networks for two cores.
    small = {"size": "small"}
    yield _case("deepcaps", 128, (32, 32, 3), use, "GPU", **digits)
    yield _case("deepcaps", 32, (32, 32, 3), use, "CPU", **digits, **small)
    for name in ("segcaps", "unet"):
        yield _case(name, 1, (512, 512, 1), use, "GPU", classes=1)
        yield _case(name, 8, (64, 64, 1), use, "CPU", classes=11, **small)
    yield _case("ucaps3d", 1, (64, 64, 64, 2), use, "GPU", classes=4)
    yield _case("ucaps3d", 2, (16, 32, 32, 1), use, "CPU", classes=11, **small)
    # As `tf-capsops denoise` trains it.
    yield _case("denoiser", 8, (64, 64, 3), use)
    use, digits = cases.TRAINING_SMOKE, {"classes": 3}
    small = {"filters": 4, "kernel_size": 3, "primary_channels": 2, "primary_dim": 4}
    small |= {"primary_kernel_size": 3, "capsule_dim": 4, "decoder_units": (8,)}
    yield _case("capsnet", 2, (8, 9, 2), use, **digits, **small)
    small = {"filters": (2, 3), "kernel_sizes": (3, 2), "strides": (2, 1)}
    yield _case("p_capsnet", 2, (8, 9, 2), use, **digits, **small)
    small |= {"pose_shape": ((2, 4), (2, 6), (2, 3)), "use_bias": False}
    small |= {"negative_slope": 0.1, "squash_size": 4}
    yield _case("p_capsnet-chen", 2, (8, 9, 2), use, **digits, **small)
    small = {"filters": (4, 8), "kernel_sizes": (3, 2), "strides": (1, 2)}
    small |= {"primary_dim": 4, "capsule_dim": 4}
    yield _case("efficient_capsnet", 2, (8, 9, 2), use, **digits, **small)
    small = {"filters": 4, "kernel_size": 3, "primary_capsules": 3, "capsules": (2,)}
    small |= {"capsule_kernel_sizes": (3,), "capsule_strides": (2,)}
    small |= {"pose_shape": (2, 2), "strides": 1}
    yield _case("matrix_capsnet", 2, (8, 9, 2), use, **digits, **small)
    small = {"size": "small"}
    yield _case("deepcaps", 2, (9, 10, 2), use, **digits, **small)
    yield _case("segcaps", 2, (8, 16, 2), use, **digits, **small)
    yield _case("unet", 2, (8, 16, 2), use, classes=1, **small)
    yield _case("ucaps3d", 2, (8, 16, 8, 2), use, **digits, **small)
    small = {"width": 4, "depth": 2, "kernel_size": 3, "dilations": (1, 2)}
    yield _case("denoiser", 2, (8, 9, 3), use, **small)


CASES = tuple(_all_cases())
