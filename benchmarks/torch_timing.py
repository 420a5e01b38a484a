# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Times steps of PyTorch, for the scripts beside this one.

The benchmark runs them in processes of their own where PyTorch is installed, since
TensorFlow and PyTorch do not share a GPU's memory. What is measured is a line of JSON:
`method` and either `error`, or `samples`, seconds of a step, and `peak_bytes`, which is
None on a CPU.
"""

import argparse
import contextlib
import functools
import json
import os
import statistics
import threading
import time

import torch

SAMPLE_SECONDS = 0.3
DIRECTIONS = ("forward", "forward+backward")
COMPILED = {"PyTorch": None, "PyTorch, torch.compile": "default"}
WITH_GRAPHS = {**COMPILED, "PyTorch, torch.compile, CUDA graphs": "reduce-overhead"}


def parser(description):
    """Returns a parser of the options that every script has."""
    made = argparse.ArgumentParser(description=description.splitlines()[0])
    made.add_argument("--device", choices=["CPU", "GPU"], default="GPU")
    made.add_argument("--repeat", type=int, default=15)
    made.add_argument("--tf32", action=argparse.BooleanOptionalAction, default=True)
    made.add_argument("--compile-limit", type=float, default=120, metavar="SECONDS")
    made.add_argument("--values", help="a file of check_torch.py")
    return made


def device_of(options):
    """Sets PyTorch up as the options say, and returns its name of the device."""
    torch.set_float32_matmul_precision("high" if options.tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = options.tf32
    torch.backends.cudnn.benchmark = True
    return {"CPU": "cpu", "GPU": "cuda"}[options.device]


def report(jobs, device, options, more=lambda step, count: {}):
    """Prints a line for each job.

    A job that torch.compile takes too long for ends the process, with a line for it and
    for each job after it that needs torch.compile, too.

    Args:
        jobs: Fields of the line, a mode of torch.compile or None, and a function that
            takes the mode and returns one that takes a step.
        more: From a step and a number of steps to further fields, on a GPU.
    """
    if device == "cpu":
        jobs = [job for job in jobs if job[1] != "reduce-overhead"]
    for number, (fields, mode, make_step) in enumerate(jobs):
        waiting = [job[0] for job in jobs[number:] if mode and job[1]]
        try:
            with _ended_after(options.compile_limit, waiting):
                step = make_step(mode)
                _warm_up(step, device)
            row = _measure(step, device, options.repeat, more)
        except Exception as error:  # a method that fails leaves the others alone
            row = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
        print(json.dumps({**fields, **row}), flush=True)
        torch.compiler.reset()
        if device == "cuda":
            torch.cuda.empty_cache()  # for the memory of CUDA graphs, which is apart


@contextlib.contextmanager
def _ended_after(seconds, waiting):
    """Ends the process where its block takes longer, if there are jobs waiting.

    torch.compile may spend minutes in other processes or in C++, where no exception
    reaches it.
    """

    def end():
        reason = f"not compiled within {seconds:g} s"
        for fields in waiting:
            print(json.dumps({**fields, "error": reason}), flush=True)
            reason = f"not tried: another was not compiled within {seconds:g} s"
        os._exit(0)

    timer = threading.Timer(seconds, end)
    if waiting:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def report_op(compute, draw, options, prepare=lambda *inputs: inputs):
    """Prints a line for each way to run an op, and each direction.

    Args:
        compute: From tensors to a tensor or a tuple of them.
        draw: From a device to the tensors, of which all have gradients.
        prepare: From the inputs of our op to these tensors.
    """
    device = device_of(options)
    if options.values:
        return _write_values(compute, prepare, options.values)
    jobs = [
        (
            {"method": name, "direction": direction},
            mode,
            functools.partial(_op_step, compute, draw, direction, device),
        )
        for name, mode in COMPILED.items()
        for direction in DIRECTIONS
    ]
    report(jobs, device, options, _beyond_inputs)


def _write_values(compute, prepare, path):
    """Replaces an output's gradient and our inputs by the output and their gradients.

    They are arrays in a file of check_torch.py.
    """
    import numpy as np

    with np.load(path) as file:
        grad, *inputs = (torch.tensor(file[name]) for name in file.files)
    for each in inputs:
        each.requires_grad_()
    output = compute(*prepare(*inputs))
    found = torch.autograd.grad(output, inputs, grad, materialize_grads=True)
    np.savez(path, *(each.detach().numpy() for each in (output, *found)))


def _op_step(compute, draw, direction, device, mode):
    """Returns a function that takes one step; its results are not kept."""

    def forward(*inputs):
        found = compute(*inputs)
        return found if isinstance(found, tuple) else (found,)

    inputs = draw(device)
    called = forward if mode is None else torch.compile(forward, mode=mode)
    with torch.no_grad():
        grads = [torch.rand_like(each) for each in called(*inputs)]

    def step():
        if direction == "forward":
            with torch.no_grad():
                called(*inputs)
        else:
            torch.autograd.grad(called(*inputs), inputs, grads, allow_unused=True)

    step.held = torch.cuda.memory_allocated() if device == "cuda" else 0
    return step


def _beyond_inputs(step, count):
    """Returns the most memory that a step held beyond its inputs."""
    return {"peak_bytes": torch.cuda.max_memory_allocated() - step.held}


def _warm_up(step, device):
    for _ in range(5 if device == "cuda" else 2):
        step()
    if device == "cuda":
        torch.cuda.synchronize()


def _measure(step, device, repeat, more):
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
