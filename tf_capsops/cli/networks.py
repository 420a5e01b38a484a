# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Makes networks, loads trained ones, and opens the data to use them on."""

import sys
import warnings

import keras
import tensorflow as tf

from tf_capsops import _library, data, losses, metrics, models, routing
from tf_capsops._version import __version__
from tf_capsops.cli import image_sizes, runs
from tf_capsops.data import pairs, sources
from tf_capsops.errors import CommandError, reported, require
from tf_capsops.models.autoencoder import Autoencoder
from tf_capsops.models.segmenter import Segmenter
from tf_capsops.models.unet import UNet

# Inverse temperature of EM routing for a network of few capsules. With the paper's
# 0.01, its activations are so close to each other that the spread loss never falls.
# The paper's own network cannot have this value: all its activations would be 1 from
# the start, and its loss would not fall either.
_FINAL_LAMBDA_OF_SMALL = 0.05

_READS_MASKS = (
    "the model reads masks, and {} has none: give a folder with images/ and masks/, or "
    "an .npz file with masks"
)
_READS_CLASSES = "the model reads a class for each image, and {} has masks"

RULES = {
    "em": routing.EM,
    "vb": routing.VB,
    "dynamic": routing.Dynamic,
    "inverted-attention": routing.InvertedAttention,
    "self-attention": routing.SelfAttention,
}


def rule(name, iterations, preset, gradient):
    """Returns a routing rule for a preset of matrix_capsnet.

    `iterations` is 2 if it is None or 0. `gradient` is an argument of `EM` alone, and
    `"all"` if it is None.

    Raises:
      CommandError: if the rule does not iterate, and a number is given.
    """
    if name == "em":
        scale = {"final_lambda": _FINAL_LAMBDA_OF_SMALL} if preset == "small" else {}
        return routing.EM(iterations or 2, gradient=gradient or "all", **scale)
    if name != "self-attention":
        return RULES[name](iterations or 2)
    if iterations:
        raise CommandError("self-attention does not iterate: no --routing-iterations")
    return routing.SelfAttention()


def make(trained, image_shape, num_classes):
    """Returns the network that `train.settings` describes, not compiled.

    Raises:
      ValueError: if the images do not suit it.
      CommandError: if its rule does not suit the options.
    """
    options = dict(trained["network"])
    if trained["routing"]:
        options["routing"] = rule(
            trained["routing"],
            trained["routing_iterations"],
            trained["preset"],
            trained["routing_gradient"],
        )
    precision = trained["mixed_precision"]
    dtype = precision and f"mixed_{precision}"
    build = getattr(models, trained["model"])
    return build(image_shape, num_classes, dtype=dtype, **options)


def compile_for(model, trained, steps):
    """Compiles a network for a training of `steps` batches.

    The loss is the one that suits its scores; the learning rate follows `schedule`.

    Args:
      model: as `make` returns it.
      trained: what `train.settings` returned.
      steps: batches of all epochs together.
    """
    rate = schedule(trained["learning_rate"], steps)
    own = ["accuracy"]
    if segments(model):
        own.append(metrics.Dice(model.output_shape[-1]))
    model.compile(keras.optimizers.Adam(rate), loss=loss(trained, steps), metrics=own)


def loss(trained, steps):
    """Returns the loss that suits the scores of a network, in a training of `steps`."""
    if trained["routing"] in ("em", "vb"):
        margin = trained.get("margin", 0.9)
        return losses.SpreadLoss(max(1, steps // 2), end=margin)
    if (
        trained["model"] in ("convnet", "ucaps3d", "unet")
        or trained["routing"] == "inverted-attention"
    ):
        return keras.losses.SparseCategoricalCrossentropy()
    return losses.MarginLoss()


def schedule(learning_rate, steps):
    """Returns a rate that rises for a twentieth of the steps, then falls to zero."""
    warmup = max(1, steps // 20)
    return keras.optimizers.schedules.CosineDecay(
        0.0,
        decay_steps=max(1, steps - warmup),
        warmup_target=learning_rate,
        warmup_steps=warmup,
    )


def use_xla(model, jit, seed):
    """Switches XLA "on" or "off", unless "auto" leaves that to Keras."""
    wanted = jit == "on"
    if jit == "auto":
        if model.distribute_strategy.num_replicas_in_sync == 1:
            return
        # Keras uses no XLA with replicas, because it would compile them together.
        wanted = bool(tf.config.list_physical_devices("GPU"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras goes on without XLA
        model.jit_compile = wanted
    if jit == "on" and not model.jit_compile:
        text = f"Keras does not compile this {model.name} with XLA"
        if seed is not None:
            text = "Keras does not compile with XLA where --seed makes it deterministic"
        raise CommandError(f"{text}: no --jit on")


def require_library():
    """Loads the operators.

    Raises:
      CommandError: if the library is missing or was built for another TensorFlow.
    """
    with reported(ImportError):
        _library.load()


def seed_everything(seed, deterministic=None):
    """Seeds all random generators, and returns entries of `config.json` about it.

    Args:
      seed: an int; None means 0.
      deterministic: whether to select deterministic kernels instead of the fastest
        ones; by default if there is a seed.
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


def load(path):
    """Loads a network: an `Autoencoder`, one that segments, or one that classifies.

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
        # A damaged file may raise anything, depending on what Keras finds in it.
        text = " ".join(str(error).split()) or type(error).__name__
        raise CommandError(f"{path} holds no model that loads: {text}") from error
    return model, *_sizes(model, path)


def segments(model):
    """Whether a network gives scores for each pixel."""
    return isinstance(model, (Segmenter, UNet))


def class_names(model, directory, classes):
    """Returns the names of a network's classes; `load` returns their number."""
    alone = segments(model) and model.output_shape[-1] == 1
    if alone and not runs.read_config(directory).get("classes"):
        return ["0", "255"]  # black background and white objects
    return runs.class_names(directory, classes)


def _sizes(model, path):
    """Returns a model's `(height, width, channels)` and its number of classes.

    Sizes that the model leaves open are None. An object in front of a background makes
    two classes.
    """
    if isinstance(model, Autoencoder):
        return tuple(model.image_shape), model.num_classes
    if segments(model):
        return tuple(model.input_shape[1:]), max(2, model.output_shape[-1])
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


def open_data(source, **options):
    """Loads a data set, and prints warnings.

    Args:
      source: as `data.load` takes it.
      **options: options of `data.load`.

    Raises:
      CommandError: if that fails.
    """
    if source.rpartition(":")[2] == "digits":
        require("sklearn")
    if sys.stderr.isatty() and data.is_pictures(source):
        print(f"looking at all pictures in {source}", file=sys.stderr, flush=True)
    errors = ValueError, OSError, ImportError
    with reported(*errors), warnings.catch_warnings(record=True) as caught:
        dataset = data.load(source, **options)
    for each in caught:
        print(f"warning: {each.message}", file=sys.stderr)
    return dataset


def described(dataset):
    """Returns what `config.json` keeps of a data set.

    The entries say how pictures in folders are read, which size generated images with
    masks have, what the classes of folders and of masks are called, and whether images
    are standardized.
    """
    if not isinstance(dataset, data.Pictures):
        described = {"standardized": True} if dataset.standardized else {}
        if dataset.has_masks:
            described["classes"] = dataset.class_names
        if dataset.has_masks and dataset.generated:
            described["pictures"] = {"image_size": list(dataset.image_shape[-3:-1])}
        return described
    pictures = {**dataset.options, "skipped": len(dataset.skipped)}
    return {"classes": dataset.class_names, "pictures": pictures}


def redraws(model):
    """Returns whether a model reconstructs images; one that holds codes may do so."""
    outputs = getattr(model, "output", None)
    with_codes = isinstance(outputs, dict) and "reconstruction" in outputs
    return with_codes or isinstance(model, Autoencoder)


def open_model(
    target, source=None, training=False, skip_broken=False, takes_masks=False
):
    """Loads the model of a run and the data to use it on.

    The model is an `Autoencoder`, or any Keras model from images `[B, H, W, C]` to
    scores `[B, classes]`; with `takes_masks` also a network that segments.

    Args:
      target: a run's directory, or a `.keras` file; None for the newest run in runs/.
      source: what `--data` gave; None for the data the run was trained on.
      training: whether the training images are needed, too.
      skip_broken: whether to leave out files that are no pictures.
      takes_masks: whether it may be a network that segments.

    Returns:
      The model, the data set, and the directory of the model.

    Raises:
      CommandError: if model or data are missing, or do not fit each other.
    """
    path = runs.find(target)
    require_library()
    directory = path.parent
    source = source or runs.remembered_data(directory)
    model, shape, classes = load(path)
    if segments(model) and not takes_masks:
        others = "; tf_capsops.inq quantizes it in Python" if training else ""
        raise CommandError(
            f"{path} holds a network that segments, which train, evaluate, predict and "
            f"reconstruct --routing take{others}"
        )
    options = {"skip_broken": True} if skip_broken else {}
    if data.is_pictures(source):
        options = {**_options(directory, source, shape, classes), **options}
        options["training"] = training
    elif sources.has_size(source) and None not in shape[:-1]:
        options["image_size"] = shape[-3:-1]
    if segments(model) and data.is_pictures(source) and not pairs.are_in(source):
        with reported(ValueError):
            pairs.check(source)
        raise CommandError(_READS_MASKS.format(source))
    dataset = open_data(source, **options)
    if dataset.has_masks != segments(model):
        wanted = _READS_MASKS if segments(model) else _READS_CLASSES
        raise CommandError(wanted.format(dataset.name))
    _warn_of_names(dataset, directory)
    warn_of_range(path, f"{dataset.name} has", dataset.standardized)
    image_sizes.require_takes(model, shape, dataset)
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


def _warn_of_names(dataset, directory):
    """Warns if classes of pictures have names and those of the network have none."""
    if not isinstance(dataset, data.Pictures) or dataset.has_masks:
        return
    names = dataset.class_names
    numbers = [str(number) for number in range(len(names))]
    if names != numbers and not runs.read_config(directory).get("classes"):
        print(
            f"warning: {directory} does not say what its classes are called, and "
            f"takes {names[0]} for class 0, {names[1]} for class 1, and so on",
            file=sys.stderr,
        )


def warn_of_range(path, given, standardized):
    """Warns if only the images that a network was trained on are standardized, or not.

    Args:
      path: the network's file; the run that it belongs to says how it was trained.
      given: the beginning of a clause about the images that it is used on.
      standardized: whether these are standardized.
    """
    config = runs.read_config(path.parent)
    trained = bool(config.get("standardized"))
    if config.get("data") and trained != standardized:
        kinds = "images from 0 to 1", "standardized images"
        print(
            f"warning: {path} was trained on {kinds[trained]}, and {given} "
            f"{kinds[standardized]}",
            file=sys.stderr,
        )


def _options(directory, source, shape, classes):
    """Returns the options of `data.load` with which a network reads pictures.

    If these are the pictures that it was trained on, the test pictures stay the same.
    """
    config, kept = runs.read_config(directory), runs.read_pictures(directory)
    options = {}
    if len(shape) == 3:
        options["color_mode"] = {1: "grayscale", 3: "rgb"}.get(shape[-1])
    if None not in shape[:-1]:
        options["image_size"] = shape[:-1]
    elif kept.get("image_size"):
        options["image_size"] = kept["image_size"]
    if config.get("data") == data.absolute(source):
        options["test_share"] = kept.get("test_share")
        options["skip_broken"] = kept.get("skip_broken", False)
    if config.get("classes"):
        options["class_names"] = runs.class_names(directory, classes)
    return options
