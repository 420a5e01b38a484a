# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Times steps of PyTorch, for the scripts beside this one.

The benchmark runs them in processes of their own where PyTorch is installed, since
TensorFlow and PyTorch do not share a GPU's memory. What is measured is a line of JSON:
`method` and either `error`, or `samples`, seconds of a step, and `peak_bytes`, which is
None on a CPU.
"""

import argparse
import json
import statistics
import time

import torch

SAMPLE_SECONDS = 0.3
COMPILED = {"PyTorch": None, "PyTorch, torch.compile": "default"}
WITH_GRAPHS = {**COMPILED, "PyTorch, torch.compile, CUDA graphs": "reduce-overhead"}


def parser(description):
    """Returns a parser of the options that every script has."""
    made = argparse.ArgumentParser(description=description.splitlines()[0])
    made.add_argument("--device", choices=["CPU", "GPU"], default="GPU")
    made.add_argument("--repeat", type=int, default=15)
    made.add_argument("--tf32", action=argparse.BooleanOptionalAction, default=True)
    return made


def device_of(options):
    """Sets PyTorch up as the options say, and returns its name of the device."""
    torch.set_float32_matmul_precision("high" if options.tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = options.tf32
    torch.backends.cudnn.benchmark = True
    return {"CPU": "cpu", "GPU": "cuda"}[options.device]


def report(methods, make_step, device, repeat, more=lambda step, count: {}, **fields):
    """Prints a line for each method.

    Args:
        methods: Modes of torch.compile, or None, by name.
        make_step: From a mode to a function that takes one step.
        more: From a step and a number of steps to further fields, on a GPU.
        fields: Further fields of each line.
    """
    for name, mode in methods.items():
        if device == "cpu" and mode == "reduce-overhead":
            continue
        try:
            row = _measure(make_step(mode), device, repeat, more)
        except Exception as error:  # a method that fails leaves the others alone
            row = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
        print(json.dumps({"method": name, **fields, **row}), flush=True)
        torch.compiler.reset()
        if device == "cuda":
            torch.cuda.empty_cache()  # for the memory of CUDA graphs, which is apart


def _measure(step, device, repeat, more):
    for _ in range(5 if device == "cuda" else 2):
        step()
    once = statistics.median(_seconds(step, 1, device) for _ in range(3))
    count = max(1, round(SAMPLE_SECONDS / once))
    if device == "cpu":
        samples = [_seconds(step, count, device) for _ in range(repeat)]
        return {"samples": samples, "peak_bytes": None}
    torch.cuda.reset_peak_memory_stats()
    samples = [_seconds(step, count, device) for _ in range(repeat)]
    peak = torch.cuda.max_memory_allocated()
    return {"samples": samples, "peak_bytes": peak, **more(step, count)}


def _seconds(step, count, device):
    """Returns how long a step takes, of so many in a row."""
    if device == "cpu":
        began = time.perf_counter()
        for _ in range(count):
            step()
        return (time.perf_counter() - began) / count
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    first.record()
    for _ in range(count):
        step()
    last.record()
    torch.cuda.synchronize()
    return first.elapsed_time(last) / 1e3 / count
