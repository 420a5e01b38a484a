# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which kernels run: how to see them, and how to force them, on a GPU.

Planning an op picks the first of its kernels that can do the problem. The environment
variable `TF_CAPSOPS_KERNEL=CapsuleConv=mma,CapsuleRouting=phases` forces kernels by
name from the start of a process, and `TF_CAPSOPS_DEVICE=capability=86,shared=101376`
makes planning take a GPU for another one. The functions here set the same later.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from collections.abc import Iterator

from tf_capsops import _library

# The texts in force of each variable, the innermost block's last.
_HISTORY: dict[str, list[str]] = {}


@functools.cache
def _interface() -> ctypes.CDLL:
    _library.load()
    library = ctypes.CDLL(_library.library_path())
    library.tf_capsops_recorded_kernels.restype = ctypes.c_char_p
    return library


@contextlib.contextmanager
def _set(function: str, variable: str, settings: dict) -> Iterator[None]:
    """Sets what `variable` set at the start, and what was set before afterwards."""
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
        **kernels: The kernel's name for each op, such as `CapsuleConv="mma"`. An op
            whose kernel cannot do what it is given raises an InvalidArgumentError.
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
    calls = []
    _interface().tf_capsops_record_kernels(1)
    try:
        yield calls
    finally:
        lines = _interface().tf_capsops_recorded_kernels().decode().splitlines()
        _interface().tf_capsops_record_kernels(0)
        for line in lines:
            op, kernel, workspace = line.rsplit(" ", 2)
            calls.append((op, kernel, int(workspace)))
