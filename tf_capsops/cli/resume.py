# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Goes on with a training that was stopped or killed: `tf-capsops train --resume`."""

import pathlib

from tf_capsops import options
from tf_capsops.cli import runs
from tf_capsops.errors import CommandError, require


def check(args):
    """Checks what can be checked without TensorFlow; raises a CommandError."""
    require("matplotlib", "tensorboard")
    reason = "--resume goes on with the arguments of the run"
    options.refuse_all_but({"resume"}, args, reason)
    _checkpoint(pathlib.Path(args.resume))


def run(args):
    """Trains the epochs that are left, saves and reports. Returns the exit status."""
    from tf_capsops.cli import distribution, networks, pipeline, training

    directory = pathlib.Path(args.resume)
    epoch, path = _checkpoint(directory)
    config = {**runs.read_training(directory), **runs.read_execution(directory)}
    history = runs.read_history(directory, epoch)
    networks.require_library()
    strategy = distribution.strategy(config["distribute"])
    with strategy.scope():
        model, dataset, _ = networks.open_model(path, training=True, takes_masks=True)
    if not model.compiled:
        raise CommandError(f"{path} was saved without its loss")
    dataset = pipeline.held_out(dataset, config["validation"])
    distribution.check_shares(strategy, len(dataset.train), config["batch_size"])
    seed = config["seed"] if config["deterministic"] else None
    networks.seed_everything(config["seed"], config["deterministic"])
    networks.use_xla(model, "on" if config["jit"] else "off", seed)
    with distribution.writing(strategy, lambda: directory) as place:
        print(f"{directory}: on from epoch {epoch} of {config['epochs']}", flush=True)
        distortion = config["distortion"]
        return training.fit(model, dataset, place, config, distortion, epoch, history)


def _checkpoint(directory):
    """Returns the epochs that a run was trained, and the checkpoint of then.

    Raises:
      CommandError: if it is no run, or there is nothing to go on with.
    """
    if not directory.is_dir():
        raise CommandError(f"--resume takes a run's directory, and {directory} is none")
    epoch, path = runs.newest_checkpoint(directory)
    if path is None:
        why = "it is trained" if (directory / runs.MODEL).is_file() else "no checkpoint"
        raise CommandError(f"nothing to resume in {directory}: {why}")
    return epoch, path
