# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The outlook of Chen et al.: networks of 50 and of 100 capsule convolutions.

They are trained on scikit-learn's digits, enlarged to 16 x 16 pixels, by our kernels
and in plain TensorFlow.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator, Mapping, Sequence

import keras
import numpy as np
import tensorflow as tf

import tf_capsops
from benchmarks.papers import outcome, report
from tf_capsops import data
from tf_capsops.bench import measure
from tf_capsops.bench.fitting import Clock
from tf_capsops.bench.report import OURS
from tf_capsops.layers import CapsuleConv2D, Length
from tf_capsops.losses import MarginLoss

BATCH = 128
EPOCHS = 12
RATE = 0.01  # divided by the depth: Adam changes all layers at once
OP = "CapsuleConv"
FOLD, WITHOUT_SUM = "TF fold", f"{OURS}, no sums"
METHODS = {50: (OURS, FOLD, WITHOUT_SUM), 100: (OURS, FOLD)}  # by depth
# A part of its own, because compilation takes most of its time.
COMPILED = {50: (f"{OURS}, XLA", f"{FOLD}, XLA")}
_SIZE = 16
_LAYERS = {"capsules": 16, "pose_shape": (4, 4)}


def network(
    depth: int,
    image_shape: tuple[int, int, int],
    classes: int,
    *,
    capsules: int,
    pose_shape: tuple[int, int],
    residual: bool = True,
) -> keras.Model:
    """Makes a network of `depth` capsule convolutions between a first and a last one.

    Each layer adds the convolution of its rectified input to its input, and the
    variance of its initial weights is divided by the depth: all layers together then
    change values by a factor, however many they are. No layer normalizes.

    Args:
        depth: How many layers of 3 x 3 kernels, each from all capsules to all.
        image_shape: Height, width and channels.
        classes: How many classes.
        capsules: At each pixel.
        pose_shape: Of the capsules.
        residual: Whether a layer adds its input. If not, the layers only follow one
            another, with the initial weights of He et al. (2015).

    Returns:
        A network from images `[B, H, W, C]` to lengths `[B, classes]`, not compiled.
    """
    rows, columns = pose_shape
    images = keras.Input(image_shape)
    pixels = keras.layers.Reshape((*image_shape, 1, 1))(images)
    first = CapsuleConv2D(capsules, (1, rows * columns), 3, padding="same")(pixels)
    poses = keras.layers.Reshape((*image_shape[:2], capsules, *pose_shape))(first)
    for number in range(depth):
        scale = 2 / depth if residual else 2
        convolution = CapsuleConv2D(
            capsules,
            pose_shape,
            3,
            padding="same",
            kernel_initializer=keras.initializers.VarianceScaling(scale, seed=number),
            use_bias=False,
        )
        change = convolution(keras.layers.ReLU()(poses))
        poses = keras.layers.Add()([poses, change]) if residual else change
    last = CapsuleConv2D(classes, pose_shape, image_shape[:2])(poses)
    flat = keras.layers.Reshape((classes, rows * columns))(last)
    return keras.Model(
        images, Length()(keras.layers.Activation(tf_capsops.squash)(flat))
    )


def _digits() -> tuple[np.ndarray, np.ndarray]:
    train = data.load("digits").train
    images, labels = train.take(np.arange(len(train)))
    return tf.image.resize(images, (_SIZE, _SIZE)).numpy(), labels.numpy()


def train(
    model: keras.Model,
    images,
    labels,
    device: str,
    epochs: int,
    rate: float,
    jit: bool = False,
) -> dict:
    """Trains a network and returns its loss, the time of a step, and its memory.

    Args:
        model: As `network` makes it.
        images: `[N, H, W, C]`.
        labels: `[N]`.
        device: The one that is trained on.
        epochs: How often, at least 3: the first two are not timed.
        rate: The learning rate of Adam.
        jit: Whether to compile with XLA.

    Returns:
        `losses`, one for each epoch; `step_ms`; and `peak_bytes`, beyond those of
        the weights; None on a CPU, where TensorFlow does not count.
    """
    batch = min(BATCH, len(images))
    steps = len(images) // batch
    model.compile(
        keras.optimizers.Adam(rate),
        MarginLoss(),
        jit_compile=jit,
        steps_per_execution=steps,
    )
    with tf.device("CPU:0"):
        batches = tf.data.Dataset.from_tensor_slices((images, labels))
    batches = batches.batch(batch, drop_remainder=True).cache().repeat()
    on_gpu = measure.device_type(device) == "GPU"
    if on_gpu:
        before = tf.config.experimental.get_memory_info(device)["current"]
        tf.config.experimental.reset_memory_stats(device)
    clock = Clock()
    history = model.fit(
        batches,
        epochs=epochs,
        steps_per_epoch=steps,
        shuffle=False,
        verbose=0,
        callbacks=[clock],
    )
    peak = None
    if on_gpu:
        peak = tf.config.experimental.get_memory_info(device)["peak"] - before
    return {
        "losses": history.history["loss"],
        "step_ms": 1e3 * float(np.median(clock.seconds[2:])) / steps,
        "peak_bytes": peak,
    }


def _trained(depth: int, method: str, images, labels, device: str) -> dict:
    keras.backend.clear_session()
    gc.collect()  # the network before, whose memory would count
    folds = method.startswith(FOLD)
    keras.utils.set_random_seed(1)
    try:
        with tf_capsops.portable() if folds else contextlib.nullcontext():
            model = network(
                *(depth, images.shape[1:], 10),
                residual=method != WITHOUT_SUM,
                **_LAYERS,
            )
            jit = method.endswith("XLA")
            return train(model, images, labels, device, EPOCHS, RATE / depth, jit)
    except tf.errors.OpError as error:
        return {"error": measure.reason(error)}


def _run(tried: Mapping, device: str, repeat: int) -> Iterator[dict]:
    """Yields a result for each depth; a training is not repeated."""
    images, labels = _digits()
    for depth, methods in tried.items():
        yield {
            "depth": depth,
            "batch": BATCH,
            "image": _SIZE,
            **_LAYERS,
            "epochs": EPOCHS,
            "methods": {
                name: _trained(depth, name, images, labels, device) for name in methods
            },
        }


def run(device: str, repeat: int) -> Iterator[dict]:
    """Yields what training took for each depth."""
    return _run(METHODS, device, repeat)


def run_compiled(device: str, repeat: int) -> Iterator[dict]:
    """Yields what training took with XLA."""
    return _run(COMPILED, device, repeat)


def table(results: Sequence[Mapping]) -> dict:
    """Returns losses, and the time and the memory of a training step."""
    sources = [(depth, part) for depth in METHODS for part in ("depth", "depth_xla")]
    found = [report.newest(results, depth=d, part=part) for d, part in sources]
    found = [result for result in found if result]
    rows = []
    for result in found:
        depth = result["depth"]
        for name, row in result["methods"].items():
            cells = ["cannot run", *[""] * 4]
            if "error" not in row:
                step, peak = row["step_ms"], row["peak_bytes"]
                cells = [
                    f"{loss:.3f}" for loss in (row["losses"][0], row["losses"][-1])
                ]
                cells += [outcome.number(step), f"{1e3 * step / depth:,.0f}"]
                cells += ["" if peak is None else f"{peak / 1e6 / depth:.1f}"]
            rows.append([f"{depth}: {outcome.name(name, OP)}", *cells])
    columns = ["layers", "first loss", "last loss", "ms a step", "us a layer"]
    return report.table([*columns, "MB a layer"], rows, found, OP)


def draw(results: Sequence[Mapping], panel) -> None:
    """Draws the losses of trainings by our kernels into a panel of a chart."""
    for depth in METHODS:
        result = report.newest(results, depth=depth, part="depth")
        rows = result["methods"] if result else {}
        for name in (OURS, WITHOUT_SUM):
            if losses := rows.get(name, {}).get("losses"):
                label = f"{depth} layers"
                label += ", without sums" if name == WITHOUT_SUM else ""
                panel.plot(range(1, len(losses) + 1), losses, label=label)
    panel.set_yscale("log")
    panel.set_xlabel("epoch")
    panel.set_ylabel("loss")
    panel.set_title("Deep networks in training", fontsize="medium")
    panel.grid(alpha=0.3)
    if panel.get_legend_handles_labels()[0]:
        panel.legend(fontsize="x-small")
