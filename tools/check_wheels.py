# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Installs wheels as a user would, and runs an op with each.

`python tools/check_wheels.py dist/*.whl` makes an environment for each Python that
TensorFlow supports and that is found here, beside `tensorflow` and beside
`tensorflow-cpu`. It installs one wheel after the other there and runs an op and the
command in an empty folder, where no source tree is near.
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

VERSIONS = range(10, 14)  # of Python 3
EXTRAS = "tensorflow", "cpu"
PROGRAM = """
import tensorflow as tf, tf_capsops
vectors, matrices = tf.ones([1, 2, 3]), tf.ones([2, 4, 5, 3])
bare = tf.load_op_library(tf_capsops.library_path())
for op in bare.capsule_prediction, tf_capsops.capsule_prediction:
    tf.debugging.assert_equal(op(vectors, matrices), tf.fill([1, 2, 4, 5], 3.0))
"""


def _pythons():
    """Names the interpreters that are here and can make environments."""
    names = [f"python3.{minor}" for minor in VERSIONS]
    return [name for name in names if shutil.which(name) and _makes_environments(name)]


def _makes_environments(python):
    command = [python, "-c", "import ensurepip, venv"]
    return subprocess.run(command, stderr=subprocess.DEVNULL).returncode == 0


def _run(*command, folder):
    # What this program runs with must not reach the environment of a user.
    kept = {k: v for k, v in os.environ.items() if not k.startswith("TF_CAPSOPS")}
    kept.pop("PYTHONPATH", None)
    subprocess.run([str(each) for each in command], check=True, cwd=folder, env=kept)


def _check(wheels, python, extra):
    with tempfile.TemporaryDirectory() as folder:
        _run(python, "-m", "venv", "environment", folder=folder)
        bin = pathlib.Path(folder) / "environment/bin"
        pip = bin / "python", "-m", "pip", "install", "--quiet"
        pip = *pip, "--disable-pip-version-check"
        _run(*pip, f"{wheels[0]}[{extra}]", folder=folder)
        for wheel in wheels:
            _run(*pip, "--force-reinstall", "--no-deps", wheel, folder=folder)
            print(f"{wheel.name} with {pathlib.Path(python).name} and {extra}")
            _run(bin / "python", "-c", PROGRAM, folder=folder)
            _run(bin / "tf-capsops", "info", folder=folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("wheels", nargs="+", type=lambda w: pathlib.Path(w).resolve())
    parser.add_argument("--python", nargs="+", help="interpreters (default: all)")
    parser.add_argument(
        "--beside",
        nargs="+",
        choices=EXTRAS,
        default=EXTRAS,
        help="extras that bring TensorFlow (default: all)",
    )
    args = parser.parse_args()
    pythons = args.python or _pythons()
    if not pythons:
        sys.exit("No Python 3.10 to 3.13 was found; name one with --python")
    for python in pythons:
        for extra in args.beside:
            _check(args.wheels, python, extra)


if __name__ == "__main__":
    main()
