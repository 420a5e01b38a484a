# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The Makefile builds for the right devices, with a made-up toolkit and driver."""

import os
import re
import subprocess
import sys

import fresh
import pytest

import tf_capsops
from tools import tensorflow_config

_NVCC = """#!/bin/sh
case "$1" in
  --version) echo "Cuda compilation tools, release 13.0, V13.0.1" ;;
  --list-gpu-code) printf 'sm_%s\\n' 75 80 86 89 90 100 120 ;;
  --dryrun) echo "#\\$ TOP={top}" >&2 ;;
esac
"""
_DRIVER = """#!/bin/sh
printf '%s\\n' {gpus}
"""
_NO_DRIVER = """#!/bin/sh
echo "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
exit 9
"""


def _make(*arguments, path):
    ours = ("CUDA", "CUDA_ARCHS", "CUDA_HOME", "NVCC", "MAKEFLAGS", "MAKELEVEL")
    environment = {k: v for k, v in os.environ.items() if k not in ours}
    environment["PATH"] = f"{path}:{environment['PATH']}"
    return subprocess.run(
        ["make", "-C", fresh.ROOT, f"PY={sys.executable}", *arguments],
        env=environment,
        capture_output=True,
        text=True,
    )


@pytest.fixture
def machine(tmp_path):
    """Returns what `make help` says of a build, on a machine with these GPUs."""
    (tmp_path / "lib64").mkdir()
    (tmp_path / "lib64" / "libcudart_static.a").touch()

    def built(gpus, *arguments):
        driver = _DRIVER.format(gpus=gpus) if gpus else _NO_DRIVER
        for name, text in (
            ("nvcc", _NVCC.format(top=tmp_path)),
            ("nvidia-smi", driver),
        ):
            (tmp_path / name).write_text(text)
            (tmp_path / name).chmod(0o755)
        result = _make("help", *arguments, path=tmp_path)
        if result.returncode:
            return result.stderr
        (line,) = (line for line in result.stdout.splitlines() if "(now " in line)
        return line.partition("(now ")[2]

    return built


@pytest.mark.parametrize(
    "gpus, arguments, text",
    [
        ("", [], "for the CPU only (no GPU is visible: CUDA=1 builds "),
        ("9.0", [], "with CUDA 13.0 for 90)"),
        ("9.0 8.6 9.0", [], "with CUDA 13.0 for 86 90)"),
        ("99.0", [], "with CUDA 13.0 for 80 90 100 120)"),
        ("9.0", ["NVCC=/no/nvcc"], "for the CPU only (there is a GPU but no nvcc: "),
        ("9.0", ["CUDA=0"], "for the CPU only)"),
        ("", ["CUDA=1"], "with CUDA 13.0 for 80 90 100 120)"),
        ("9.0", ["CUDA=1"], "with CUDA 13.0 for 80 90 100 120)"),
        ("", ["CUDA_ARCHS=89"], "with CUDA 13.0 for 89)"),
        ("9.0", ["CUDA_ARCHS=89 75"], "with CUDA 13.0 for 89 75)"),
        ("", ["CUDA_ARCHS=90", "CUDA=0"], "for the CPU only)"),
        ("9.0", ["wheel", "-n"], "with CUDA 13.0 for 80 90 100 120)"),
        ("", ["wheel", "-n", "CUDA=0"], "for the CPU only)"),
        ("9.0", ["SANITIZE=thread", "CUDA=1"], "for the CPU only)"),
    ],
)
def test_what_is_built_for(gpus, arguments, text, machine):
    assert machine(gpus, *arguments).startswith(text)


@pytest.mark.parametrize(
    "arguments, text",
    [
        (["CUDA=yes"], "CUDA must be auto, 0 or 1, got 'yes'"),
        (["CUDA=1", "NVCC=/no/nvcc"], "No nvcc was found at /no/nvcc: install "),
        (["SANITIZE=memory"], "must be address,undefined or thread, got 'memory'"),
        (["CUDA_ARCHS=33"], 'CUDA_ARCHS="33" holds nothing that '),
    ],
)
def test_what_is_refused(arguments, text, machine):
    assert text in machine("", *arguments)


@pytest.mark.parametrize("sanitize", ["address,undefined", "thread"])
def test_sanitizers_leave_the_library_alone(sanitize, tmp_path):
    """All that the test would write is in a folder of its own."""
    result = _make("test", "-n", "-B", f"SANITIZE={sanitize}", path=tmp_path)
    assert result.returncode == 0, result.stderr
    folder = f"build/sanitize-{sanitize.replace(',', '-')}/"
    written = re.findall(r" -o (\S+)", result.stdout)
    assert f"{folder}tests/sanitizers/launchers" in written
    assert [path for path in written if not path.startswith(folder)] == []


def test_studies_need_cuda(tmp_path):
    result = _make("studies", "CUDA=0", path=tmp_path)
    assert "The studies need CUDA, and this builds for the CPU only" in result.stderr
    assert result.returncode == 2


def test_a_build_for_the_cpu_leaves_no_older_studies(tmp_path):
    """Links a library without any object, which takes a second."""
    library, studies = tmp_path / "new.so", tmp_path / "libtf_capsops_studies.so"
    studies.touch()
    # What make would ask another process that imports TensorFlow.
    (tmp_path / "tensorflow.key").write_text(tensorflow_config.fingerprint())
    libraries = tensorflow_config.describe()["libraries"]
    tensorflow_config.write(tmp_path, "tensorflow.ldflags", libraries)
    names = [f"LIBRARY={library}", f"BUILD={tmp_path}", "OBJECTS="]
    result = _make(str(library), *names, "CUDA=0", path=tmp_path)
    assert result.returncode == 0, result.stderr
    assert library.exists() and not studies.exists()


@pytest.mark.parametrize("local", ["", "+cpu"])
def test_a_wheel_without_cuda_has_a_version_of_its_own(local):
    printed = subprocess.run(
        [sys.executable, "-m", "hatchling", "version"],
        cwd=fresh.ROOT,
        env={**os.environ, "TF_CAPSOPS_LOCAL": local},
        capture_output=True,
        text=True,
        check=True,
    )
    assert printed.stdout.strip() == tf_capsops.__version__ + local


def test_flags_that_nvcc_takes_from_the_environment_count(tmp_path, monkeypatch):
    """Kernels depend on this file, so other flags build them again."""
    monkeypatch.setenv("NVCC_APPEND_FLAGS", "-Xptxas -O0")
    flags = tmp_path / "flags.cuda"
    made = _make(f"BUILD={tmp_path}", str(flags), path=tmp_path)
    assert made.returncode == 0, made.stderr
    assert flags.read_text().endswith("-Xptxas -O0\n")
