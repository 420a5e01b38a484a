# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Values and gradients of all ops, for the cases that their descriptions name.

`-k capsule_conv` picks one op out.
"""

import functools

import descriptions
import numpy as np
import pytest
import tensorflow as tf
from descriptions import (
    DTYPES,
    assert_all_close,
    every_dtype,
    exact,
    half_types,
    rounded_to_tf32,
)
from finite_differences import assert_gradients_agree
from frames import both_ways, call, traced
from tolerances import assert_rounded, ulp

from tf_capsops.bench import cases


def _parametrized(names, select):
    """Parametrizes with each op and what `select` finds in its description."""
    return pytest.mark.parametrize(
        names,
        [
            pytest.param(op, *found, id="-".join(map(str, (op.name, *found))))
            for op in descriptions.every()
            for found in select(op)
        ],
    )


_DEVICE_TYPES = {device.device_type for device in tf.config.list_logical_devices()}


def _is_here(case):
    """Whether a case has a device here that it was made for."""
    return not _DEVICE_TYPES.isdisjoint(case.devices)


def _cases(use):
    return _parametrized(
        "op, case", lambda op: [(c,) for c in op.suite.select(use) if _is_here(c)]
    )


def _names(op, frame, empty):
    names = op.frames.get(frame, ())
    names = *names, *(op.empty if names and empty else ())
    return [name for name in names if _is_here(op.case(name))]


def _named(frame, empty=False):
    """Cases named for a frame, and with `empty` those with a dimension of 0 there."""
    return _parametrized(
        "op, name", lambda op: [(n,) for n in _names(op, frame, empty)]
    )


def _types_by_name(op):
    """Yields names of cases and of types: float32, and of the first case every one."""
    for place, name in enumerate(op.frames.get("unknown_shapes", ())):
        for dtype in DTYPES[: 1 if place else None]:
            yield name, dtype.name


@_parametrized("op, name, dtype", _types_by_name)
def test_xla_changes_no_bit(op, name, dtype, device):
    case = op.case(name)
    compute = functools.partial(op.results, case.bind(op.suite.ours))
    tensors = op.draw(case, dtype)
    plain, compiled = (
        tf.function(compute, autograph=False, jit_compile=jit)(*tensors)
        for jit in (False, True)
    )
    for result, expected in zip(compiled, plain, strict=True):
        np.testing.assert_array_equal(result, expected)


@every_dtype
@_cases(cases.CORRECTNESS)
def test_values_and_gradients(op, case, dtype, device):
    """They are the reference's, and the device is the one asked for."""
    for result in op.assert_close_to_reference(case, op.draw(case, dtype)):
        assert result.device.endswith(device)


def _second_reference(reference, grad, a, b, by_a, by_b):
    """The gradient of a is linear in grad and b, and so on."""
    output, _, in_b = reference(grad, by_a, b)
    also, in_a, _ = reference(grad, a, by_b)
    return output + also, in_a, in_b


@every_dtype
@_named("second_derivatives", empty=True)
def test_second_derivatives(op, name, dtype, device):
    """Differentiates the gradients of both inputs of a bilinear op by all tensors."""
    case = op.case(name)
    sources = op.draw(case, dtype)
    targets = [tensor[::-1] for tensor in sources[1:]]

    def second(compute, *sources):
        with tf.GradientTape() as tape:
            tape.watch(sources)
            gradients = op.results(case.bind(compute), *sources)[1:]
        return tape.gradient(gradients, sources, targets)

    arrays = exact([*sources, *targets])
    truth = _second_reference(case.bind(op.reference), *arrays)
    magnitude = _second_reference(case.bind(op.reference), *map(np.abs, arrays))
    ours = call(second, op.suite.ours, *sources)
    plain = functools.partial(second, op.plain, *sources)
    assert_all_close(ours, plain, truth, magnitude)


@_parametrized(
    "op, name, rival",
    lambda op: [(n, r) for n in op.frames.get("rivals", ()) for r in op.suite.rivals],
)
def test_rivals(op, name, rival, device):
    """A rival, which may be the yardstick of precision, computes the same."""
    case = op.case(name)
    tensors = op.draw(case, tf.float64)
    results = op.results(case.bind(op.suite.rivals[rival]), *tensors)
    truths = case.bind(op.reference)(*exact(tensors))
    for result, truth in zip(results, truths, strict=True):
        np.testing.assert_allclose(result, truth, rtol=0, atol=1e-12)


@half_types
@_named("long_sums")
def test_half_types_accumulate_in_float32(op, name, dtype, device):
    """Sums of positive terms are rounded once, as only sums in a wider type are."""
    case = op.case(name)
    tensors = op.positive(op.draw(case, dtype))
    truths = case.bind(op.reference)(*exact(tensors))
    for result, truth in zip(op.ours(case, tensors), truths, strict=True):
        assert_rounded(result.numpy(), truth)


@pytest.mark.parametrize("allowed", [False, True])
@_named("tensor_float_32")
def test_tensor_float_32_follows_the_switch(op, name, allowed, device):
    """With TF32 allowed, the yardstick is plain TensorFlow of rounded numbers."""
    case = op.case(name)
    tensors = op.draw(case, tf.float32)
    tf.config.experimental.enable_tensor_float_32_execution(allowed)
    yardstick = rounded_to_tf32(tensors) if allowed else None
    op.assert_close_to_reference(case, tensors, yardstick)


@every_dtype
@_parametrized(
    "op, case",
    lambda op: [(op.case(name),) for name in _names(op, "unknown_shapes", empty=True)],
)
def test_unknown_shapes_change_nothing(op, case, dtype, device):
    """Graphs traced without any shape give the very numbers of those with shapes."""
    tensors = op.draw(case, dtype)
    compute = case.bind(op.suite.ours)
    signature = [tf.TensorSpec(None, tensor.dtype) for tensor in tensors]
    unknown = traced(functools.partial(op.results, compute), signature)(*tensors)
    for known in (compute, traced(compute)):
        for one, other in zip(op.results(known, *tensors), unknown, strict=True):
            np.testing.assert_array_equal(one.numpy(), other.numpy())


@every_dtype
@_parametrized("op, name", lambda op: [(name,) for name in op.empty])
def test_empty_dimensions_give_zeros(op, name, dtype, device):
    """Also where the result is not empty."""
    case = op.case(name)
    tensors = op.draw(case, dtype)
    for result, like in zip(op.ours(case, tensors), tensors, strict=False):
        np.testing.assert_array_equal(result.numpy(), np.zeros(like.shape))


def _all_gradients(function):
    """Returns the gradient of a smooth number made of `function`, as one vector."""

    def gradients(*arguments):
        with tf.GradientTape() as tape:
            tape.watch(arguments)
            loss = tf.reduce_sum(tf.sin(function(*arguments)))
        found = tape.gradient(loss, arguments)
        return tf.concat([tf.reshape(gradient, [-1]) for gradient in found], 0)

    return gradients


def _assert_derivatives(op, case, order):
    _, *inputs = op.draw(case, tf.float64)
    sources = inputs[: op.suite.sources]
    others = inputs[len(sources) :]

    def function(*sources):
        return case.bind(op.suite.ours)(*sources, *others)

    for _ in range(order - 1):
        function = _all_gradients(function)
    assert_gradients_agree(traced(function) if order > 1 else function, sources)


@_cases(cases.GRADIENT)
def test_gradients(op, case, device):
    """They are the finite differences of the output."""
    _assert_derivatives(op, case, 1)


@pytest.mark.parametrize("order", [2, 3])
@_named("higher_derivatives")
def test_higher_derivatives(op, name, order, device):
    """They are the finite differences of the derivatives of one order less."""
    _assert_derivatives(op, op.case(name), order)


@both_ways
@_parametrized("op", lambda op: [()])
def test_gradient_of_one_input_alone(op, way, device):
    """It is the same as beside the gradients of other inputs."""
    (case, *_) = op.suite.select(cases.SMOKE)
    _, *inputs = op.draw(case, tf.float64)

    @way
    def gradients(*chosen):
        sources = [inputs[number] for number in chosen]
        with tf.GradientTape() as tape:
            tape.watch(sources)
            output = case.bind(op.suite.ours)(*inputs)
        return tape.gradient(output, sources)

    numbers = range(len(inputs))[: op.suite.sources]
    for number, expected in zip(numbers, gradients(*numbers), strict=True):
        (alone,) = gradients(number)
        np.testing.assert_array_equal(alone.numpy(), expected.numpy())


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("mapping", [tf.map_fn, tf.vectorized_map])
@_parametrized("op", lambda op: [()])
def test_maps(op, mapping, jit_compile, device):
    """They give the values and gradients of one sample after another."""
    (case, *_) = op.suite.select(cases.SMOKE)
    grad, *inputs = op.draw(case, tf.float64)
    compute = functools.partial(op.results, case.bind(op.suite.ours), grad)

    def results(scale):
        sources = [scale * x for x in inputs[: op.suite.sources]]
        found = compute(*sources, *inputs[len(sources) :])
        return tf.concat([tf.reshape(each, [-1]) for each in found], 0)

    scales = tf.constant([1.0, -2.0, 0.5], tf.float64)
    mapped = tf.function(mapping, autograph=False, jit_compile=jit_compile)
    expected = [results(scale) for scale in scales]
    np.testing.assert_array_equal(mapped(results, scales), expected)


@pytest.mark.parametrize("jit_compile", [False, True])
@_parametrized("op", lambda op: [()])
def test_loops(op, jit_compile, device):
    """Gradients go through TensorFlow's loops as through Python's."""
    (case, *_) = op.suite.select(cases.SMOKE)
    grad, *inputs = op.draw(case, tf.float64)
    sources = inputs[: op.suite.sources]

    def added(total, step, *sources):
        scaled = [(1 + tf.cast(step, tf.float64)) * source for source in sources]
        return total + case.bind(op.suite.ours)(*scaled, *inputs[len(sources) :])

    def of_python(*sources):
        total = tf.zeros_like(grad)
        for step in range(3):
            total = added(total, step, *sources)
        return total

    def of_tensorflow(*sources):
        _, total = tf.while_loop(
            lambda step, _: step < 3,
            lambda step, total: (step + 1, added(total, step, *sources)),
            (0, tf.zeros_like(grad)),
            maximum_iterations=3,
        )
        return total

    compute = tf.function(op.results, autograph=False, jit_compile=jit_compile)
    expected = op.results(of_python, grad, *sources)
    for loop in (of_python, of_tensorflow):
        for result, truth in zip(compute(loop, grad, *sources), expected, strict=True):
            # They add the steps' gradients up in different orders.
            allowed = 8 * ulp(np.float64) * np.abs(truth).max()
            np.testing.assert_allclose(result, truth, rtol=0, atol=allowed)
