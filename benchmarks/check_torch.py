# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Checks that the networks in PyTorch compute the same as ours from the same weights.

    python -m benchmarks.check_torch

The losses before and after a step of gradient descent must agree, so the gradients are
compared as well. It ends with status 1 where they do not.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import keras
import numpy as np
import tensorflow as tf

from tf_capsops.bench import cases, pytorch, training
from tf_capsops.bench.networks import CASES, NETWORKS

_TOLERANCE = 1e-4


def our_losses(case: cases.Case, path: pathlib.Path) -> list[float]:
    """Trains our network for a step, and writes its weights before that to a file."""
    network = NETWORKS[case.name]
    drawn = network.draw(case, case.sizes["batch"], np.random.default_rng(3))
    trainee = network.ours(case)
    random = np.random.default_rng(4)
    for variable in trainee.model.trainable_variables:  # also those that start at zero
        noise = random.normal(0, 0.1, variable.shape)
        variable.assign_add(noise.astype(np.float32))
    np.savez(path, *drawn, *[v.numpy() for v in trainee.model.trainable_variables])
    trainee.model.compile(
        keras.optimizers.SGD(0.1), jit_compile=False, **trainee.compiling
    )
    batch = trainee.arrange(*map(tf.constant, drawn))
    return [float(trainee.model.train_on_batch(*batch)[0]) for _ in range(2)]


def torch_losses(case: cases.Case, path: pathlib.Path, python: str) -> list[float]:
    """Does the same in PyTorch, in a process of its own."""
    script = pytorch.SCRIPTS / training.TORCH
    command = [python, script, "--device", "CPU", "--weights", path]
    command += ["--case", pytorch.described(case)]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{case.name}: {done.stderr.strip().splitlines()[-1]}")
    return json.loads(done.stdout.splitlines()[-1])["losses"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--torch-python", metavar="PYTHON", help="has PyTorch")
    options = parser.parse_args()
    python = pytorch.interpreter(options)
    if python is None:
        parser.error("PyTorch is not installed here: name a --torch-python that has it")
    keras.utils.set_random_seed(1)
    failed = False
    for case in CASES:
        if cases.TRAINING_SMOKE not in case.uses or case.name not in training.IN_TORCH:
            continue
        with tempfile.TemporaryDirectory() as folder, tf.device("CPU:0"):
            path = pathlib.Path(folder) / "weights.npz"
            ours = our_losses(case, path)
            theirs = torch_losses(case, path, python)
        agree = np.allclose(ours, theirs, rtol=_TOLERANCE) and ours[0] != ours[1]
        failed = failed or not agree
        verdict = "the same" if agree else "NOT THE SAME"
        print(f"{case.name}: {verdict}: ours {ours}, PyTorch's {theirs}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
