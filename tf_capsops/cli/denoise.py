# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Learns to denoise photographs with a different filter at every pixel.

It trains on one photograph and is tested on another, beside a plain network of as many
parameters and classic filters at their best.
"""

import sys
import time

from tf_capsops.cli import arguments
from tf_capsops.cli.errors import require

# Not the name of a classifier's model, among which `evaluate` looks for the newest.
MODEL = "denoiser.keras"
PHOTOGRAPHS = ("china", "flower")
# Squares of a photograph in an epoch, and how they are batched.
_STEPS, _BATCH, _SIZE = 20, 8, 64
_LEARNING_RATE = 0.003


def add_arguments(parser):
    """Adds the arguments of `tf-capsops denoise`."""
    parser.add_argument(
        "--train",
        choices=PHOTOGRAPHS,
        default=PHOTOGRAPHS[0],
        help="scikit-learn's photograph to train on; the other one is for testing "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--noise",
        type=arguments.positive_float,
        default=25.0,
        help="standard deviation of the Gaussian noise, of 255 (default: %(default)g)",
    )
    parser.add_argument("--epochs", type=arguments.positive_int, default=45)
    arguments.add_seed(parser)
    arguments.add_output(parser, "denoise")


def run(args):
    """Trains both networks, compares and draws. Returns the exit status."""
    require("matplotlib", "scipy", "sklearn")
    import keras
    import matplotlib.image
    import numpy as np

    from tf_capsops.cli import denoisers, figures, runs

    runs.require_library()
    (tested,) = set(PHOTOGRAPHS) - {args.train}
    image, clean = (denoisers.photograph(name) for name in (args.train, tested))
    stddev, repeatable = args.noise / 255, runs.seed_everything(args.seed)
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
    images, history, seconds = {"noisy": noisy}, {}, {}
    images["Gaussian blur"], blur = denoisers.best_gaussian(noisy, clean)
    images["bilateral"], smoothing = denoisers.best_bilateral(noisy, clean)
    for build in (denoisers.plain_network, denoisers.averaging_network):
        model = build()
        name = f"{model.name} network"
        history[model.name], seconds[name] = _train(model, image, stddev, seed, args)
        images[name] = model.predict(noisy[np.newaxis], verbose=0)[0]
    # Without optimizer and metric, which nobody needs to denoise.
    keras.Model(model.input, model.output, name=model.name).save(directory / MODEL)

    results = {name: denoisers.psnr(clean, each) for name, each in images.items()}
    runs.write_json(directory / "history.json", {**history, "test_psnr": results})
    for each, file in ((noisy, "noisy.png"), (images[name], "denoised.png")):
        matplotlib.image.imsave(directory / file, np.clip(each, 0, 1))
    pictures = {**images, f"{tested}, clean": clean}
    figures.denoised(pictures, results, directory / "comparison.png")
    notes = {"Gaussian blur": f"best: {blur}", "bilateral": f"best: {smoothing}"}
    notes.update({name: f"trained in {each:.0f} s" for name, each in seconds.items()})
    print(f"PSNR on {tested}")
    for name, result in results.items():
        note = f"  ({notes[name]})" if name in notes else ""
        print(f"  {name:<18}{result:6.2f} dB{note}")
    print(
        f"wrote {directory}: {MODEL}, {runs.CONFIG}, history.json, comparison.png, "
        "noisy.png, denoised.png"
    )
    return 0


def _train(model, image, stddev, seed, args):
    """Trains a network on squares of `image`. Returns its history, and the seconds."""
    import keras

    from tf_capsops.cli import pipeline, progress, train

    steps = args.epochs * _STEPS
    psnr = keras.metrics.MeanMetricWrapper(_psnr, name="psnr")
    optimizer = keras.optimizers.Adam(train.schedule(_LEARNING_RATE, steps))
    model.compile(optimizer, loss="mse", metrics=[psnr])
    print(
        f"{model.name} network: {model.count_params():,} parameters, {args.epochs} "
        f"epochs of {_STEPS} batches",
        flush=True,
    )
    verbose, shown = progress.callbacks(args.epochs, _STEPS, sys.stdout.isatty())
    began = time.perf_counter()
    history = model.fit(
        pipeline.noisy_patches(image, _SIZE, _BATCH, stddev, seed),
        epochs=args.epochs,
        steps_per_epoch=_STEPS,
        shuffle=False,
        verbose=verbose,
        callbacks=shown,
    )
    seconds = time.perf_counter() - began
    values = {name: [float(v) for v in each] for name, each in history.history.items()}
    return values, seconds


def _psnr(clean, image):
    """The mean peak signal-to-noise ratio of a batch's images, in decibels."""
    import keras

    error = keras.ops.mean(keras.ops.square(image - clean), axis=(1, 2, 3))
    return -10 * keras.ops.log10(keras.ops.maximum(error, 1e-12))
