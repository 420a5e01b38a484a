# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Goes on with a run that was stopped or killed: `train --resume`, `quantize --resume`.

Either command resumes runs of both.
"""

import contextlib
import os
import pathlib

from tf_capsops import options
from tf_capsops.cli import presets, runs
from tf_capsops.errors import CommandError, require

# The entries of `config.json` that `networks.make` needs.
_NETWORK = {"model", "preset", "network", "mixed_precision"}
_NETWORK |= {"routing", "routing_iterations", "routing_gradient"}


def check(args):
    """Checks what can be checked without TensorFlow; raises a CommandError."""
    directory = pathlib.Path(args.resume)
    if not _is_quantized(runs.read_config(directory)):
        require("matplotlib", "tensorboard")
    reason = "--resume goes on with the arguments of the run"
    if args.command == "quantize" and args.model:
        raise CommandError(f"{reason}: no RUN_OR_MODEL")
    options.refuse_all_but({"resume"}, args, reason)
    _checkpoint(directory)


def run(args):
    """Trains the epochs that are left, saves and reports. Returns the exit status."""
    from tf_capsops.cli import distribution, networks, pipeline, training

    directory = pathlib.Path(args.resume)
    epoch, path = _checkpoint(directory)
    if _is_quantized(runs.read_config(directory)):
        from tf_capsops.cli import quantization

        return quantization.resume(directory, epoch, path)
    config = {**runs.read_training(directory), **runs.read_execution(directory)}
    history = runs.read_history(directory, epoch)
    networks.require_library()
    strategy = distribution.strategy(config["distribute"])
    if path is None:
        dataset = _data(directory)
    else:
        with strategy.scope():
            model, dataset, _ = networks.open_model(
                path, training=True, takes_masks=True
            )
        if not model.compiled:
            raise CommandError(f"{path} was saved without its loss")
    dataset = pipeline.held_out(dataset, config["validation"])
    distribution.check_shares(strategy, len(dataset.train), config["batch_size"])
    seed = config["seed"] if config["deterministic"] else None
    networks.seed_everything(config["seed"], config["deterministic"])
    if path is None:
        described = {**runs.read_config(directory), **config}
        with _named(directory / runs.CONFIG, described):
            model = training.compiled(described, dataset, strategy)
    networks.use_xla(model, "on" if config["jit"] else "off", seed)
    with distribution.writing(strategy, lambda: directory) as place:
        if _checkpoint(directory) != (epoch, path):
            raise CommandError(f"meanwhile another process has trained {directory}")
        begins = f"on from epoch {epoch}" if path else "no checkpoint yet, from epoch 0"
        print(f"{directory}: {begins} of {config['epochs']}", flush=True)
        distortion = config["distortion"]
        return training.fit(model, dataset, place, config, distortion, epoch, history)


def _is_quantized(config):
    """Whether `config.json` belongs to a run of `quantize`."""
    return "source" in config


@contextlib.contextmanager
def _named(path, config):
    """In its block, a network is made; errors name the `config.json` at `path`.

    Raises:
      CommandError: if no such network can be made, as after a change by hand.
    """
    for entry, names in {"model": presets.PRESETS, "routing": presets.RULES}.items():
        is_absent = entry == "routing" and config[entry] is None
        if config[entry] not in tuple(names) and not is_absent:
            raise CommandError(
                f"{path}: {entry} must be one of {', '.join(names)}, got "
                f"{config[entry]!r}"
            )
    try:
        yield
    except (AttributeError, CommandError, KeyError, TypeError) as error:
        raise CommandError(
            f"{path} describes no network that can be made: {error}"
        ) from error


def _data(directory):
    """Loads the data that a run is trained on, with the options in `config.json`."""
    from tf_capsops import data
    from tf_capsops.cli import networks

    source, found = runs.remembered_data(directory), runs.read_pictures(directory)
    if data.is_pictures(source):
        found["class_names"] = runs.read_config(directory).get("classes")
    names = "image_size", "color_mode", "test_share", "skip_broken", "class_names"
    options = {name: found[name] for name in names if found.get(name)}
    return networks.open_data(source, **options)


def _checkpoint(directory):
    """Returns the number of epochs at a run's newest checkpoint, and its path.

    They are 0 and None for a run that was killed before its first checkpoint.

    Raises:
      CommandError: if it is no run, or there is nothing to resume.
    """
    if not directory.is_dir():
        raise CommandError(f"--resume takes a run's directory: {directory} is not one")
    epoch, path = runs.newest_checkpoint(directory)
    if path:
        return epoch, path
    config, files = runs.read_config(directory), {*os.listdir(directory)}
    if not config:
        said = f"it is no run, without {runs.CONFIG} and checkpoints"
    elif _is_quantized(config) and runs.RESULT not in files:
        said = "it has no checkpoint: quantize again"
    elif runs.RESULT in files or files >= {runs.MODEL, runs.HISTORY}:
        said = "it is trained"
    elif runs.MODEL in files:
        said = "it was stopped in its first epoch: train again"
    elif config.keys() >= _NETWORK:
        return 0, None
    else:
        said = f"there is no checkpoint, and {runs.CONFIG} describes no network"
    raise CommandError(f"nothing to resume in {directory}: {said}")
