# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Measures what each network of `tf-capsops train` costs at several sizes of images.

Every network is trained for some steps on noise in a process of its own, on a GPU if
there is one, by the same code as `train`. The outcome goes to docs/measured/NAME.json,
from which tools/measured.py makes the table of docs/which_network.md: which-network-cpu
or, where there is a GPU, which-network-gpu, which that page may show, too.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import resource
import subprocess
import sys
import types
from collections.abc import Sequence

ROOT = pathlib.Path(__file__).resolve().parents[1]
SIZES = (28, 32, 64, 128)
# Networks with the preset that `train` takes for each size, and the paper's own.
NETWORKS = (
    ("capsnet", None),
    ("capsnet", "sabour"),
    ("p_capsnet", None),
    ("matrix_capsnet", None),
    ("efficient_capsnet", None),
    ("convnet", None),
)
_COLUMNS = ["", "pixels", "preset", "parameters", "ms a step", "peak MB"]
_CLASSES = 10
_STEPS, _EPOCHS = 4, 5  # the first epoch traces


def measure(model: str, preset: str | None, size: int, batch_size: int) -> dict:
    """Trains a network for some steps, and returns what that took.

    Returns:
      A dict of the preset's name, "parameters", "seconds" of a step, "peak_bytes" of
      the process or of the GPU, and what `tf_capsops.machine.machine` says.
    """
    import numpy as np
    import tensorflow as tf

    from tf_capsops.cli import callbacks, networks, pipeline, presets, train
    from tf_capsops.data.samples import ArraySamples
    from tf_capsops.machine import machine

    shape = (size, size, 3)
    data = types.SimpleNamespace(
        image_shape=shape, generated=False, objects=1, has_masks=False
    )
    options = types.SimpleNamespace(model=model, preset=preset, recipe=None)
    trained = train.settings(options, data)
    network = networks.make(trained, shape, _CLASSES)
    loss = networks.loss(trained, _STEPS * _EPOCHS)
    network.compile("adam", loss=loss, metrics=["accuracy"])
    random = np.random.default_rng(0)
    count = _STEPS * batch_size
    images = random.random([count, *shape], np.float32)
    samples = ArraySamples(images, random.integers(0, _CLASSES, count))
    distortion = presets.Distortion(**trained["distortion"])
    batches = pipeline.training_batches(samples, batch_size, distortion, 0)
    clock = callbacks.Clock()
    given = {"epochs": _EPOCHS, "steps_per_epoch": _STEPS, "shuffle": False}
    network.fit(batches, **given, verbose=0, callbacks=[clock])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if tf.config.list_physical_devices("GPU"):
        peak = tf.config.experimental.get_memory_info("GPU:0")["peak"]
    return {
        "preset": trained["preset"],
        "parameters": network.count_params(),
        "seconds": min(clock.seconds[1:]) / _STEPS,
        "peak_bytes": peak,
        "machine": machine(),
    }


def row(model: str, size: int, measured: dict) -> list[str]:
    """Returns a row of the table."""
    return [
        model,
        str(size),
        measured["preset"],
        f"{measured['parameters']:,}",
        f"{1e3 * measured['seconds']:,.0f}",
        f"{measured['peak_bytes'] / 1e6:,.0f}",
    ]


def report(measured: Sequence[tuple[str, int, dict]], command: str) -> dict:
    """Returns the content of a file in docs/measured."""
    *_, (_, _, last) = measured
    machine = {key: x for key, x in last["machine"].items() if key != "library"}
    kind = "GPU" if machine["gpus"] else "CPU"
    table = {"op": None, "device": kind, "columns": _COLUMNS}
    table["rows"] = [row(*each) for each in measured]
    name = f"which-network-{kind.lower()}"
    return {"command": command, "tf32": None, **machine, "tables": {name: table}}


def main(argv: Sequence[str] | None = None) -> int:
    """Measures and writes; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", help="of the file in docs/measured, without .json")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--size", type=int, nargs="+", default=SIZES, dest="sizes")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.one:
        model, preset, size = options.one
        measured = measure(model, preset or None, int(size), options.batch_size)
        print(json.dumps(measured))
        return 0
    found = []
    # As a module, so that the source tree is where Python looks for tf_capsops.
    own = [sys.executable, "-m", "tools.network_sizes", options.name, "--batch-size"]
    for model, preset in NETWORKS:
        for size in options.sizes:
            command = [*own, str(options.batch_size), "--one", model, preset or ""]
            done = subprocess.run(
                [*command, str(size)], capture_output=True, text=True, cwd=ROOT
            )
            if done.returncode:
                print(f"{model}, {size} pixels: {done.stderr[-500:]}", file=sys.stderr)
                return 1
            measured = json.loads(done.stdout.splitlines()[-1])
            found.append((model, size, measured))
            print("  ".join(row(*found[-1])), flush=True)
    given = " ".join(sys.argv[1:] if argv is None else argv)
    content = report(found, f"tools/network_sizes.py {given}")
    path = ROOT / f"docs/measured/{options.name}.json"
    path.write_text(json.dumps(content, indent=1) + "\n")
    print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
