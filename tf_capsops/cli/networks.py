# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Finds and loads trained networks."""

import pathlib
import zipfile

import keras

from tf_capsops import _library
from tf_capsops.cli.errors import CommandError, reported
from tf_capsops.models import CapsNet

MODEL = "model.keras"
ROOT = pathlib.Path("runs")


def require_library():
    """Loads the operators.

    Raises:
      CommandError: if the library is missing or was built for another TensorFlow.
    """
    with reported(ImportError):
        _library.load()


def find(target):
    """Returns the path of a network's file.

    Args:
      target: a run's directory, or a `.keras` file; None for the newest run in runs/.

    Raises:
      CommandError: if there is none.
    """
    return _newest() / MODEL if target is None else _model_file(pathlib.Path(target))


def load(path):
    """Loads a network: a `CapsNet`, or any Keras model that classifies images.

    Returns:
      The model; the `(height, width, channels)` of its images, with None for what it
      leaves open; and its number of classes.

    Raises:
      CommandError: if the file holds no such network.
    """
    require_library()
    try:
        model = keras.saving.load_model(path)
    except Exception as error:
        # Damaged files raise whatever the part of Keras that reads them does.
        text = " ".join(str(error).split()) or type(error).__name__
        raise CommandError(f"{path} holds no model that loads: {text}") from error
    return model, *_sizes(model, path)


def require_takes(model, shape, dataset):
    """Raises a CommandError unless a model takes the images of a data set."""
    wanted = tuple(dataset.image_shape)
    if not all(size in (None, given) for size, given in zip(shape, wanted)):
        raise CommandError(
            f"the model takes images of shape {shape}, but those of {dataset.name} "
            f"have {wanted}"
        )
    if None in shape:
        try:
            model.compute_output_spec(keras.KerasTensor((None, *wanted)))
        except ValueError as error:
            raise CommandError(
                f"the model takes images of shape {shape}, but not those of "
                f"{dataset.name}, which have {wanted}: they may be too small for it"
            ) from error


def _sizes(model, path):
    """Returns a model's `(height, width, channels)` and its number of classes.

    Sizes that the model leaves open are None.
    """
    if isinstance(model, CapsNet):
        return tuple(model.image_shape), model.num_classes
    try:
        scores = model.output_shape
        outputs = getattr(model, "output", None)
        if isinstance(outputs, dict):
            scores = outputs["lengths"].shape  # a CapsNet that holds codes
        (_, *image_shape), (_, classes) = model.input_shape, scores
        if len(image_shape) == 3 and isinstance(classes, int):
            return tuple(image_shape), classes
    except (AttributeError, KeyError, TypeError, ValueError):
        pass  # several inputs or outputs, or none yet
    raise CommandError(
        f"{path} holds a {type(model).__name__} that does not classify images"
    )


def _model_file(path):
    """Returns the model's file: `path` itself, or that in a run's directory."""
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
    if any(path.glob("checkpoint-*.keras")):
        raise CommandError(
            f"the training of {path} was stopped: `tf-capsops train --resume {path}` "
            "goes on"
        )
    held = f", but {runs[-1]} has" if (runs := _within(path)) else ""
    raise CommandError(f"{path} is no run: it has no {MODEL}{held}")


def _newest():
    """The directory in runs/ whose model was written last."""
    runs = _within(ROOT)
    if not runs:
        raise CommandError(f"no run in {ROOT.resolve()}: give a run's directory")
    return runs[-1]


def _within(directory):
    """Returns the runs in a directory, the newest model last."""
    models = directory.glob(f"*/{MODEL}")
    return [path.parent for path in sorted(models, key=lambda p: p.stat().st_mtime)]
