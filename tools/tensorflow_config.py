# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Asks the running interpreter what a C++ compiler needs to know of TensorFlow.

tensorflow_config.py --json         for Bazel: prints one JSON object
tensorflow_config.py --write DIR    for make: writes response files for the compiler
                                    (DIR/tensorflow.cflags) and the linker
                                    (DIR/tensorflow.ldflags), only if they changed
"""

import argparse
import importlib.util
import json
import os
import pathlib
import subprocess
import sys

SUPPORTED = "2.21"  # TensorFlow's C++ interface holds within one minor version only.


def fingerprint():
    """Names the installed TensorFlow without importing it, which takes seconds."""
    spec = importlib.util.find_spec("tensorflow")
    if spec is None or spec.origin is None:
        sys.exit(
            f"tf_capsops needs TensorFlow {SUPPORTED}, and {sys.executable} has none: "
            f"run `{sys.executable} -m pip install -r requirements.txt`."
        )
    library = pathlib.Path(spec.origin).parent / "libtensorflow_framework.so.2"
    stat = library.stat()
    script = pathlib.Path(__file__).stat()
    return f"{library} {stat.st_size} {stat.st_mtime_ns} {script.st_mtime_ns}\n"


def describe():
    """Returns version, include directory, library and definitions of TensorFlow."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    if tf.__version__.split(".")[:2] != SUPPORTED.split("."):
        sys.exit(
            f"tf_capsops is built for TensorFlow {SUPPORTED}, and {sys.executable} "
            f"has {tf.__version__}: install tensorflow=={SUPPORTED}.* there."
        )
    flags = tf.sysconfig.get_compile_flags()
    return {
        "version": tf.__version__,
        "include": tf.sysconfig.get_include(),
        # What XLA's headers include by names of their own.
        "includes": ["external/highwayhash", "external/farmhash_archive/src"],
        "libraries": [
            os.path.join(tf.sysconfig.get_lib(), library)
            for library in ("libtensorflow_framework.so.2", "libtensorflow_cc.so.2")
        ],
        "defines": [flag[2:] for flag in flags if flag.startswith("-D")],
    }


def write(directory, name, arguments):
    """Writes a response file, quoted as GCC and Clang read it."""
    quoted = (
        '"' + argument.replace("\\", "\\\\").replace('"', '\\"') + '"'
        for argument in arguments
    )
    (directory / name).write_text("\n".join(quoted) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--json", action="store_true")
    action.add_argument("--write", metavar="DIR", type=pathlib.Path)
    options = parser.parse_args()
    if options.json:
        fingerprint()
        print(json.dumps(describe()))
        return
    directory = options.write
    key = directory / "tensorflow.key"
    found = fingerprint()
    if key.exists() and key.read_text() == found:
        return
    # In a process of its own, whose start-up chatter is shown only if it fails.
    command = [sys.executable, __file__, "--json"]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        sys.exit(result.stderr)
    config = json.loads(result.stdout)
    directory.mkdir(parents=True, exist_ok=True)
    defines = [f"-D{define}" for define in config["defines"]]
    version = f'-DTF_CAPSOPS_TENSORFLOW_VERSION="{config["version"]}"'
    # As system headers: their warnings are not ours to mend.
    includes = [
        argument
        for below in ("", *config["includes"])
        for argument in ("-isystem", os.path.join(config["include"], below))
    ]
    write(directory, "tensorflow.cflags", [*includes, *defines, version])
    write(directory, "tensorflow.ldflags", config["libraries"])
    key.write_text(found)


if __name__ == "__main__":
    main()
