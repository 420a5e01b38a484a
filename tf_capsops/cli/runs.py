# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Makes directories of training runs, and reads them again."""

import contextlib
import dataclasses
import fcntl
import json
import os
import pathlib
import sys
import warnings

import keras
import tensorflow as tf

from tf_capsops import __version__, data
from tf_capsops.arguments import positive_int, positive_number
from tf_capsops.cli import networks, presets
from tf_capsops.cli.errors import CommandError, reported, require
from tf_capsops.cli.networks import MODEL, ROOT

CONFIG = "config.json"
HISTORY = "history.json"
__all__ = ["MODEL", "ROOT"]  # for those who import them from here


def create(wanted):
    """Makes a new directory `wanted`, or `wanted-2` and so on where that exists.

    Raises:
      CommandError: if it cannot be made, or `wanted` has no name to add a number to.
    """
    wanted = pathlib.Path(wanted)
    if wanted.name in ("", ".."):
        raise CommandError(f"--output must name a new directory, got {str(wanted)!r}")
    number = 1
    while True:
        path = wanted if number == 1 else wanted.with_name(f"{wanted.name}-{number}")
        try:
            path.mkdir(parents=True)
            return path
        except FileExistsError:
            number += 1
        except OSError as error:
            raise CommandError(f"cannot make {path}: {error.strerror}") from error


@contextlib.contextmanager
def in_use(directory):
    """Marks a run as being trained, until the block or the process ends.

    Raises:
      CommandError: if another process trains it.
    """
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise CommandError(f"another process is training {directory}") from error
    except OSError:
        pass  # some file systems of networks have no locks
    try:
        yield
    finally:
        os.close(descriptor)


def is_in_use(directory):
    """Whether a process is training a run."""
    try:
        with in_use(directory):
            return False
    except CommandError:
        return True


def seed_everything(seed, deterministic=None):
    """Seeds every random choice, and returns what `config.json` says of repeating it.

    Args:
      seed: an int; None stands for 0.
      deterministic: whether to select deterministic kernels instead of the fastest
        ones; by default where there is a seed.
    """
    if deterministic is None:
        deterministic = seed is not None
    keras.utils.set_random_seed(seed or 0)
    if deterministic:
        tf.config.experimental.enable_op_determinism()
    return {
        "seed": seed or 0,
        "deterministic": deterministic,
        "tf_capsops": __version__,
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
    }


def write_json(path, content):
    """Writes `content` to the file `path`, one entry a line."""
    path.write_text(json.dumps(content, indent=2) + "\n")


def open_data(source, **options):
    """Loads a data set, and prints what there is to warn of.

    Args:
      source: as `data.load` takes it.
      **options: those of `data.load`.

    Raises:
      CommandError: if that fails.
    """
    if source.rpartition(":")[2] == "digits":
        require("sklearn")
    if sys.stderr.isatty() and data.is_pictures(source):
        print(f"looking at all pictures in {source}", file=sys.stderr, flush=True)
    with reported(ValueError, OSError), warnings.catch_warnings(record=True) as caught:
        dataset = data.load(source, **options)
    for each in caught:
        print(f"warning: {each.message}", file=sys.stderr)
    return dataset


def open_model(target, source=None, training=False, skip_broken=False):
    """Loads the model of a run and the data to use it on.

    A `CapsNet`, or any Keras model from images `[B, H, W, C]` to scores `[B, classes]`.

    Args:
      target: a run's directory, or a `.keras` file; None for the newest run in runs/.
      source: what `--data` gave; None for the data the run was trained on.
      training: whether the training images are needed, too.
      skip_broken: whether to leave out files that are no pictures.

    Returns:
      The model, the data set, and the directory of the model.

    Raises:
      CommandError: if one of them is missing or they do not fit each other.
    """
    path = networks.find(target)
    networks.require_library()
    directory = path.parent
    source = source or remembered_data(directory)
    model, shape, classes = networks.load(path)
    options = {"skip_broken": True} if skip_broken else {}
    if data.is_pictures(source):
        options = {**_options(directory, source, shape, classes), **options}
        options["training"] = training
    dataset = open_data(source, **options)
    networks.require_takes(model, shape, dataset)
    if dataset.num_classes > classes:
        raise CommandError(
            f"the model knows {classes} classes, but {dataset.name} has "
            f"{dataset.num_classes}"
        )
    objects = getattr(model, "objects", 1)
    if dataset.objects != objects:
        raise CommandError(
            f"the model reads {objects} of the classes from an image, but images of "
            f"{dataset.name} show {dataset.objects}"
        )
    if objects > 1 and dataset.num_classes != classes:
        raise CommandError(
            f"the model reads {objects} of {classes} classes from an image, and "
            f"{dataset.name} must have as many, not {dataset.num_classes}"
        )
    return model, dataset, directory


def _options(directory, source, shape, classes):
    """Returns how pictures are read for a network, as `data.load` takes it.

    Of the data that a run was trained on, the same are for testing as then.
    """
    path, config = directory / CONFIG, read_config(directory)
    options = {"color_mode": {1: "grayscale", 3: "rgb"}.get(shape[2])}
    with reported(ValueError):
        kept = _pictures(path, config.get("pictures", {}))
    if None not in shape[:2]:
        options["image_size"] = shape[:2]
    elif kept.get("image_size"):
        options["image_size"] = kept["image_size"]
    if config.get("data") == data.absolute(source):
        options["test_share"] = kept.get("test_share")
        options["skip_broken"] = kept.get("skip_broken", False)
    if config.get("classes"):
        options["class_names"] = class_names(directory, classes)
    return options


def class_names(directory, classes):
    """Returns what a run calls its classes: their numbers if it does not say.

    Args:
      directory: the run's.
      classes: how many there are.

    Raises:
      CommandError: if `config.json` has names for another number of classes.
    """
    names = read_config(directory).get("classes")
    if names is None:
        return [str(number) for number in range(classes)]
    good = isinstance(names, list) and all(isinstance(name, str) for name in names)
    if not good or len(names) != classes:
        raise CommandError(
            f"{directory / CONFIG}: classes must be the names of {classes} classes, "
            f"got {names!r}"
        )
    return names


def described(dataset):
    """Returns what `config.json` keeps of a folder of pictures, and nothing of others.

    That is how the pictures are read, and the names of the classes.
    """
    if not isinstance(dataset, data.Pictures):
        return {}
    pictures = {**dataset.options, "skipped": len(dataset.skipped)}
    return {"classes": dataset.class_names, "pictures": pictures}


def read_json(path):
    """Returns the content of a JSON file.

    Raises:
      CommandError: if there is none, or it is not JSON.
    """
    try:
        return json.loads(path.read_text())
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise CommandError(f"{path} is not JSON: {error}") from error


def read_config(directory):
    """Returns a run's `config.json` as a dict, which is empty if there is none.

    Raises:
      CommandError: if it is not JSON of an object.
    """
    path = directory / CONFIG
    if not path.is_file():
        return {}
    content = read_json(path)
    if not isinstance(content, dict):
        raise CommandError(f"{path} does not describe a run")
    return content


def read_training(directory):
    """Returns how a run was trained.

    That is epochs, batch_size, learning_rate, distortion, validation and class_weight.

    What `config.json` does not say, as where there is none, is a usual value.

    Raises:
      CommandError: if it is not JSON of an object, or an entry is of another type.
    """
    path, config = directory / CONFIG, read_config(directory)
    with reported(ValueError):
        return {
            "epochs": positive_int(path, "epochs", config.get("epochs", 50)),
            "batch_size": positive_int(
                path, "batch_size", config.get("batch_size", 128)
            ),
            "learning_rate": positive_number(
                path, "learning_rate", config.get("learning_rate", 0.001)
            ),
            "distortion": _distortion(path, config.get("distortion", {})),
            "validation": _share(path, config.get("validation")),
            "class_weight": _class_weight(path, config.get("class_weight")),
        }


def read_execution(directory):
    """Returns how a run was executed.

    That is seed, deterministic, jit, steps_per_execution and distribute.

    Raises:
      CommandError: if `config.json` does not say, or an entry is of another type.
    """
    path, config = directory / CONFIG, read_config(directory)
    types = {"seed": int, "deterministic": bool, "jit": bool}
    types["steps_per_execution"] = int
    for name, wanted in types.items():
        value = config.get(name)
        if type(value) is not wanted or value < (name == "steps_per_execution"):
            raise CommandError(
                f"{path}: {name} must be {wanted.__name__}, got {value!r}"
            )
    distribute = config.get("distribute")  # earlier releases had none
    if distribute not in (None, "mirrored", "multiworker"):
        raise CommandError(
            f"{path}: distribute must be mirrored, multiworker or null, got "
            f"{distribute!r}"
        )
    return {**{name: config[name] for name in types}, "distribute": distribute}


def read_history(directory, epochs):
    """Returns a run's history of so many epochs.

    Raises:
      CommandError: if there is none of so many.
    """
    if not epochs:
        return {}
    path = directory / HISTORY
    with reported(OSError, ValueError, RecursionError):
        history = json.loads(path.read_text())
    if (
        not isinstance(history, dict)
        or not history
        or not all(
            isinstance(values, list)
            and len(values) >= epochs
            and all(type(value) is float for value in values)
            for values in history.values()
        )
    ):
        raise CommandError(f"{path} is no history of {epochs} epochs")
    return {name: values[:epochs] for name, values in history.items()}


def _distortion(path, entries):
    names = [field.name for field in dataclasses.fields(presets.Distortion)]
    if (
        not isinstance(entries, dict)
        or not entries.keys() <= {*names}
        or not all(type(each) in (int, float) for each in entries.values())
        or not all(0 <= each <= sys.float_info.max for each in entries.values())
    ):
        raise ValueError(
            f"{path}: distortion must be an object of {', '.join(names)}, numbers >= "
            f"0, got {entries!r}"
        )
    return presets.Distortion(**entries)


def _share(path, share, name="validation"):
    if share is not None and not (type(share) is float and 0 < share < 1):
        raise ValueError(
            f"{path}: {name} must be between 0 and 1 or null, got {share!r}"
        )
    return share


def _pictures(path, entries):
    if not isinstance(entries, dict):
        raise ValueError(f"{path}: pictures must be an object, got {entries!r}")
    _share(path, entries.get("test_share"), "test_share")
    size = entries.get("image_size")
    if size is not None and not (
        isinstance(size, list)
        and len(size) == 2
        and all(type(each) is int and each > 0 for each in size)
    ):
        raise ValueError(f"{path}: image_size must be two integers, got {size!r}")
    return entries


def _class_weight(path, weight):
    if weight not in (None, "balanced"):
        raise ValueError(
            f"{path}: class_weight must be balanced or null, got {weight!r}"
        )
    return weight


def remembered_data(directory):
    """Returns the data that a run was trained on, as `--data` takes it.

    Raises:
      CommandError: if its `config.json` does not say.
    """
    config = directory / CONFIG
    try:
        source = json.loads(config.read_text())["data"]
    except OSError as error:
        raise CommandError(f"no {config} to name the data: give --data") from error
    except (ValueError, KeyError, TypeError, RecursionError):
        source = None
    if not isinstance(source, str):
        raise CommandError(f"{config} does not name the data: give --data")
    return source
