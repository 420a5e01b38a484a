# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Measures with TensorFlow's profiler how long a GPU works."""

from __future__ import annotations

import pathlib
import tempfile
from collections.abc import Callable, Iterable

import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2


def gpu_work(run: Callable[[], object]) -> tuple[float, int]:
    """Runs a function under the profiler; the function must wait for its results.

    Returns:
        The seconds in which the GPU computed, and how many kernels it ran. Both are 0
        if the profiler finds no GPU.
    """
    with tempfile.TemporaryDirectory() as folder:
        with tf.profiler.experimental.Profile(folder):
            run()
        found = []
        for path in pathlib.Path(folder).rglob("*.xplane.pb"):
            space = xplane_pb2.XSpace()
            space.ParseFromString(path.read_bytes())
            found += kernels(space)
    return busy_seconds(found), len(found)


def kernels(space: xplane_pb2.XSpace) -> Iterable[tuple[int, int]]:
    """Yields start and end of each kernel, in picoseconds."""
    for plane in space.planes:
        if "GPU" not in plane.name:
            continue
        for line in plane.lines:
            if "Stream" in line.name and "Compute" in line.name:
                base = line.timestamp_ns * 1000
                for event in line.events:
                    start = base + event.offset_ps
                    yield start, start + event.duration_ps


def busy_seconds(spans: Iterable[tuple[int, int]]) -> float:
    """Returns the seconds in which any kernel ran, for spans in picoseconds."""
    busy = until = 0
    for start, end in sorted(spans):
        busy += max(0, end - max(start, until))
        until = max(until, end)
    return busy / 1e12
