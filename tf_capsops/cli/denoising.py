# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Trains networks to denoise and compares them with filters: `tf-capsops denoise`.

Images are `[H, W, 3]`, float32, with values from 0 to 1.
"""

import keras
import matplotlib.image
import numpy as np
import tensorflow as tf

from tf_capsops.cli import callbacks, canvas, denoise, networks, runs
from tf_capsops.errors import INTERRUPTED
from tf_capsops.models import denoisers
from tf_capsops.untuned import untuned

# Another name than a classifier's model has: `evaluate` looks for the newest of those.
MODEL = "denoiser.keras"
# Batches per epoch, squares per batch, and pixels on the side of a square.
_STEPS, _BATCH, _SIZE = 20, 8, 64
_LEARNING_RATE = 0.003


def run(args):
    """Trains both networks, compares and draws. Returns the exit status."""
    networks.require_library()
    (tested,) = set(denoise.PHOTOGRAPHS) - {args.train}
    image, clean = (photograph(name) for name in (args.train, tested))
    stddev, repeatable = args.noise / 255, networks.seed_everything(args.seed)
    seed = repeatable["seed"]
    directory = runs.create(args.output or runs.ROOT / "denoise")
    config = {
        "train": args.train,
        "test": tested,
        "noise": args.noise,
        "epochs": args.epochs,
        **repeatable,
    }
    runs.write_json(directory / runs.CONFIG, config)
    print(
        f"training on {args.train}, testing on {tested}, with noise of standard "
        f"deviation {args.noise:g} of 255",
        flush=True,
    )
    noise = np.random.default_rng(seed).normal(0, stddev, clean.shape)
    noisy = clean + noise.astype(np.float32)
    images, notes, history = {"noisy": noisy}, {}, {}
    for name, best in (
        ("Gaussian blur", best_gaussian),
        ("bilateral", best_bilateral),
    ):
        images[name], tried = best(noisy, clean)
        notes[name] = f"best: {tried}"
    with callbacks.Hold() as hold:
        for build in (denoisers.plain_network, denoisers.averaging_network):
            model = build()
            name = f"{model.name} network"
            batches = noisy_patches(image, _SIZE, _BATCH, stddev, seed)
            history[model.name], notes[name], stopped = _train(
                model, batches, args.epochs, hold
            )
            images[name] = model.predict(noisy[np.newaxis], verbose=0)[0]
            if stopped:
                break
        # Saved without optimizer and metric, which denoising does not need.
        keras.Model(model.input, model.output, name=model.name).save(directory / MODEL)
        results = {name: psnr(clean, each) for name, each in images.items()}
        runs.write_json(directory / "history.json", {**history, "test_psnr": results})
        for each, file in ((noisy, "noisy.png"), (images[name], "denoised.png")):
            matplotlib.image.imsave(directory / file, np.clip(each, 0, 1))
        pictures = {**images, f"{tested}, clean": clean}
        draw(pictures, results, directory / "comparison.png")
        print(f"PSNR on {tested}")
        for each, result in results.items():
            note = f"  ({notes[each]})" if each in notes else ""
            print(f"  {each:<18}{result:6.2f} dB{note}")
        print(
            f"wrote {directory}: {MODEL} (the {name}), {runs.CONFIG}, history.json, "
            "comparison.png, noisy.png, denoised.png"
        )
    return INTERRUPTED if stopped else 0


def _train(model, batches, epochs, hold):
    """Trains a network.

    Returns:
      The history, a note on how long it took or how far it got, and whether Ctrl-C
      stopped it.
    """
    psnr = keras.metrics.MeanMetricWrapper(_psnr, name="psnr")
    rate = networks.schedule(_LEARNING_RATE, epochs * _STEPS)
    model.compile(keras.optimizers.Adam(rate), loss="mse", metrics=[psnr])
    print(
        f"{model.name} network: {model.count_params():,} parameters, "
        f"{callbacks.counted(epochs, 'epoch')} of "
        f"{callbacks.counted(_STEPS, 'batch')}",
        flush=True,
    )
    kept = keras.callbacks.History()
    seconds, stopped = hold.fit(
        model,
        batches,
        epochs=epochs,
        steps=_STEPS,
        callbacks=[kept],
    )
    history = {name: [float(v) for v in each] for name, each in kept.history.items()}
    note = f"trained in {seconds:.0f} s"
    if stopped:
        note = callbacks.where(history, epochs, seconds)
    return history, note, stopped


def _psnr(clean, image):
    """Returns the peak signal-to-noise ratio of each image of a batch, in decibels."""
    error = keras.ops.mean(keras.ops.square(image - clean), axis=(1, 2, 3))
    return -10 * keras.ops.log10(keras.ops.maximum(error, 1e-12))


def noisy_patches(image, size, batch_size, stddev, seed):
    """Returns an endless `tf.data.Dataset` of `(noisy, clean)` batches of squares.

    Squares come from random places, turned and mirrored in all eight ways. Each of
    their channels gets a random contrast and brightness; otherwise a network would
    learn the colors of one photograph. The noise is Gaussian and independent for every
    pixel and channel.

    Args:
      image: `[H, W, C]`, float32, of at least `size` rows and columns.
      size: pixels on the side of a square.
      batch_size: squares per batch.
      stddev: the noise's standard deviation, in the image's units.
      seed: an int; the same one gives the same batches.
    """
    with tf.device("CPU:0"):
        image = tf.constant(image)
    height, width, channels = image.shape
    down, across = tf.meshgrid(tf.range(size), tf.range(size), indexing="ij")

    def batch(seed):
        seed = tf.cast(seed, tf.int64)
        draws = tf.random.stateless_uniform([5, batch_size, 1, 1], seed)
        turned, upside_down, mirrored = tf.unstack(draws[:3] < 0.5)
        row = tf.where(turned, across, down)
        column = tf.where(turned, down, across)
        row = tf.where(upside_down, size - 1 - row, row)
        column = tf.where(mirrored, size - 1 - column, column)
        row += tf.cast(draws[3] * (height - size + 1), tf.int32)
        column += tf.cast(draws[4] * (width - size + 1), tf.int32)
        clean = tf.gather_nd(image, tf.stack([row, column], axis=-1))
        contrast, offset = tf.unstack(
            tf.random.stateless_uniform([2, batch_size, 1, 1, channels], seed + 1)
        )
        contrast = 0.2 + 0.8 * contrast
        clean = clean * contrast + offset * (1 - contrast)
        noise = tf.random.stateless_normal(tf.shape(clean), seed + 2, stddev=stddev)
        return clean + noise, clean

    seeds = tf.data.Dataset.random(seed=seed, rerandomize_each_iteration=True).batch(2)
    batches = seeds.map(batch, num_parallel_calls=tf.data.AUTOTUNE)
    return untuned(batches.prefetch(4))


def photograph(name):
    """Loads scikit-learn's photograph "china" or "flower", of 427 x 640 pixels."""
    # scikit-learn takes a second to import.
    from sklearn.datasets import load_sample_image

    return load_sample_image(f"{name}.jpg").astype(np.float32) / 255


def psnr(clean, image):
    """Returns the peak signal-to-noise ratio in dB; the image is clipped to [0, 1]."""
    error = np.square(np.clip(image, 0, 1) - clean).mean(dtype=np.float64)
    return float(-10 * np.log10(max(error, 1e-12)))


def best_gaussian(noisy, clean):
    """Blurs with the Gaussian of the best PSNR, tried in steps of a tenth of a pixel.

    Returns:
      The image, and a description of the filter.
    """
    from scipy.ndimage import gaussian_filter

    sigmas = np.arange(0.4, 4, 0.1)
    images = [gaussian_filter(noisy, (sigma, sigma, 0)) for sigma in sigmas]
    best = int(np.argmax([psnr(clean, image) for image in images]))
    return images[best], f"sigma {sigmas[best]:.1f} px"


def best_bilateral(noisy, clean):
    """Applies the bilateral filter of the best PSNR among several.

    Returns:
      The image, and a description of the filter.
    """
    tries = {}
    for space in (1.5, 2.0, 3.0):
        for color in (0.2, 0.3, 0.4, 0.6):
            name = f"sigma {space:.1f} px, {color:.1f} in color"
            tries[name] = bilateral(noisy, space, color)
    best = max(tries, key=lambda name: psnr(clean, tries[name]))
    return tries[best], best


def bilateral(image, space, color, radius=4):
    """Applies the bilateral filter of Tomasi and Manduchi (1998).

    Args:
      image: `[H, W, C]`.
      space: standard deviation of the weights over distance, in pixels.
      color: standard deviation of the weights over the distance of two colors.
      radius: pixels on each side that count.
    """
    height, width, _ = image.shape
    around = np.pad(image, ((radius, radius), (radius, radius), (0, 0)), "reflect")
    total, weighted = np.zeros([height, width, 1], image.dtype), np.zeros_like(image)
    for down in range(2 * radius + 1):
        for right in range(2 * radius + 1):
            moved = around[down : down + height, right : right + width]
            distance = (down - radius) ** 2 + (right - radius) ** 2
            difference = np.square(moved - image).sum(-1, keepdims=True)
            weight = np.exp(-difference / (2 * color**2) - distance / (2 * space**2))
            total += weight
            weighted += weight * moved
    return weighted / total


def draw(images, results, path, size=160):
    """Draws to `path` the middle of each of `images` `{name: [H, W, 3]}`, enlarged.

    Args:
      images: values from 0 to 1; others are clipped.
      results: PSNRs in dB, by the names of the images that have one.
      path: where the picture goes.
      size: pixels shown of each image, down and across.
    """
    columns = 3
    figure = canvas.figure(columns * 2.1, -(-len(images) // columns) * 2.3)
    everything = figure.subplots(-(-len(images) // columns), columns, squeeze=False)
    for axes in everything.flat:
        canvas.bare(axes)
    for axes, (name, image) in zip(everything.flat, images.items()):
        top, left = ((length - size) // 2 for length in image.shape[:2])
        shown = image[max(top, 0) :, max(left, 0) :][:size, :size]
        axes.imshow(np.clip(shown, 0, 1), interpolation="nearest")
        noted = f", {results[name]:.1f} dB" if name in results else ""
        axes.set_title(name + noted, fontsize=8, pad=3)
    canvas.save(figure, path)
