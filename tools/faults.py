# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tests the tests: whether they notice each wrong result and each missing check.

`make faults` builds the library that has faults on purpose (cc/launch/faults.h), and
runs this twice: `kernels` spoils one number of each result of each kernel, one after
the other, and `rules` leaves out each rule of shapes and attributes. Tests that pass by
a fault run until one fails; where none does, this says so and exits with 1.
"""

import argparse
import collections
import json
import multiprocessing
import os
import pathlib
import re
import signal
import sys
import tempfile
from multiprocessing import connection

# Read when TensorFlow is imported.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

# Imported once, before processes are made for each fault.
import hypothesis
import keras
import numpy
import pytest
import tensorflow

ROOT = pathlib.Path(__file__).resolve().parents[1]
VARIABLE = "TF_CAPSOPS_FAULT"
IMPORTED = hypothesis, keras, numpy, tensorflow
LEVELS = (2, 3, 4, 5) if os.uname().machine == "x86_64" else (0,)
SECONDS = 600  # that the tests of one fault may take

# The ops of tests/descriptions, and what is not among them.
OTHER_OPS = "tests/ops/test_capsule_conv_bias_relu.py"
# What pytest runs on every kernel of a CPU, where a level of its instruction set forces
# them, of a GPU, and on every rule.
CPU_TESTS = [
    "tests/ops/test_every_op.py::test_values_and_gradients",
    "tests/ops/test_capsule_routing.py::test_coefficients",
    "tests/ops/test_capsule_moments.py::test_shares",
    "tests/ops/test_inq_conv_int8.py::test_float32_values",
    f"{OTHER_OPS}::test_values_and_gradients",
    *("-k", "CPU and float32 and (ones or primes or shares) and not large"),
]
GPU_TESTS = ["tests/ops/test_paths_*.py", OTHER_OPS]
RULE_TESTS = [
    *("tests/ops/test_*_op.py", "tests/ops/test_*_shapes.py", OTHER_OPS),
    *("tests/ops/test_capsule_routing_types.py", "tests/ops/test_registrations.py"),
]

# Rules that no call can break: ops, and a part of the rule's description.
IMPLIED = (
    # The rank that all tensors must have is that of the first.
    *(("CapsuleConv", "input rank"), ("CapsuleConvBiasRelu", "input rank")),
    ("CapsuleConvBackpropWeights", "input rank"),
    # Two ranks are possible.
    *((op, "weights rank") for op in ("CapsuleConvRouting", "CapsuleConvRoutingGrad")),
    # Fewer bits are required before.
    ("InqConvInt8", "attributes.bits <= 8"),
    # Sizes are int32.
    ("CapsuleConvBackpropWeights", "kernel <= largest"),
)


class Watch:
    """A pytest plugin that writes down which test runs, and what faults it passes by.

    Args:
        report: A file for the name of the test that began last.
        passed: A file for the faults of all tests, or None to make one fault.
    """

    def __init__(self, report, passed=None):
        self._report, self._passed, self._all = report, passed, {}
        report.write_text("collection")

    def pytest_runtest_logstart(self, nodeid):
        self._report.write_text(nodeid)
        if self._passed:
            os.environ[VARIABLE] = f">{self._passed}.test"

    def pytest_runtest_logfinish(self, nodeid):
        if not self._passed:
            return
        names = pathlib.Path(f"{self._passed}.test")
        if names.exists():
            # The rule that a test breaks is the last that it passes by.
            last = dict.fromkeys(reversed(names.read_text().splitlines()))
            self._all[nodeid] = list(last)
            names.unlink()

    def pytest_sessionfinish(self):
        if self._passed:
            self._passed.write_text(json.dumps(self._all))


def _child(arguments, environment, plugin, output):
    os.environ.update(environment)
    if VARIABLE in environment:  # a fault, which may let a test hang
        signal.alarm(SECONDS)
    printed = os.open(output, os.O_WRONLY | os.O_CREAT)
    os.dup2(printed, 1)
    os.dup2(printed, 2)
    options = "-x", "-q", "-p", "no:cacheprovider"
    os._exit(pytest.main([*options, *arguments], [plugin]))


def _run(jobs, workers):
    """Runs pytest in a process for each job; yields the job's name and its exit code.

    Args:
        jobs: From names to arguments of `_child`.
        workers: How many run at once.
    """
    fork = multiprocessing.get_context("fork")
    waiting, running = list(jobs.items()), {}
    while waiting or running:
        while waiting and len(running) < workers:
            name, arguments = waiting.pop(0)
            process = fork.Process(target=_child, args=arguments)
            process.start()
            running[process.sentinel] = name, process
        for sentinel in connection.wait(running):
            name, process = running.pop(sentinel)
            process.join()
            yield name, process.exitcode


class Faults:
    """Looks for the test that notices each fault.

    Args:
        folder: For files, empty.
        workers: How many processes run at once.
    """

    def __init__(self, folder, workers):
        self._folder, self._workers = folder, workers
        self._count = 0

    def _job(self, arguments, environment, listing):
        self._count += 1
        stem = self._folder / str(self._count)
        watch = Watch(stem.with_suffix(".at"), stem if listing else None)
        return stem, (arguments, environment, watch, stem.with_suffix(".out"))

    def passed_by(self, runs, kind):
        """Returns the tests that pass by each fault, those that end there first.

        Args:
            runs: From names to arguments of pytest and an environment.
            kind: The first word of the faults.
        """
        stems, jobs = {}, {}
        for name, (arguments, environment) in runs.items():
            stems[name], jobs[name] = self._job(arguments, environment, True)
        places, environments = collections.defaultdict(list), {}
        for name, code in _run(jobs, self._workers):
            if code != 0:
                sys.exit(stems[name].with_suffix(".out").read_text())
            for test, faults in json.loads(stems[name].read_text()).items():
                kept = [fault for fault in faults if fault.startswith(kind)]
                for place, fault in enumerate(kept):
                    places[fault].append((place, test))
                    environments[fault] = runs[name][1]
        return {
            fault: ([test for _, test in sorted(tests)], environments[fault])
            for fault, tests in places.items()
        }

    def noticed(self, found):
        """Yields each fault, and the test that noticed it or None.

        Args:
            found: What `passed_by` returned.
        """
        stems, jobs = {}, {}
        for fault, (tests, environment) in found.items():
            made = {**environment, VARIABLE: fault}
            stems[fault], jobs[fault] = self._job(tests, made, False)
        for fault, code in _run(jobs, self._workers):
            test = stems[fault].with_suffix(".at").read_text()
            if code == 1:
                yield fault, test
            elif code == -signal.SIGALRM:
                yield fault, f"{test} (no end after {SECONDS} s)"
            elif code < 0:
                yield fault, f"{test} (signal {-code})"
            elif code == 0:
                yield fault, None
            else:
                sys.exit(stems[fault].with_suffix(".out").read_text())


def _runs(kind, device):
    """Returns what pytest runs, and with which environment, by any names."""
    if kind == "rules":
        return {file: ([file, "-k", "not GPU"], {}) for file in _files(RULE_TESTS)}
    if device == "GPU":
        # Each path in one type, as it is planned for the GPU that is there.
        chosen = "test_forced and (float32 or widened) and not planned_for"
        return {file: ([file, "-k", chosen], {}) for file in _files(GPU_TESTS)}
    return {
        level: (CPU_TESTS, {"TF_CAPSOPS_CPU_LEVEL": str(level)}) for level in LEVELS
    }


def _files(patterns):
    return [str(path) for each in patterns for path in sorted(ROOT.glob(each))]


def _described(fault):
    """Returns a fault's name, with its line of the source where it has one."""
    *_, file, number = fault.split()
    if not number.isdigit() or not (ROOT / file).is_file():
        return fault
    return f"{fault} {_lines(ROOT / file)[int(number) - 1].strip()}"


def _lines(path):
    return path.read_text().splitlines()


def _implied(fault):
    return any(
        fault.split()[1] == op and part in _described(fault) for op, part in IMPLIED
    )


def _rules_of_the_sources():
    for folder in ("framework", "shapes"):
        for path in sorted((ROOT / "cc" / folder).iterdir()):
            for number, line in enumerate(_lines(path), 1):
                if ".Require(" in line:
                    yield f"{path.relative_to(ROOT)} {number}"


def _kernels_of_the_sources(device):
    """Yields the ops' names, and on a GPU beginnings of ops' names with kernels."""
    if device == "CPU":
        text = (ROOT / "cc/launch/choice.cc").read_text()
        (ops,) = re.findall(r"kOps\[\] = \{(.*?)\}", text, re.DOTALL)
        yield from (rf"{op} " for op in re.findall(r"\w+", ops))
        return
    for path in sorted((ROOT / "cuda").glob("*/launch.cu.cc")):
        op = path.parent.name.title().replace("_", "")
        for kernel in re.findall(r'\{"(\w+)",', path.read_text()):
            yield rf"{op}\w* {kernel} "


def _never_passed(kind, device, found):
    """Returns kernels and rules of the sources that no test reaches."""
    text = "\n".join(f"{fault} " for fault in found).replace(" ./", " ")
    if kind == "rules":
        return [rule for rule in _rules_of_the_sources() if f" {rule} " not in text]
    kernels = _kernels_of_the_sources(device)
    return [kernel for kernel in kernels if not re.search(f" {kernel}", text)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("kind", choices=["kernels", "rules"])
    parser.add_argument("--device", choices=["CPU", "GPU"], default="CPU")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    os.chdir(ROOT)
    runs = _runs(options.kind, options.device)
    word = "rule " if options.kind == "rules" else "spoil "
    with tempfile.TemporaryDirectory() as folder:
        faults = Faults(pathlib.Path(folder), options.workers)
        found = faults.passed_by(runs, word)
        found = {name: tests for name, tests in found.items() if not _implied(name)}
        by_test = {}
        for fault, test in faults.noticed(found):
            by_test[fault] = test
            print(f"{_described(fault)}: {test or 'NO TEST NOTICED'}", flush=True)
    noticed = sum(test is not None for test in by_test.values())
    print(f"Of {len(by_test)} faults, the tests noticed {noticed}.")
    wrong = [fault for fault, test in by_test.items() if test is None]
    wrong += [
        f"{name} (never run)"
        for name in _never_passed(options.kind, options.device, found)
    ]
    if wrong:
        sys.exit("No test noticed these:\n  " + "\n  ".join(wrong))


if __name__ == "__main__":
    main()
