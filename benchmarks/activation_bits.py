# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Counts the errors of small capsnets with few bits a weight and an activation.

    python -m benchmarks.activation_bits --output docs/measured/NAME.json

Trains a `capsnet` on `digits` from each seed, quantizes it to 5, 4 and 3 bits a weight,
and rounds its activations to 8 and 4 bits: after the training, with ranges calibrated
on 256 training images, and in the training. 2 minutes a seed on one core.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import keras

from tf_capsops import data, inq
from tf_capsops.machine import machine

_WEIGHTS = 5, 4, 3
_ACTIVATIONS = 8, 4
_CALIBRATION = 256  # images


def _command(name: str, *arguments) -> None:
    command = [sys.executable, "-m", "tf_capsops", name, *map(str, arguments)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _calibrated(path: pathlib.Path, bits: int) -> int:
    """How many test images a model gets wrong, with activations rounded afterwards."""
    digits = data.load("digits")
    model = keras.saving.load_model(path)
    rounded = inq.convert(
        model,
        all_kinds=True,
        activation_bits=bits,
        calibration=digits.x_train[:_CALIBRATION],
    )
    lengths = rounded.predict(digits.x_test, verbose=0)["lengths"]
    return int((lengths.argmax(axis=1) != digits.y_test).sum())


def _of_seed(seed: int, folder: pathlib.Path) -> dict[tuple, int]:
    """How many test images are wrong, by bits of a weight and kind of activations."""
    run = folder / str(seed)
    shared = "--seed", seed, "--output"
    _command(
        "train", "--data", "digits", "--model", "capsnet", "--epochs", 15, *shared, run
    )
    wrong = {(32, "float"): json.loads((run / "result.json").read_text())["wrong"]}
    for bits in _WEIGHTS:
        for activations in (None, *_ACTIVATIONS):
            output = folder / f"{seed}-{bits}-{activations}"
            options = ["--bits", bits, "--epochs-per-step", 1]
            if activations:
                options += ["--activation-bits", activations]
            _command("quantize", run, *options, *shared, output)
            report = json.loads((output / "report.json").read_text())
            name = f"{activations} bits, trained" if activations else "float"
            wrong[bits, name] = report["wrong_with_codes"]
        for activations in _ACTIVATIONS:
            path = folder / f"{seed}-{bits}-None" / "codes.keras"
            found = _calibrated(path, activations)
            wrong[bits, f"{activations} bits, calibrated"] = found
    return wrong


def main() -> int:
    """Writes the table. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5, help="how many networks")
    parser.add_argument("--output", type=pathlib.Path, required=True)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = [_of_seed(seed, pathlib.Path(folder)) for seed in range(args.seeds)]
    rows = []
    names = (
        "float",
        *(
            f"{bits} bits, {how}"
            for bits in _ACTIVATIONS
            for how in ("calibrated", "trained")
        ),
    )
    for bits in _WEIGHTS:
        for name in names:
            wrong = [each[bits, name] for each in found]
            mean = sum(wrong) / len(wrong)
            rows.append([f"{bits}", name, f"{mean:.1f}", ", ".join(map(str, wrong))])
    plain = [each[32, "float"] for each in found]
    table = {
        "op": None,
        "device": "CPU",
        "right": True,
        "columns": ["bits of a weight", "activations", "wrong, mean", "of each seed"],
        "rows": rows,
    }
    run = {
        "command": "python -m benchmarks.activation_bits",
        **machine(),
        "note": f"seeds 0 to {args.seeds - 1}; with float32 weights and activations, "
        f"{sum(plain) / len(plain):.1f} are wrong ({', '.join(map(str, plain))})",
        "tables": {"inq_activations": table},
    }
    args.output.write_text(json.dumps(run, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
