# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Attacks a trained classifier: changes test images so that it misreads them."""

import functools
import json

from tf_capsops import options
from tf_capsops.cli import evaluate, runs
from tf_capsops.errors import CommandError, require

_EPSILONS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3)
_STEPS = 40


def add_arguments(parser):
    """Adds the arguments of `tf-capsops attack`."""
    options.add_run(parser, "whose test images to change")
    parser.add_argument(
        "--method",
        choices=("fgsm", "pgd"),
        default="pgd",
        help="one step along the signs of the gradient (Goodfellow et al. 2015), or "
        "many from a random start (Madry et al. 2018) (default: %(default)s)",
    )
    parser.add_argument(
        "--epsilon",
        type=options.share,
        nargs="+",
        default=_EPSILONS,
        help="the most that a pixel may change; pixels are from 0 to 1 (default: "
        f"{' '.join(map(str, _EPSILONS))})",
    )
    parser.add_argument(
        "--steps",
        type=options.positive_int,
        help=f"steps of pgd (default: {_STEPS})",
    )
    parser.add_argument(
        "--step-size",
        type=options.positive_float,
        help="how much a step of pgd changes a pixel (default: 2.5 epsilon / steps)",
    )
    parser.add_argument(
        "--loss",
        choices=("own", "difference"),
        default="own",
        help="what the changes raise: the loss of the run's training, or the highest "
        "wrong score minus the right one, whose gradient does not vanish (default: "
        "%(default)s)",
    )
    parser.add_argument(
        "--from",
        dest="source",
        metavar="RUN_OR_MODEL",
        help="another network that the images are changed against",
    )
    parser.add_argument(
        "--detect",
        action="store_true",
        help="detect changed images by the error of their reconstructions (Frosst et "
        "al. 2018)",
    )
    parser.add_argument(
        "--images",
        type=options.positive_int,
        default=1000,
        help="how many test images to change, from the first on (default: %(default)s)",
    )
    parser.add_argument(
        "--batch-size",
        type=options.positive_int,
        default=100,
        help="images that are changed at a time (default: %(default)s)",
    )
    parser.add_argument(
        "--seed",
        type=options.seed,
        default=0,
        help="seed of pgd's random starts (default: %(default)s)",
    )
    parser.add_argument(
        "--output",
        metavar="DIRECTORY",
        help="where the .json and .png go; they are called attack-METHOD, with --loss "
        "and --from added if given (default: next to the model)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def check(args):
    """Checks what can be checked without TensorFlow; raises a CommandError."""
    require("matplotlib")
    if args.method == "fgsm" and (args.steps or args.step_size):
        raise CommandError("fgsm takes one step of epsilon: no --steps, --step-size")
    for target in (args.model, args.source or args.model):
        runs.find(target)


def run(args):
    """Attacks and reports. Returns the exit status."""
    from tf_capsops.cli import attacks, networks, plots

    model, dataset, directory = networks.open_model(
        args.model, args.data, skip_broken=args.skip_broken
    )
    if dataset.objects > 1:
        raise CommandError(
            f"images of {dataset.name} show {dataset.objects} classes, and an attack "
            "changes those of one"
        )
    if dataset.standardized:
        raise CommandError(
            f"an attack keeps images in 0 to 1, which those of {dataset.name} exceed"
        )
    if args.detect and not networks.redraws(model):
        raise CommandError(
            f"the {model.name} in {directory} reconstructs no images: no --detect"
        )
    output = evaluate.Output(args, dataset, directory)
    models, stem = [model], f"attack-{args.method}"
    if args.loss != "own":
        stem += f"-{args.loss}"
    if args.source:
        source, others_data, where = networks.open_model(
            args.source, args.data, skip_broken=args.skip_broken
        )
        runs.check_same(dataset, directory, others_data, where)
        if others_data.image_shape != dataset.image_shape:
            raise CommandError(
                f"{where} reads images of shape {others_data.image_shape} and "
                f"{directory} of {dataset.image_shape}: they must be the same"
            )
        models.append(source)
        stem += f"-from-{where.resolve().name}"
    epsilons, steps = sorted(set(args.epsilon)), args.steps or _STEPS
    sizes = {e: args.step_size or attacks.step_size(e, steps) for e in epsilons}
    count = min(args.images, len(dataset.test))
    gradient = attacks.gradient_of(models[-1], args.loss)
    lost = _without_gradient(gradient, dataset.test, count, args.batch_size)

    def attack(images, labels, epsilon, number):
        if args.method == "fgsm":
            return attacks.fgsm(gradient, images, labels, epsilon)
        seed = args.seed, number
        options = epsilon, steps, sizes[epsilon], seed
        return attacks.pgd(gradient, images, labels, *options)

    right, distances = attacks.measure(
        models, dataset.test, attack, epsilons, count, args.batch_size
    )
    result = {
        "data": dataset.name,
        "images": count,
        "method": args.method,
        "loss": args.loss,
        "norm": "linf",
        "from": args.source and str(where),
        "without_gradient": lost,
        "epsilon": [0.0, *epsilons],
        "wrong": (count - right[0].sum(axis=-1)).tolist(),
        "accuracy": right[0].mean(axis=-1).tolist(),
    }
    if args.method == "pgd":
        step_sizes = [0.0, *sizes.values()]
        result |= {"steps": steps, "step_size": step_sizes, "seed": args.seed}
    if args.source:
        result["accuracy_of_source"] = right[1].mean(axis=-1).tolist()
    if args.detect:
        fooled = right[0][0] & ~right[0]
        result["fooled"] = fooled.sum(axis=-1).tolist()
        result["detection"] = [
            attacks.detection(distances[0], each[which])
            for each, which in zip(distances, fooled)
        ]
    print(json.dumps(result) if args.json else _text(result, models), flush=True)
    files = {
        f"{stem}.json": lambda path: runs.write_json(path, result),
        f"{stem}.png": functools.partial(plots.attacked, result),
    }
    output.write(files)
    return 0


def _without_gradient(gradient, samples, count, batch_size):
    """Returns the number of images at which no pixel has a gradient."""
    lost = 0
    for first in range(0, count, batch_size):
        images, labels = samples.take(range(first, min(first + batch_size, count)))
        found = gradient(images, labels).numpy()
        lost += int((~found.any(axis=(1, 2, 3))).sum())
    return lost


def _text(result, models):
    """Returns the text that is printed for a result."""
    made = "" if len(models) == 1 else f", made against {result['from']}"
    lines = [f"{result['data']}: {result['images']} test images, {result['method']}"]
    lines[0] += made
    if result["without_gradient"]:
        share = result["without_gradient"] / result["images"]
        lines.append(
            f"the loss has no gradient at {share:.2%} of the images, so it understates "
            "an attack" + (": see --loss difference" if result["loss"] == "own" else "")
        )
    columns = {
        "epsilon": [f"{each:g}" for each in result["epsilon"]],
        "accuracy": [f"{each:.2%}" for each in result["accuracy"]],
    }
    if "accuracy_of_source" in result:
        found = result["accuracy_of_source"]
        columns["there"] = [f"{each:.2%}" for each in found]
    if "detection" in result:
        found = result["detection"]
        columns["fooled"] = [f"{each:,}" for each in result["fooled"]]
        columns["ROC area"] = [f"{each['area']:.3f}" if each else "-" for each in found]
        columns["undetected"] = [
            f"{each['undetected']:.2%}" if each else "-" for each in found
        ]
    for row in zip(*([name, *cells] for name, cells in columns.items())):
        lines.append("".join(f"{cell:>11}" for cell in row))
    return "\n".join(lines)
