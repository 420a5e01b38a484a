# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Makes directories of training runs, finds them, and reads their files."""

import contextlib
import dataclasses
import fcntl
import json
import os
import pathlib
import re
import sys
import zipfile

from tf_capsops.cli import presets
from tf_capsops.errors import CommandError, quoted

ROOT = pathlib.Path("runs")
# The files of a run.
MODEL = "model.keras"
CONFIG = "config.json"
HISTORY = "history.json"
RESULT = "result.json"
# Files that are being written.
PARTIAL_MODEL, PARTIAL_HISTORY = "partial.keras", f"partial-{HISTORY}"


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


def where(directory, wanted):
    """Says which directory a run is written to, and why not to the `wanted` one."""
    other = str(directory) != str(pathlib.Path(wanted))
    return f"writing to {directory}{f' ({wanted} is there already)' if other else ''}"


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
        pass  # some network file systems have no locks
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


def find(target):
    """Returns the path of a network's file.

    Args:
      target: a run's directory, or a `.keras` file; None for the newest run in runs/.

    Raises:
      CommandError: if there is none.
    """
    return _newest() / MODEL if target is None else _model_file(pathlib.Path(target))


def _model_file(path):
    """Returns the model's file: `path` itself, or the file in a run's directory."""
    if path.is_file():
        if path.suffix not in (".keras", ".h5", ".hdf5"):
            raise CommandError(
                f"{path} is not a .keras file: give a run's directory or its {MODEL}"
            )
        if path.suffix == ".keras" and not zipfile.is_zipfile(path):
            raise CommandError(
                f"{path} holds no model that loads: it is not what Keras saved"
            )
        return path
    if not path.exists():
        raise CommandError(f"no model at {path}: give a run's directory or its {MODEL}")
    if (path / MODEL).is_file():
        return path / MODEL
    begun = "model" in read_config(path) and not (path / RESULT).is_file()
    if begun or any(path.glob("checkpoint-*.keras")):
        raise CommandError(
            f"the training of {path} was stopped: `tf-capsops train --resume "
            f"{quoted(path)}` goes on"
        )
    held = f", but {runs[-1]} has" if (runs := _within(path)) else ""
    raise CommandError(f"{path} is no run: it has no {MODEL}{held}")


def _newest():
    """Returns the directory in runs/ with the model that was written last."""
    runs = _within(ROOT)
    if not runs:
        raise CommandError(f"no run in {ROOT.resolve()}: give a run's directory")
    return runs[-1]


def _within(directory):
    """Returns the runs in a directory, the newest model last."""
    models = directory.glob(f"*/{MODEL}")
    return [path.parent for path in sorted(models, key=lambda p: p.stat().st_mtime)]


def checkpoints(directory):
    """Returns a run's checkpoints, by the number of epochs trained."""
    paths = directory.glob("checkpoint-*.keras")
    matches = ((re.fullmatch(r"checkpoint-(\d+)\.keras", p.name), p) for p in paths)
    return {int(match[1]): path for match, path in matches if match}


def newest_checkpoint(directory):
    """Returns the number of epochs at a run's last checkpoint, and its file.

    They are 0 and None where there is none.
    """
    return max(checkpoints(directory).items(), default=(0, None))


def checkpoint_state(path):
    """Returns the file of the state that is saved along with a checkpoint's model."""
    return path.with_suffix(".npz")


def remove_checkpoint(path):
    """Removes a checkpoint, and what was saved with it."""
    path.unlink()
    checkpoint_state(path).unlink(missing_ok=True)


def remove_checkpoints(directory):
    """Removes a run's checkpoints, and partly written files that a kill left."""
    left = (PARTIAL_HISTORY, PARTIAL_MODEL, "checkpoint-*.keras", "checkpoint-*.npz")
    for path in [path for name in left for path in directory.glob(name)]:
        path.unlink(missing_ok=True)


def write_json(path, content):
    """Writes `content` to the file `path`, with one entry per line."""
    path.write_text(json.dumps(content, indent=2) + "\n")


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

    The entries are epochs, steps_per_epoch, batch_size, learning_rate, distortion,
    validation and class_weight. Those that `config.json` lacks get usual values.

    Raises:
      CommandError: if it is not JSON of an object, or an entry is of another type.
    """
    usual = {"epochs": 50, "batch_size": 128, "learning_rate": 0.001, "distortion": {}}
    path, config = directory / CONFIG, read_config(directory)
    none = dict.fromkeys(("steps_per_epoch", "validation", "class_weight"))
    found = _checked(path, config, {**usual, **none})
    found["distortion"] = presets.Distortion(**found["distortion"])
    return {**found, "learning_rate": float(found["learning_rate"])}


def steps(samples, batch_size, most=None):
    """Returns how many batches an epoch has: enough for all samples, up to `most`."""
    every = -(-samples // batch_size)
    return min(every, most or every)


_EXECUTION = "seed", "deterministic", "jit", "steps_per_execution", "distribute"


def read_execution(directory, *names):
    """Returns how a run was executed: these entries of `config.json`, or all.

    They are seed, deterministic, jit, steps_per_execution and distribute.

    Raises:
      CommandError: if `config.json` does not say, or an entry is of another type.
    """
    # Only `distribute` may be missing or null: earlier releases did not have it.
    usual = dict.fromkeys(names or _EXECUTION)
    return _checked(directory / CONFIG, read_config(directory), usual)


def read_pictures(directory):
    """Returns how a run reads pictures, as `data.load` takes it; {} if it does not say.

    Raises:
      CommandError: if an entry is of another type.
    """
    path, usual = directory / CONFIG, {"image_size": None, "test_share": None}
    (found,) = _checked(path, read_config(directory), {"pictures": {}}).values()
    return {**found, **_checked(path, found, usual)}


def _checked(path, content, usual):
    """Returns the entries that `usual` names, with its values for missing ones."""
    found = {name: content.get(name, value) for name, value in usual.items()}
    for name, value in found.items():
        form, is_good = _ENTRIES[name]
        if not is_good(value):
            raise CommandError(f"{path}: {name} must be {form}, got {value!r}")
    return found


def _is_int(smallest):
    return lambda value: type(value) is int and value >= smallest


def _is_bool(value):
    return type(value) is bool


def _is_positive(value):
    return type(value) in (int, float) and 0 < value <= sys.float_info.max


def _is_share(value):
    return value is None or (type(value) is float and 0 < value < 1)


def _is_size(value):
    return value is None or (
        isinstance(value, list) and len(value) in (2, 3) and all(map(_is_int(1), value))
    )


def _is_distortion(entries):
    return (
        isinstance(entries, dict)
        and entries.keys() <= {*_AMOUNTS}
        and all(each == 0 or _is_positive(each) for each in entries.values())
    )


_AMOUNTS = [field.name for field in dataclasses.fields(presets.Distortion)]
# Requirements of each entry, in words and as a test.
_ENTRIES = {
    "epochs": ("an integer >= 1", _is_int(1)),
    "steps_per_epoch": (
        "an integer >= 1 or null",
        lambda value: value is None or _is_int(1)(value),
    ),
    "batch_size": ("an integer >= 1", _is_int(1)),
    "learning_rate": ("a positive number", _is_positive),
    "distortion": (f"an object of {', '.join(_AMOUNTS)}, numbers >= 0", _is_distortion),
    "validation": ("between 0 and 1 or null", _is_share),
    "class_weight": ("balanced or null", lambda value: value in (None, "balanced")),
    "seed": ("an integer >= 0", _is_int(0)),
    "deterministic": ("true or false", _is_bool),
    "jit": ("true or false", _is_bool),
    "steps_per_execution": ("an integer >= 1", _is_int(1)),
    "distribute": (
        "mirrored, multiworker or null",
        lambda value: value in (None, "mirrored", "multiworker"),
    ),
    "pictures": ("an object", lambda value: isinstance(value, dict)),
    "image_size": ("two or three integers", _is_size),
    "test_share": ("between 0 and 1 or null", _is_share),
}


def read_history(directory, epochs):
    """Returns the first `epochs` epochs of a run's history.

    Raises:
      CommandError: if there are not so many.
    """
    if not epochs:
        return {}
    path = directory / HISTORY
    history = read_json(path)
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


def remembered_data(directory):
    """Returns the data that a run was trained on, as `--data` takes it.

    Raises:
      CommandError: if its `config.json` does not say, or is not JSON of an object.
    """
    config = directory / CONFIG
    if not config.is_file():
        raise CommandError(f"there is no {config} that names the data: give --data")
    source = read_config(directory).get("data")
    if not isinstance(source, str):
        raise CommandError(f"{config} does not name the data: give --data")
    return source


def check_same(dataset, directory, other, where):
    """Raises a CommandError unless two runs were trained on the same classes.

    Arguments are the data set and the directory of one run, then of the other.
    """
    if other.name != dataset.name:
        raise CommandError(
            f"{where} was trained on {other.name} and {directory} on {dataset.name}: "
            "name one with --data"
        )
    if list(other.class_names) != list(dataset.class_names):
        raise CommandError(f"{where} and {directory} were trained on different classes")


def class_names(directory, classes):
    """Returns what a run calls its classes: their numbers if it does not say.

    Args:
      directory: the run's directory.
      classes: how many classes there are.

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
