# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Checks that slim capsules and networks in PyTorch compute the same as ours.

    python -m benchmarks.check_torch

Of slim capsules, outputs and gradients must agree. Of networks with the same weights,
the losses before and after a step of gradient descent must, so gradients are compared
as well. It ends with status 1 where they do not.
"""

from __future__ import annotations

import argparse
import functools
import json
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator

import keras
import numpy as np
import tensorflow as tf

from tf_capsops.bench import cases, measure, pytorch, training
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
    train = functools.partial(trainee.model.train_on_batch, *batch, return_dict=True)
    return [float(train()["loss"]) for _ in range(2)]


def run_script(name: str, python: str, case: cases.Case, path: pathlib.Path) -> str:
    """Runs a script for a case and a file, and returns what it printed."""
    command = [python, pytorch.SCRIPTS / name, "--device", "CPU", "--values", path]
    command += ["--case", pytorch.described(case)]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{case.name}: {done.stderr.strip().splitlines()[-1]}")
    return done.stdout


def network_agrees(case: cases.Case, path: pathlib.Path, python: str) -> bool:
    """Tells whether the losses of a network agree, and prints them."""
    ours = our_losses(case, path)
    printed = run_script(training.TORCH, python, case, path)
    theirs = json.loads(printed.splitlines()[-1])["losses"]
    print(f"{case.name}: ours {ours}, PyTorch's {theirs}")
    return np.allclose(ours, theirs, rtol=_TOLERANCE) and ours[0] != ours[1]


def op_agrees(
    suite: cases.OpSuite, case: cases.Case, path: pathlib.Path, python: str
) -> bool:
    """Tells whether outputs and gradients of an op agree."""
    random = np.random.default_rng(5)
    drawn = random.normal(size=suite.output_shape(case)), *suite.draw(case, random)
    arrays = [each.astype(np.float32) for each in drawn]
    np.savez(path, *arrays)
    step = measure.training_step(case.bind(suite.ours))
    ours = step(*map(tf.constant, arrays))
    run_script(suite.torch, python, case, path)
    with np.load(path) as file:
        theirs = [file[name] for name in file.files]
    return all(
        np.allclose(our, their, rtol=_TOLERANCE, atol=_TOLERANCE)
        for our, their in zip(ours, theirs, strict=True)
    )


def checks(python: str) -> Iterator[tuple[str, Callable[[pathlib.Path], bool]]]:
    """Yields names, and checks that need the path of a file."""
    for case in CASES:
        if cases.TRAINING_SMOKE in case.uses and case.name in training.IN_TORCH:
            check = functools.partial(network_agrees, case, python=python)
            yield case.name, check
    suite = cases.suites()["CapsuleConvRouting"]
    for case in suite.select(cases.GRADIENT):
        if case.sizes["kernels"] == 1:
            check = functools.partial(op_agrees, suite, case, python=python)
            yield f"{suite.op}, {case.name}", check


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--torch-python", metavar="PYTHON", help="has PyTorch")
    options = parser.parse_args()
    python = pytorch.interpreter(options)
    if python is None:
        parser.error("PyTorch is not installed here: name a --torch-python that has it")
    keras.utils.set_random_seed(1)
    failed = False
    for name, check in checks(python):
        with tempfile.TemporaryDirectory() as folder, tf.device("CPU:0"):
            agrees = check(path=pathlib.Path(folder) / "values.npz")
        failed = failed or not agrees
        print(f"{name}: {'the same' if agrees else 'NOT THE SAME'}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
