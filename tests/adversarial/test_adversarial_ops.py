# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Raw ops refuse what is wrong in words, and compute what is right, whatever comes."""

import contextlib
import faulthandler
import functools
import itertools
import math
import re
import time

import pytest
import signatures
import tensorflow as tf
import verdicts
from calls import NO_MEMORY, calls, zero_beside_huge
from gpus import GPUS
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from memory import is_gpu, peak
from registrations import snake_case

from tf_capsops import kernels

_SECONDS = 60  # after which a call hangs
_MEMORY = 64 << 20, 16  # bytes, and bytes for each byte of inputs and results

every_op = pytest.mark.parametrize("op", signatures.INPUTS)


@pytest.fixture(autouse=True)
def _planned(request):
    """Calls run on a CPU unless a test takes a `device`, and are planned for a GPU."""
    takes_device = "device" in request.fixturenames
    device = request.getfixturevalue("device") if takes_device else "CPU:0"
    with contextlib.ExitStack() as stack:
        if not is_gpu(device):
            stack.enter_context(tf.device("CPU:0"))
            stack.enter_context(kernels.pretend_device(capability=90, **GPUS[90]))
        stack.enter_context(kernels.recorded())
        yield
    faulthandler.cancel_dump_traceback_later()
    _end_if_it_hangs.cache_clear()


def _examples(share):
    return settings(max_examples=max(1, int(settings.default.max_examples * share)))


@functools.lru_cache(maxsize=1)
def _end_if_it_hangs(second):
    """Ends the process if it is not called again; costs a thread each second."""
    faulthandler.dump_traceback_later(_SECONDS, exit=True)


def _outcome(compute):
    """Returns results or the error, whichever comes."""
    _end_if_it_hangs(int(time.monotonic()))
    try:
        return compute(), None
    except verdicts.ERRORS as error:
        return None, error


def _assert_names_op_and_input(error, call):
    """TensorFlow's own checks come first; those of the op begin with its name."""
    text = str(error)
    names = [*call.names, *call.attributes]
    if re.search("Invalid value in tensor used for shape: -", text):
        assert any(min(s, default=0) < 0 for s in call.shapes.values()), text
        return
    if re.search(rf"\b{call.op}: ", text):
        assert any(name in text for name in names), text
        return
    if not re.search(r"(argument|parameter) '\w+'|Attr \w+", text):
        assert call.op in text or snake_case(call.op) in text, text
    assert re.search(rf"[tT]ype|input #\d|OOM|overflow|{'|'.join(names)}", text), text


def _run_eagerly(call, device):
    found = verdicts.tensors(call)
    peak(device)
    before = peak(device)
    results, error = _outcome(lambda: verdicts.compute(call, **found))
    grown = peak(device) - before
    if error is None:
        assert verdicts.may_succeed(call, is_gpu(device))
        verdicts.assert_right(call, found, results)
    else:
        assert not verdicts.must_succeed(call, is_gpu(device)), error
        _assert_names_op_and_input(error, call)
    held = [t for t in (*found.values(), *(results or ())) if t.dtype != tf.string]
    most, each = _MEMORY
    assert grown <= most + each * sum(
        t.shape.num_elements() * t.dtype.size for t in held
    )


@every_op
def test_eagerly(op, device):
    @_examples(1)
    @given(calls(op))
    def run(call):
        if is_gpu(device):  # TensorFlow waits ten seconds for memory that it cannot get
            counts = map(math.prod, call.results if call.dims else ())
            assume(max(counts, default=0) < NO_MEMORY)
        _run_eagerly(call, device)

    run()


@every_op
def test_zero_beside_huge(op, device, request):
    """Where a dimension is 0, others cost neither time nor memory, on GPUs too.

    Without `--all`, every fifth of these calls is made.
    """
    made = itertools.islice(
        zero_beside_huge(op), None, None, 1 if request.config.getoption("all") else 5
    )
    with kernels.recorded() as planned:
        for call in made:
            _run_eagerly(call, device)
    assert max(workspace for *_, workspace in planned) <= _MEMORY[0]


@every_op
def test_in_graphs_of_unknown_dimensions(op):
    """Shape inference never contradicts the run, and a graph does as the op eagerly."""

    @_examples(1 / 10)
    @given(calls(op), st.randoms(use_true_random=False))
    def run(call, random):
        assume(verdicts.fixed_types_hold(call))  # else TensorFlow fails an assertion
        found = verdicts.tensors(call)

        def spec(tensor):
            kept = [size if random.random() < 0.5 else None for size in tensor.shape]
            return tf.TensorSpec(None if random.random() < 0.2 else kept, tensor.dtype)

        constant = {n: t for n, t in found.items() if call.is_sizes(n)}
        if random.random() < 0.5:
            constant = {}
        fed = {n: t for n, t in found.items() if n not in constant}

        def graph():
            traced = tf.function(
                lambda **inputs: verdicts.compute(call, **inputs, **constant),
                autograph=False,
            ).get_concrete_function(**{n: spec(t) for n, t in fed.items()})
            inferred.extend(traced.structured_outputs)
            return traced(**fed)

        inferred = []
        results, error = _outcome(lambda: verdicts.compute(call, **found))
        traced_results, traced_error = _outcome(graph)
        assert (error is None) == (traced_error is None), (error, traced_error)
        if error is not None:
            _assert_names_op_and_input(traced_error, call)
            return
        for one, other, symbol in zip(results, traced_results, inferred, strict=True):
            assert symbol.shape.is_compatible_with(one.shape)
            assert verdicts.have_same_bits(one, other)

    run()


@every_op
def test_under_xla(op):
    """XLA compiles the op to what it computes eagerly, or refuses it too."""

    @_examples(1 / 40)
    @given(calls(op))
    def run(call):
        # XLA itself fails beyond doubt to count the elements of very large shapes.
        shapes = [*call.shapes.values(), *(call.results if call.dims else ())]
        assume(all(math.prod(size or 1 for size in s) < 2**31 for s in shapes))
        assume(verdicts.fixed_types_hold(call))
        found = verdicts.tensors(call)
        constant = {n: t for n, t in found.items() if call.is_sizes(n)}
        fed = {n: t for n, t in found.items() if n not in constant}
        compiled = tf.function(
            lambda **inputs: verdicts.compute(call, **inputs, **constant),
            autograph=False,
            jit_compile=True,
        )
        results, error = _outcome(lambda: verdicts.compute(call, **found))
        compiled_results, compiled_error = _outcome(lambda: compiled(**fed))
        assert (error is None) == (compiled_error is None), (error, compiled_error)
        if error is not None:
            _assert_names_op_and_input(compiled_error, call)
            return
        for one, other in zip(results, compiled_results, strict=True):
            assert verdicts.have_same_bits(one, other)

    run()
