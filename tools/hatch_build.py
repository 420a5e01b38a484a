# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Builds the library before hatchling packs the wheel, and names the wheel rightly."""

import importlib.util
import os
import pathlib
import platform
import subprocess
import sys

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# The headers to build with: those of the smaller wheel, where there is one, serve for
# every TensorFlow wheel of the same version.
TENSORFLOW = (
    "tensorflow-cpu==2.21.0" if platform.machine() == "x86_64" else "tensorflow==2.21.0"
)


class LibraryHook(BuildHookInterface):
    """Runs `make build` with the interpreter that builds the wheel.

    An editable installation (`pip install -e .`) uses the library that is there. Set
    CUDA=0 or CUDA_ARCHS as for make. The library calls no Python, so that one wheel
    serves every Python 3 of a platform.
    """

    PLUGIN_NAME = "custom"

    def dependencies(self):
        """Names TensorFlow for the isolated environment, unless `PY` tells of one."""
        present = importlib.util.find_spec("tensorflow") is not None
        return [] if present or os.environ.get("PY") else [TENSORFLOW]

    def initialize(self, version, build_data):
        built = pathlib.Path(self.root, "tf_capsops", "libtf_capsops.so")
        if version == "editable" and built.is_file():
            return
        python = os.environ.get("PY") or sys.executable
        subprocess.run(
            ["make", "-C", self.root, "build"],
            check=True,
            env={**os.environ, "PY": python},
        )
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-linux_{platform.machine()}"
