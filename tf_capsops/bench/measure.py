# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Measures how long one call of an op takes through TensorFlow.

On a GPU an op may take less time than TensorFlow needs to launch it. A measurement is
therefore a chain: one graph of many calls, ordered by control dependencies, started
several times without waiting, followed by one wait for the device. Every call has its
own arguments, so that none is merged with another. Calls rotate among several sets of
arguments, so that caches are not warmer than in a training step. No result is read,
copied or kept: TensorFlow frees each as it would between two layers. Nothing is
subtracted from the time. All methods in TensorFlow are measured in exactly this way;
methods in PyTorch take the same arguments each time (benchmarks/torch_timing.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import tensorflow as tf

# By device type: calls in a chain, least seconds of a sample, most bytes of arguments.
_CHAIN = {"CPU": 8, "GPU": 32}
_SAMPLE_SECONDS = {"CPU": 0.1, "GPU": 0.05}
_ARGUMENT_BYTES = {"CPU": 1 << 30, "GPU": 4 << 30}

Arguments = tuple[tf.Tensor, ...]


@dataclasses.dataclass(frozen=True)
class Timing:
    """Seconds for one call: the samples' quartiles and extremes.

    Attributes:
        extra_bytes: The most memory that one call held beyond its arguments, results
            included. None on a CPU, where TensorFlow does not count.
    """

    median: float
    lower_quartile: float
    upper_quartile: float
    minimum: float
    maximum: float
    samples: int
    extra_bytes: int | None


def device_type(device: str) -> str:
    """Returns "CPU" or "GPU" for the name of a device."""
    return device.partition(":")[0]


def set_count(device: str, set_bytes: int) -> int:
    """Returns how many sets of arguments, of `set_bytes` each, to rotate among."""
    kind = device_type(device)
    return min(_CHAIN[kind], max(2, _ARGUMENT_BYTES[kind] // max(1, set_bytes)))


@contextlib.contextmanager
def _unread_results_are_computed() -> Iterator[None]:
    """Keeps TensorFlow from dropping ops that only control dependencies reach.

    Only this graph optimizer is off; the others work as they do for any user.
    """
    before = tf.config.optimizer.get_experimental_options()
    tf.config.optimizer.set_experimental_options({"dependency_optimization": False})
    try:
        yield
    finally:
        tf.config.optimizer.set_experimental_options(
            {"dependency_optimization": True, **before}
        )


def forward_step(compute: Callable[..., tf.Tensor]) -> Callable:
    """Returns a step that computes an op from its inputs."""
    return lambda *inputs: (compute(*inputs),)


def training_step(
    compute: Callable[..., tf.Tensor], sources: int | None = None
) -> Callable:
    """Returns a step that computes an op and its gradients from its output's gradient.

    Args:
        sources: How many inputs, counted from the first, have gradients; None for all.
    """

    def step(grad, *inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs[:sources])
            output = compute(*inputs)
        return output, *tape.gradient(output, inputs[:sources], grad)

    return step


def gradient_step(compute: Callable[..., tf.Tensor]) -> Callable:
    """Returns a step that computes an op's gradients from its output's gradient.

    TensorFlow computes only the parts of the op itself that the gradients need.
    """
    step = training_step(compute)
    return lambda *arguments: step(*arguments)[1:]


def compiled(step: Callable) -> Callable:
    """Returns a step as one XLA computation."""
    return tf.function(step, jit_compile=True, autograph=False)


class Chain:
    """A graph that calls one step several times, one call after the other.

    Args:
        step: A function from arguments to a tuple of results.
        sets: Sets of arguments to rotate among.
        device: The device to compute on.
        length: Calls in a graph; by default as many as suit the device.
        seconds: Least time of a sample; by default as suits the device.
    """

    def __init__(
        self,
        step: Callable,
        sets: Sequence[Arguments],
        device: str,
        length: int | None = None,
        seconds: float | None = None,
    ) -> None:
        self._device = device
        self._sets = sets
        self._length = length or _CHAIN[device_type(device)]
        self._least = seconds or _SAMPLE_SECONDS[device_type(device)]
        self._rounds = 1

        @tf.function(autograph=False)
        def run(*calls):
            done: list[tf.Operation] = []
            for arguments in calls:
                with tf.control_dependencies(done):
                    results = step(*arguments)
                done = [result.op for result in results]
            with tf.control_dependencies(done), tf.device("CPU"):
                return tf.constant(0)

        self._run = run
        self._graphs: dict[int, Callable] = {}  # the traced graphs by length

    def _seconds(self, length: int, rounds: int) -> float:
        calls = list(itertools.islice(itertools.cycle(self._sets), length))
        with tf.device(self._device):
            # Calling the tf.function itself would warn of retracing, because every
            # chain creates it anew.
            if length not in self._graphs:
                self._graphs[length] = self._run.get_concrete_function(*calls)
            run = self._graphs[length]
            start = time.perf_counter()
            for _ in range(rounds):
                run(*calls)
            tf.test.experimental.sync_devices()
        return time.perf_counter() - start

    def warm_up(self) -> None:
        """Traces, compiles, and decides how often to run the chain for one sample."""
        self._seconds(self._length, 1)
        once = self._seconds(self._length, 1)
        if once < self._least:  # longer calls are warm by now
            once = self._seconds(self._length, 1)
        self._rounds = max(1, math.ceil(self._least / once))

    def sample(self) -> float:
        """Returns the seconds that one call took."""
        return self._seconds(self._length, self._rounds) / (self._length * self._rounds)

    def extra_bytes(self) -> int | None:
        """Returns the most memory that one call held beyond its arguments."""
        if device_type(self._device) == "CPU":
            return None
        self._seconds(1, 1)
        before = tf.config.experimental.get_memory_info(self._device)["current"]
        tf.config.experimental.reset_memory_stats(self._device)
        self._seconds(1, 1)
        return tf.config.experimental.get_memory_info(self._device)["peak"] - before


def reason(error: tf.errors.OpError | ValueError) -> str:
    """Returns the reason of an error without the location that TensorFlow adds."""
    lines = str(getattr(error, "message", error)).splitlines()
    last = [line for line in lines if line and not line.startswith("\t")][-1]
    return last.split(" for '{{node")[0]


def summary(taken: Sequence[float], extra_bytes: int | None = None) -> Timing:
    """Returns the quartiles and extremes of samples, in seconds."""
    spread = taken if len(taken) > 1 else 2 * taken
    lower, median, upper = statistics.quantiles(spread, n=4, method="inclusive")
    extremes = min(taken), max(taken)
    return Timing(median, lower, upper, *extremes, len(taken), extra_bytes)


@_unread_results_are_computed()
def compare(
    chains: Mapping[str, Chain], repeat: int, slow: float = math.inf
) -> dict[str, Timing | str]:
    """Times several methods in turn, `repeat` samples each.

    A method that takes more than `slow` seconds for a call gets one sample.

    Returns:
        For each method its timing, or TensorFlow's reason if the method cannot run.
    """
    outcome: dict[str, Timing | str] = {}
    extra = {}
    for name, chain in chains.items():
        try:
            chain.warm_up()
            extra[name] = chain.extra_bytes()
        except (tf.errors.OpError, ValueError) as error:  # ValueError: in tracing
            outcome[name] = reason(error)
    samples: dict[str, list[float]] = {name: [] for name in extra}
    for _ in range(repeat):
        for name, taken in samples.items():
            if not taken or taken[0] <= slow:
                taken.append(chains[name].sample())
    for name, taken in samples.items():
        outcome[name] = summary(taken, extra[name])
    return {name: outcome[name] for name in chains}
