# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Counts the errors of small capsnets with few bits a weight and an activation.

    python -m benchmarks.activation_bits --output docs/measured/NAME.json
    python -m benchmarks.activation_bits --of routing --output docs/measured/NAME.json

Trains a `capsnet` on `digits` from each seed, quantizes it to 5, 4 and 3 bits a weight,
and rounds its activations to 8 and 4 bits: after the training, with ranges calibrated
on 256 training images, and in the training. 2 minutes a seed on one core.

With `--of routing`, weights have 5 bits and activations 8, and routing is rounded to 8
bits and fewer, with ranges of the same images. A second table times the `DigitCaps` of
a `capsnet` for 28x28 pixels.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time

import keras
import numpy as np
import tensorflow as tf

from tf_capsops import data, inq, layers
from tf_capsops.machine import machine

_WEIGHTS = 5, 4, 3
_ACTIVATIONS = 8, 4
_ROUTING = 8, 6, 5, 4, 3, 2
_CALIBRATION = 256  # images


def _command(name: str, *arguments) -> None:
    command = [sys.executable, "-m", "tf_capsops", name, *map(str, arguments)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _calibrated(path: pathlib.Path, **bits: int) -> int:
    """How many test images a model gets wrong that is rounded afterwards."""
    digits = data.load("digits")
    model = keras.saving.load_model(path)
    rounded = inq.convert(
        model,
        all_kinds=True,
        **bits,
        calibration=digits.x_train[:_CALIBRATION],
    )
    lengths = rounded.predict(digits.x_test, verbose=0)["lengths"]
    return int((lengths.argmax(axis=1) != digits.y_test).sum())


def _trained(seed: int, folder: pathlib.Path) -> tuple[pathlib.Path, int]:
    """The run of a network, and how many test images it gets wrong."""
    run = folder / str(seed)
    options = "--epochs", 15, "--seed", seed, "--output", run
    _command("train", "--data", "digits", "--model", "capsnet", *options)
    return run, json.loads((run / "result.json").read_text())["wrong"]


def _quantized(
    run: pathlib.Path, bits: int, activations: int | None
) -> tuple[pathlib.Path, int]:
    """The file with codes of a network, and how many test images are wrong."""
    output = run.with_name(f"{run.name}-{bits}-{activations}")
    options = ["--bits", bits, "--epochs-per-step", 1]
    if activations:
        options += ["--activation-bits", activations]
    _command("quantize", run, *options, "--seed", run.name, "--output", output)
    report = json.loads((output / "report.json").read_text())
    return output / "codes.keras", report["wrong_with_codes"]


def _of_seed(seed: int, folder: pathlib.Path) -> dict[tuple, int]:
    """How many test images are wrong, by bits of a weight and kind of activations."""
    run, wrong_in_float = _trained(seed, folder)
    wrong = {(32, "float"): wrong_in_float}
    for bits in _WEIGHTS:
        codes, wrong[bits, "float"] = _quantized(run, bits, None)
        for activations in _ACTIVATIONS:
            name = f"{activations} bits, "
            _, wrong[bits, f"{name}trained"] = _quantized(run, bits, activations)
            found = _calibrated(codes, activation_bits=activations)
            wrong[bits, f"{name}calibrated"] = found
    return wrong


def _routing_of_seed(seed: int, folder: pathlib.Path) -> dict[tuple, int]:
    """How many test images are wrong, by bits of routing."""
    run, wrong_in_float = _trained(seed, folder)
    wrong = {(32, "float"): wrong_in_float}
    codes, wrong[5, "float"] = _quantized(run, 5, 8)
    for bits in _ROUTING:
        wrong[5, f"{bits} bits"] = _calibrated(codes, routing_bits=bits)
    return wrong


def _routing_times(rounds: int = 51) -> dict:
    """A table of the milliseconds that a `DigitCaps` takes."""
    rows = []
    for batch in (1, 32):
        capsules = tf.random.stateless_normal([batch, 1152, 8], (1, 2))
        calls = []
        for bits in (None, 4):
            layer = layers.DigitCaps(10, 16, routing_bits=bits)
            layer(capsules)
            if bits:
                with layer.calibrating():
                    layer(capsules)
            calls += [tf.function(layer), tf.function(layer, jit_compile=True)]
        samples = []
        for _ in range(rounds + 5):
            samples.append([])
            for call in calls:
                start = time.perf_counter()
                call(capsules).numpy()
                samples[-1].append(1000 * (time.perf_counter() - start))
        medians = np.median(samples[5:], axis=0)
        rows.append([f"{batch}", *(f"{each:.3g}" for each in medians)])
    heads = "float", "float, XLA", "4 bits", "4 bits, XLA"
    return _table(rows, "ms, by images", *heads)


def _order(kind: tuple[int, str]) -> tuple:
    """Sorts kinds of rows: more bits first, floating point before any."""
    weight, name = kind
    is_float = name == "float"
    return -weight, not is_float, 0 if is_float else -int(name.split()[0]), name


def _counts(wrong: list[int]) -> tuple[str, str]:
    return f"{sum(wrong) / len(wrong):.1f}", ", ".join(map(str, wrong))


def _table(rows: list[list[str]], *columns: str) -> dict:
    return {
        **{"op": None, "device": "CPU", "right": True},
        **{"columns": [*columns], "rows": rows},
    }


def main() -> int:
    """Writes the table. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5, help="how many networks")
    parser.add_argument("--output", type=pathlib.Path, required=True)
    parser.add_argument(
        "--of", choices=("activations", "routing"), default="activations"
    )
    args = parser.parse_args()
    count = _of_seed if args.of == "activations" else _routing_of_seed
    with tempfile.TemporaryDirectory() as folder:
        found = [count(seed, pathlib.Path(folder)) for seed in range(args.seeds)]
    heads = "wrong, mean", "of each seed"
    plain = [each.pop((32, "float")) for each in found]
    kinds = sorted(found[0], key=_order)
    command = "python -m benchmarks.activation_bits"
    rows = [
        [f"{bits}", name, *_counts([each[bits, name] for each in found])]
        for bits, name in kinds
    ]
    if args.of == "activations":
        table = _table(rows, "bits of a weight", "activations", *heads)
        tables = {"inq_activations": table}
    else:
        command += " --of routing"
        rows = [row[1:] for row in rows]
        rows.insert(0, ["float, as weights and activations", *_counts(plain)])
        table = _table(rows, "routing", *heads)
        tables = {"inq_routing": table, "inq_routing_times": _routing_times()}
    run = {"command": command, **machine(), "tables": tables}
    if args.of == "activations":
        mean, counts = _counts(plain)
        run["note"] = (
            f"seeds 0 to {args.seeds - 1}; with float32 weights and activations, "
            f"{mean} are wrong ({counts})"
        )
    args.output.write_text(json.dumps(run, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
