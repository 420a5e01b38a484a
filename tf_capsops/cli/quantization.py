# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Quantizes a trained model: what `tf-capsops quantize` does."""

import dataclasses
import math
import pathlib
import sys
import tempfile
import warnings

import keras

from tf_capsops import data, inq
from tf_capsops.cli import callbacks, evaluation, networks, pipeline, runs, train
from tf_capsops.cli.callbacks import counted
from tf_capsops.errors import INTERRUPTED, CommandError, reported
from tf_capsops.experiments import recipes
from tf_capsops.inq import activations
from tf_capsops.inq.kernels import channel_axes, layers_and_kernels, layers_in
from tf_capsops.layers.coded import holds_codes

CODES = "codes.keras"
REPORT = "report.json"
_CALIBRATION = 256  # images


def run(args):
    """Quantizes, saves and reports. Returns the exit status."""
    model, dataset, source = networks.open_model(
        args.model, args.data, training=True, skip_broken=args.skip_broken
    )
    if dataset.objects > 1:
        raise CommandError(
            f"quantize takes no models that read {dataset.objects} classes from an "
            "image"
        )
    if any(map(holds_codes, layers_in(model))):
        raise CommandError(
            f"{runs.find(args.model)} holds codes already: give the {runs.MODEL} that "
            "they were made from"
        )
    if not model.compiled:
        raise CommandError(
            f"the {model.name} in {source} was saved without its loss: compile it "
            "before you save it"
        )
    fractions = args.steps or recipes.quantization_steps(
        args.bits, args.straight_through
    )
    trained = runs.read_training(source)
    epochs_per_step = args.epochs_per_step or recipes.epochs_per_step(
        trained["epochs"], args.straight_through
    )
    learning_rate = args.learning_rate or trained["learning_rate"]
    batch_size = args.batch_size or trained["batch_size"]
    distortion = trained["distortion"]
    with reported(ValueError):
        steps = inq.IncrementalQuantization(
            *(model, args.bits, fractions, epochs_per_step),
            **{name: getattr(args, name) for name in recipes.QUANTIZED_WITH},
        )
    with reported(Exception):  # whatever a model of somebody else's may raise
        rounded, float_bytes = rehearsed(model, steps, args.routing_bits, dataset.train)
    share = trained["validation"]
    dataset, part = pipeline.held_out(dataset, share), pipeline.part(share)
    batches = runs.steps(len(dataset.train), batch_size, trained["steps_per_epoch"])
    epochs = epochs_per_step * len(steps.steps)
    deterministic = args.seed is not None and not args.nondeterministic
    repeatable = networks.seed_everything(args.seed, deterministic)
    recompile(model, learning_rate, epochs_per_step * batches)
    config = {
        "data": data.absolute(args.data or runs.remembered_data(source)),
        **_recipe(source, args, repeatable["seed"]),
        "source": str(source.resolve()),
        "bits": args.bits,
        **{name: getattr(args, name) for name in recipes.QUANTIZED_WITH},
        "routing_bits": args.routing_bits,
        "steps": fractions,
        "epochs_per_step": epochs_per_step,
        "epochs": epochs,
        "batch_size": batch_size,
        "steps_per_epoch": trained["steps_per_epoch"],
        "learning_rate": learning_rate,
        "distortion": distortion.entries,
        "validation": share,
        "class_weight": trained["class_weight"],
        **networks.described(dataset),
        **repeatable,
    }
    name = config["recipe"]
    config["changed"] = name and train.changes(name, config)
    images = pipeline.training_batches(
        *(dataset.train, batch_size, distortion),
        *(repeatable["seed"], trained["class_weight"]),
        num_classes=dataset.num_classes,
    )
    wanted = args.output or runs.ROOT / f"quantize-{dataset.name}"
    directory = runs.create(wanted)
    with runs.in_use(directory):
        runs.write_json(directory / runs.CONFIG, config)
        before = Accuracy.of(model, dataset)
        at_once = Accuracy.of(rounded, dataset)
        del rounded  # and the memory that its weights take
        print(
            f"{dataset.name}: {len(dataset.train)} images for training, "
            f"{len(dataset.test)} for {pipeline.purpose(share)}\n"
            f"{model.name} to {_words(steps, args.routing_bits)}: "
            f"{counted(len(steps.steps), 'step')} of "
            f"{counted(epochs_per_step, 'epoch')} of {counted(batches, 'batch')}\n"
            f"{runs.where(directory, wanted)}\n"
            f"before: {part} accuracy {before}\n"
            f"all weights quantized at once, without training: {at_once}",
            flush=True,
        )
        log = StepLog(steps, dataset, sys.stdout.isatty())
        clock, history = callbacks.Clock(), keras.callbacks.History()
        with callbacks.Hold() as hold:
            try:
                with reported(ValueError):
                    seconds, stopped = hold.fit(
                        model,
                        images,
                        epochs=epochs,
                        steps=batches,
                        # Used only to show the progress.
                        validation_data=dataset.test.batches(256),
                        callbacks=[history, clock, steps, log],
                        part=part,
                    )
            finally:
                _keep(directory, model, history)
            if stopped:
                fixed = (0, *steps.steps)[steps.steps_taken]
                print(
                    f"{callbacks.where(history.history, epochs, seconds)}, with "
                    f"{fixed:.1%} of the weights quantized; these files stay, but "
                    "quantize cannot go on from them"
                )
                return INTERRUPTED
            report = {
                "data": dataset.name,
                "part": part,
                "images": len(dataset.test),
                "bits": args.bits,
                "activation_bits": args.activation_bits,
                "routing_bits": args.routing_bits,
                "seconds": seconds,
                "wrong_before": before.wrong,
                "wrong_quantized_at_once": at_once.wrong,
                "steps": log.records,
                "bytes_of_file": {"float": float_bytes},
            }
            try:
                _finish(model, dataset, directory, steps, clock, before, report)
            except Exception as error:  # of whatever kind: the training is not lost
                text = " ".join(str(error).split()) or type(error).__name__
                raise CommandError(
                    f"the quantized network is in {directory / runs.MODEL}, but "
                    f"converting and measuring it failed: {text}"
                ) from error
    return 0


def _keep(directory, model, history):
    """Saves what has been trained, and says where it is."""
    with reported(OSError):
        model.save(directory / runs.MODEL)
        runs.write_json(directory / runs.HISTORY, history.history)
    print(
        f"\nwrote {directory}: {runs.MODEL}, {runs.CONFIG}, {runs.HISTORY}", flush=True
    )


def _recipe(source, args, seed):
    """Names the recipe that quantizes such a run to so many bits, None without one."""
    other = {"recipe": None, "trained": None}
    given = source if args.model is None else pathlib.Path(args.model)
    if not (given.is_dir() or given.name == runs.MODEL):
        return other  # another model of the run
    if args.routing_bits:
        return other
    own = runs.read_config(source)
    if args.data and data.absolute(args.data) != own.get("data"):
        return other
    options = {name: getattr(args, name) for name in recipes.QUANTIZED_WITH}
    name = recipes.quantizing(own.get("recipe"), args.bits, options)
    finished = (source / runs.RESULT).is_file()
    if name is None or not finished or own.get("seed") != seed:
        return other
    fixed = train.settings_of_recipe(name)["trained"]
    return {"recipe": name, "trained": {key: own.get(key) for key in fixed}}


def _finish(model, dataset, directory, steps, clock, before, report):
    """Converts the quantized model, measures, adds to the report, and prints it."""
    bare = bare_copy(model)  # computes in floating point, as the file does
    after = Accuracy.of(bare, dataset)
    activations.move(model, bare)
    routing_bits = report["routing_bits"]
    layers = inq.report(bare, **_conversion(steps), routing_bits=routing_bits)
    with_codes = converted(bare, steps)
    if routing_bits:
        images = _calibration_images(dataset.train)
        with_codes = _routing_in_few_bits(with_codes, routing_bits, images)
    with_codes.save(directory / CODES)
    counts = [each.mask.size for each in steps.kernels]
    report["wrong_after"] = after.wrong
    coded = Accuracy.of(with_codes, dataset)
    report["wrong_with_codes"] = coded.wrong
    report["weights"] = sum(counts)
    report["bytes_of_weights"] = {
        "float32": 4 * sum(counts),
        "packed": sum(-(-count * steps.bits // 8) for count in counts),
    }
    report["bytes_in_memory"] = {
        "float": _bytes_in_memory(bare),
        "codes": _bytes_in_memory(with_codes),
    }
    for key, name in {"model": runs.MODEL, "codes": CODES}.items():
        report["bytes_of_file"][key] = (directory / name).stat().st_size
    report["layers"] = [dataclasses.asdict(each) for each in layers]
    runs.write_json(directory / REPORT, report)
    part = report["part"]
    accuracy = {"part": part, "images": after.images, "wrong": after.wrong}
    accuracy["wrong_with_codes"] = coded.wrong
    callbacks.write_result(directory, model, clock, accuracy)
    print(
        f"quantized in {report['seconds']:.0f} s\n"
        f"after: {part} accuracy {after}; it was {before}\n"
        f"with codes, {_words(steps, routing_bits)}: {coded}\n"
        f"{layers}\n"
        f"{sizes(report)}\n"
        f"wrote {directory}: {CODES}, {REPORT}, {runs.RESULT}"
    )


@dataclasses.dataclass(frozen=True)
class Accuracy:
    """The number of images, not trained on, that a model gets wrong."""

    wrong: int
    images: int

    @classmethod
    def of(cls, model, dataset):
        labels = evaluation.scores(model, dataset.test).argmax(axis=1)
        return cls(int((labels != dataset.test.labels).sum()), len(labels))

    def __str__(self):
        return f"{1 - self.wrong / self.images:.2%} ({self.wrong} wrong)"


class StepLog(keras.callbacks.Callback):
    """Prints and keeps the accuracy at each step, before training goes on.

    In the list of callbacks it must follow the `IncrementalQuantization`.

    Attributes:
      records: for each step a dict of the fraction and of how many images were
        wrong, right after the step and before the next one.
    """

    def __init__(self, steps, dataset, interactive):
        super().__init__()
        self.records = []
        self._steps = steps
        self._dataset = dataset
        self._interactive = interactive

    def on_epoch_begin(self, epoch, logs=None):
        if self._steps.steps_taken == len(self.records):
            return
        wrong = Accuracy.of(self.model, self._dataset)
        fraction = self._steps.steps[len(self.records)]
        self.records.append({"fraction": fraction, "wrong": wrong.wrong})
        if self._interactive and epoch > 0:
            print()  # the line of the progress bar is not at its end
        step, steps = len(self.records), len(self._steps.steps)
        print(
            f"step {step} of {steps}, {fraction:.1%} of the weights quantized: {wrong}",
            flush=True,
        )

    def on_epoch_end(self, epoch, logs=None):
        if (epoch + 1) % self._steps.epochs_per_step:
            return
        wrong = Accuracy.of(self.model, self._dataset)
        self.records[-1]["wrong_after_training"] = wrong.wrong


def recompile(model, learning_rate, steps):
    """Compiles a model as it was, for a cosine of the learning rate in every step."""
    schedule = keras.optimizers.schedules.CosineDecayRestarts(
        learning_rate, steps, t_mul=1.0
    )
    optimizer = keras.saving.serialize_keras_object(keras.optimizers.Adam(schedule))
    model.compile_from_config({**model.get_compile_config(), "optimizer": optimizer})


def rehearsed(model, steps, routing_bits, samples):
    """Does with a copy what is done after training, to see whether it can be done.

    Returns:
      The copy, without a loss, with all weights quantized at once, and activations and
      routing rounded if they will be; and the bytes of its file in floating point.

    Raises:
      ValueError: `tf_capsops.inq.convert` refuses the model, or a weight is not finite.
    """
    copy = bare_copy(model)
    for layer, kernel in layers_and_kernels(copy):
        axes = channel_axes(layer, kernel) if steps.per_channel else ()
        kernel.assign(inq.quantize(kernel, steps.bits, axes=axes))
    images = None
    if steps.activation_bits or routing_bits:
        images = _calibration_images(samples)
    with_codes = converted(copy, steps, images if steps.activation_bits else None)
    if routing_bits:
        with_codes = _routing_in_few_bits(with_codes, routing_bits, images)
    file_size(with_codes)
    return copy if images is None else with_codes, file_size(copy)


def _calibration_images(samples):
    images, _ = next(iter(samples.batches(_CALIBRATION)))
    return images


def _routing_in_few_bits(model, bits, images):
    """A copy of a model with codes; its activations keep their ranges."""
    options = {"all_kinds": True, "routing_bits": bits}
    return _without_warning(model, **options, calibration=images)


def converted(model, steps, calibration=None):
    """What `tf_capsops.inq.convert` returns for a training."""
    return _without_warning(model, **_conversion(steps), calibration=calibration)


def _without_warning(model, **options):
    """Calls `tf_capsops.inq.convert`.

    The command prints the table of layers, which says the same as its warning.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "convert: ")
        return inq.convert(model, **options)


def _conversion(steps):
    """The arguments of `convert` and `report` that go with a training."""
    names = "bits", "per_channel", "activation_bits"
    return {"all_kinds": True, **{name: getattr(steps, name) for name in names}}


def _words(steps, routing_bits):
    """The bits of all numbers, as in `5 bits, activations to 8, routing to 4`."""
    words = [f"{steps.bits} bits"]
    rounded = {"activations": steps.activation_bits, "routing": routing_bits}
    words += [f"{name} to {bits}" for name, bits in rounded.items() if bits]
    return ", ".join(words)


def bare_copy(model):
    """A copy without loss and optimizer, whose state would be saved too."""
    copy = type(model).from_config(model.get_config())
    copy.set_weights(model.get_weights())
    return copy


def file_size(model):
    """The bytes of the model's `.keras` file."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "model.keras"
        model.save(path)
        return path.stat().st_size


def _bytes_in_memory(model):
    return sum(math.prod(v.shape) * v.value.dtype.size for v in model.weights)


def sizes(report):
    """Four lines about the sizes in a report."""
    weights, files = report["bytes_of_weights"], report["bytes_of_file"]
    memory = report["bytes_in_memory"]
    return (
        f"{report['weights']:,} quantized weights: {weights['float32']:,} bytes as "
        f"float32, {weights['packed']:,} packed ({report['bits']} bits each)\n"
        f"model.keras: {files['model']:,} bytes with the optimizer's state, "
        f"{files['float']:,} without it\n"
        f"codes.keras: {files['codes']:,} bytes without an optimizer, with codes: "
        f"{files['codes'] / files['float']:.1%} of that\n"
        f"all weights in memory: {memory['codes']:,} bytes with codes, "
        f"{memory['float']:,} without"
    )
