# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Shows which kernels run on a GPU, and forces others.

Planning an op picks the first of its kernels that can do the problem. The environment
variable `TF_CAPSOPS_KERNEL=CapsuleConv=mma,CapsuleRouting=phases` forces kernels by
name from the start of a process, and `TF_CAPSOPS_DEVICE=capability=86,shared=101376`
lets planning assume another GPU. The functions in this module set the same later.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from collections.abc import Callable, Iterator

from tf_capsops import _library

# Arguments of `pretend_device` for a GPU of each compute capability: A100, RTX A6000,
# H100, B200 and RTX 5090.
GPUS = {
    80: {"processors": 108, "shared": 166912, "processor_shared": 167936},
    86: {"processors": 84, "shared": 101376, "processor_shared": 102400},
    90: {"processors": 132, "shared": 232448, "processor_shared": 233472},
    100: {"processors": 148, "shared": 232448, "processor_shared": 233472},
    120: {"processors": 170, "shared": 101376, "processor_shared": 102400},
}

# By variable: its text at the start, then the texts that open blocks have set.
_HISTORY: dict[str, list[str]] = {}


@functools.cache
def _interface() -> ctypes.CDLL:
    _library.load()
    library = ctypes.CDLL(_library.library_path())
    library.tf_capsops_recorded_kernels.restype = ctypes.c_char_p
    return library


@contextlib.contextmanager
def _set(function: str, variable: str, settings: dict) -> Iterator[None]:
    """Applies settings in place of `variable`'s, and then restores the earlier ones."""
    history = _HISTORY.setdefault(variable, [os.environ.get(variable, "")])
    history.append(",".join(f"{name}={value}" for name, value in settings.items()))
    change = getattr(_interface(), function)
    change(history[-1].encode())
    try:
        yield
    finally:
        history.pop()
        change(history[-1].encode())


@contextlib.contextmanager
def force(**kernels: str) -> Iterator[None]:
    """Forces kernels within a `with` block, for all threads of the process.

    Args:
        **kernels: The kernel's name for each op, such as `CapsuleConv="mma"`. If a
            kernel cannot do the problem, the op raises an InvalidArgumentError.
    """
    with _set("tf_capsops_force_kernels", "TF_CAPSOPS_KERNEL", kernels):
        yield


@contextlib.contextmanager
def pretend_device(**properties: int) -> Iterator[None]:
    """Plans for a GPU with other properties within a `with` block.

    Args:
        **properties: Any of `capability` (86 is 8.6), `processors` (the number of
            multiprocessors), `shared` and `processor_shared` (bytes of shared memory
            of a block and of a multiprocessor).
    """
    with _set("tf_capsops_pretend_device", "TF_CAPSOPS_DEVICE", properties):
        yield


@contextlib.contextmanager
def recorded() -> Iterator[list[tuple[str, str, int]]]:
    """Records the kernels that run within a `with` block.

    Yields:
        A list that is filled when the block ends: op, kernel and bytes of workspace of
        each distinct call. Ops have the names that `force` takes. Within
        `pretend_device`, an op on a CPU also records what that GPU would run, as op
        "CapsuleConv@GPU".
    """
    with _record(1) as lines:
        calls = []
        try:
            yield calls
        finally:
            calls += ((*line[:2], int(line[2])) for line in lines())


@contextlib.contextmanager
def explained() -> Iterator[list[tuple[str, str, str]]]:
    """Finds which GPU kernels could run the ops that run within a `with` block.

    Yields:
        A list that is filled when the block ends: op, kernel, and why it cannot do the
        problem, or "", for each kernel in order of preference. The first kernel of an
        op without a refusal is the one that runs. An op on a CPU is in the list within
        `pretend_device`.
    """
    with _record(2) as lines:
        candidates = []
        try:
            yield candidates
        finally:
            candidates += (tuple(line) for line in lines() if not line[2].isdigit())


@contextlib.contextmanager
def _record(what: int) -> Iterator[Callable[[], list[list[str]]]]:
    def lines():
        text = _interface().tf_capsops_recorded_kernels().decode()
        return [line.split("\t") for line in text.splitlines()]

    _interface().tf_capsops_record_kernels(what)
    try:
        yield lines
    finally:
        _interface().tf_capsops_record_kernels(0)
