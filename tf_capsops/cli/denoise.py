# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Learns to denoise photographs with a different filter at every pixel.

It trains on one photograph and is tested on another, beside a plain network of as many
parameters and classic filters at their best.
"""

import sys

from tf_capsops.cli import arguments
from tf_capsops.cli.errors import INTERRUPTED, require

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

    from tf_capsops.cli import (
        denoisers,
        figures,
        interruption,
        networks,
        pipeline,
        runs,
    )

    networks.require_library()
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
    images, notes, history = {"noisy": noisy}, {}, {}
    for name, best in (
        ("Gaussian blur", denoisers.best_gaussian),
        ("bilateral", denoisers.best_bilateral),
    ):
        images[name], tried = best(noisy, clean)
        notes[name] = f"best: {tried}"
    with interruption.Hold() as hold:
        for build in (denoisers.plain_network, denoisers.averaging_network):
            model = build()
            name = f"{model.name} network"
            batches = pipeline.noisy_patches(image, _SIZE, _BATCH, stddev, seed)
            history[model.name], notes[name], stopped = _train(
                model, batches, args.epochs, hold
            )
            images[name] = model.predict(noisy[np.newaxis], verbose=0)[0]
            if stopped:
                break
        # Without optimizer and metric, which nobody needs to denoise.
        keras.Model(model.input, model.output, name=model.name).save(directory / MODEL)
        results = {name: denoisers.psnr(clean, each) for name, each in images.items()}
        runs.write_json(directory / "history.json", {**history, "test_psnr": results})
        for each, file in ((noisy, "noisy.png"), (images[name], "denoised.png")):
            matplotlib.image.imsave(directory / file, np.clip(each, 0, 1))
        pictures = {**images, f"{tested}, clean": clean}
        figures.denoised(pictures, results, directory / "comparison.png")
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
      Its history, a note of how that went, and whether Ctrl-C stopped it.
    """
    import keras

    from tf_capsops.cli import interruption, progress, train

    psnr = keras.metrics.MeanMetricWrapper(_psnr, name="psnr")
    rate = train.schedule(_LEARNING_RATE, epochs * _STEPS)
    model.compile(keras.optimizers.Adam(rate), loss="mse", metrics=[psnr])
    print(
        f"{model.name} network: {model.count_params():,} parameters, {epochs} epochs "
        f"of {_STEPS} batches",
        flush=True,
    )
    verbose, shown = progress.callbacks(epochs, _STEPS, sys.stdout.isatty())
    kept = keras.callbacks.History()
    seconds, stopped = hold.fit(
        model,
        batches,
        epochs=epochs,
        steps_per_epoch=_STEPS,
        shuffle=False,
        verbose=verbose,
        callbacks=[kept, *shown],
    )
    history = {name: [float(v) for v in each] for name, each in kept.history.items()}
    note = f"trained in {seconds:.0f} s"
    if stopped:
        note = interruption.where(history, epochs, seconds)
    return history, note, stopped


def _psnr(clean, image):
    """The mean peak signal-to-noise ratio of a batch's images, in decibels."""
    import keras

    error = keras.ops.mean(keras.ops.square(image - clean), axis=(1, 2, 3))
    return -10 * keras.ops.log10(keras.ops.maximum(error, 1e-12))
