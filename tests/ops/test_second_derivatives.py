# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Hessian-vector products of every op, by tapes and accumulators, and their refusals.

The truth is two tapes over the portable definition in float64.
"""

import fresh
import numpy as np
import pytest
import tensorflow as tf
from frames import both_ways, traced

import tf_capsops
from tf_capsops.ops import capsule_routing_second

_CODES = np.uint8([[[[1, 2], [3, 0]]]])
OPS = {
    "capsule_prediction": (tf_capsops.capsule_prediction, (2, 3, 4), (3, 2, 5, 4)),
    "capsule_routing": (
        lambda *operands: tf_capsops.capsule_routing(*operands, iterations=1),
        (2, 3, 4),
        (3, 2, 5, 4),
        (3, 2),
    ),
    "capsule_conv2d": (
        lambda *operands: tf_capsops.capsule_conv2d(*operands, 2, "SAME"),
        (1, 3, 3, 2, 1, 2),
        (2, 2, 2, 2, 2, 3),
    ),
    "capsule_conv2d_bias_relu": (
        tf_capsops.capsule_conv2d_bias_relu,
        (1, 3, 3, 2, 1, 2),
        (2, 2, 2, 2, 2, 3),
        (2, 1, 3),
    ),
    "high_order_conv2d": (
        lambda *operands: tf_capsops.high_order_conv2d(*operands, 3),
        (1, 3, 2, 2),
        (1, 3, 2, 9),
    ),
    "inq_conv2d": (
        lambda inputs: tf_capsops.inq_conv2d(inputs, _CODES, 1),
        (1, 3, 2, 2),
    ),
    "squash": (tf_capsops.squash, (2, 3, 4)),
}
_SENTENCE = (  # and no other
    r"^{} has no second derivative [^.\n]+; within "
    r"tf_capsops\.portable\(\) both exist\.$"
)
MOMENTS = (1, 2, 3, 2, 2, 2), (1, 2, 3, 2), (1, 2, 2, 2, 2, 2)
_ONCE = {  # ops that are differentiable once
    "CapsuleMoments": (tf_capsops.capsule_moments, *MOMENTS),
    "CapsuleConvRouting": (
        tf_capsops.capsule_conv_routing,
        *((1, 2, 3, 2, 3), (2, 1, 3, 2, 2), (2, 2), (2, 2)),
    ),
}

every_op = pytest.mark.parametrize("op", OPS)
once = pytest.mark.parametrize("op", _ONCE)


def _draw(shapes):
    """Returns operands and their tangents."""
    rng = np.random.default_rng(0)
    return [[tf.constant(rng.uniform(-1, 1, s)) for s in shapes] for _ in range(2)]


def _loss(compute, operands):
    """A function of an op's outputs whose derivatives of every order vary."""
    outputs = tf.nest.flatten(compute(*operands))
    return tf.add_n([tf.reduce_sum(tf.sin(3 * each)) for each in outputs])


def _gradients(compute, operands):
    with tf.GradientTape() as tape:
        tape.watch(operands)
        loss = _loss(compute, operands)
    return tape.gradient(loss, operands)


def _tape_over_tape(compute, operands, tangents):
    with tf.GradientTape() as outer:
        outer.watch(operands)
        gradients = _gradients(compute, operands)
    return outer.gradient(gradients, operands, tangents)


def _accumulator_over_tape(compute, operands, tangents):
    with tf.autodiff.ForwardAccumulator(operands, tangents) as accumulator:
        gradients = _gradients(compute, operands)
    return [accumulator.jvp(each) for each in gradients]


def _tape_over_accumulator(compute, operands, tangents):
    with tf.GradientTape() as tape:
        tape.watch(operands)
        with tf.autodiff.ForwardAccumulator(operands, tangents) as accumulator:
            loss = _loss(compute, operands)
        along = accumulator.jvp(loss)
    return tape.gradient(along, operands)


def _forward(compute, operands, tangents):
    with tf.autodiff.ForwardAccumulator(operands, tangents) as accumulator:
        loss = _loss(compute, operands)
    return accumulator.jvp(loss)


def _jacobian(compute, operands, _):
    with tf.GradientTape() as outer:
        outer.watch(operands)
        gradients = _gradients(compute, operands)
    return outer.jacobian(gradients[1], operands)


def _batch_jacobian(compute, operands, _):
    with tf.GradientTape() as outer:
        outer.watch(operands)
        gradients = _gradients(compute, operands)
    return outer.batch_jacobian(gradients[0], operands[0])


def _assert_right(found, compute, operands, tangents):
    with tf_capsops.portable():
        right = _tape_over_tape(compute, operands, tangents)
    for ours, exact in zip(found, right, strict=True):
        np.testing.assert_allclose(
            ours, exact, rtol=0, atol=1e-12 * np.abs(exact).max()
        )


@pytest.fixture(autouse=True)
def _nothing_is_traced():
    """Makes each test the first of its process to differentiate routing twice."""
    capsule_routing_second._traced.cache_clear()


@pytest.mark.ci
@every_op
def test_an_accumulator_over_a_tape(op, device):
    compute, *shapes = OPS[op]
    drawn = _draw(shapes)
    _assert_right(_accumulator_over_tape(compute, *drawn), compute, *drawn)


@every_op
def test_a_tape_over_an_accumulator(op, device):
    compute, *shapes = OPS[op]
    drawn = _draw(shapes)
    _assert_right(_tape_over_accumulator(compute, *drawn), compute, *drawn)


@pytest.mark.ci
@every_op
def test_compiled_by_xla(op, device):
    compute, *shapes = OPS[op]
    drawn = _draw(shapes)

    @tf.function(autograph=False, jit_compile=True)
    def compiled(*drawn):
        return _accumulator_over_tape(compute, *drawn)

    _assert_right(compiled(*drawn), compute, *drawn)


def test_a_third_derivative_of_routing(device):
    """Its passes go over blocks, too, as those of the second one."""
    compute, *shapes = OPS["capsule_routing"]
    operands, tangents = _draw(shapes)

    def third():
        with tf.GradientTape() as tape:
            tape.watch(operands)
            second = _tape_over_tape(compute, operands, tangents)
        return tape.gradient(second, operands, tangents)

    found = traced(third)()
    with tf_capsops.portable():
        right = third()
    for ours, exact in zip(found, right, strict=True):
        np.testing.assert_allclose(
            ours, exact, rtol=0, atol=1e-12 * np.abs(exact).max()
        )


def test_the_number_of_iterations_may_be_unknown(device):
    """As after many traces, where TensorFlow relaxes the shapes of JVPs."""
    op = tf_capsops.ops.capsule_routing._library.load()
    _, *shapes = OPS["capsule_routing"]
    operands, tangents = _draw(shapes)
    kept = op.capsule_routing_with_sums(*operands, U=tf.float64, iterations=2)
    grad = tf.cos(kept.output)

    def second(sums):
        with tf.GradientTape() as tape:
            tape.watch(operands)
            found = op.capsule_routing_grad(grad, *operands, sums)
        return tape.gradient(found, operands, tangents)

    signature = [tf.TensorSpec([None] * 4, tf.float64)]
    found = traced(second, signature)(kept.sums)
    for ours, right in zip(found, second(kept.sums), strict=True):
        np.testing.assert_allclose(ours, right, rtol=1e-12, atol=1e-12)


@both_ways
@pytest.mark.parametrize(
    "derivative",
    [
        _tape_over_tape,
        _accumulator_over_tape,
        _tape_over_accumulator,
        _forward,
        _jacobian,
        _batch_jacobian,
    ],
)
@once
def test_some_say_that_there_is_none(op, derivative, way, device):
    compute, *shapes = _ONCE[op]
    refused = way(lambda *drawn: derivative(compute, *drawn))
    with pytest.raises(LookupError, match=_SENTENCE.format(op)):
        refused(*_draw(shapes))


@pytest.mark.parametrize("jit_compile", [False, True])
@once
def test_autograph_keeps_the_refusal_as_it_is(op, jit_compile, device):
    compute, *shapes = _ONCE[op]

    @tf.function(jit_compile=jit_compile)
    def refused(*drawn):
        return _tape_over_tape(compute, *drawn)

    with pytest.raises(LookupError, match=_SENTENCE.format(op)):
        refused(*_draw(shapes))


@once
def test_portable_ones_have_one(op, device):
    compute, *shapes = _ONCE[op]
    drawn = _draw(shapes)
    with tf_capsops.portable():
        found = _accumulator_over_tape(compute, *drawn)
    _assert_right(found, compute, *drawn)


_IN_A_GRAPH_OF_TENSORFLOW_1 = """
import tensorflow as tf

tf.compat.v1.disable_v2_behavior()

import contextlib, sys
sys.path.insert(0, sys.argv[1])
import numpy as np, tf_capsops
from ops.test_second_derivatives import MOMENTS, OPS

def weighted(function):
    return lambda *operands: function(*operands) * tf.reduce_sum(operands[0])

coefficients = weighted(tf_capsops.routing_coefficients)
ops = {
    **OPS,
    "coefficients": (coefficients, (2, 3, 4), (3, 2, 5, 4)),
    "moments": (tf_capsops.capsule_moments, *MOMENTS),
    "shares": (weighted(tf_capsops.moment_shares), *MOMENTS),
}
rng = np.random.default_rng(0)
results, fed = [], {}
for op, (compute, *shapes) in ops.items():
    known = op in ("moments", "shares")  # portable definitions ask for a kernel's size
    arrays = [rng.uniform(-1, 1, shape) for shape in shapes]
    for block in contextlib.nullcontext(), tf_capsops.portable():
        with block:
            sizes = shapes if known else [[None] * len(shape) for shape in shapes]
            operands = [tf.compat.v1.placeholder(tf.float64, size) for size in sizes]
            fed.update(zip(operands, arrays))
            outputs = tf.nest.flatten(compute(*operands))
            loss = tf.add_n([tf.reduce_sum(tf.sin(3 * each)) for each in outputs])
            options = {"unconnected_gradients": "zero"}
            gradients = tf.gradients(loss, operands, **options)
            if op != "moments":
                gradients += tf.gradients(gradients, operands, **options)
            results.append([*outputs, *gradients])
with tf.compat.v1.Session() as session:
    found = session.run(results, fed)
for op, ours, plain in zip(ops, found[::2], found[1::2], strict=True):
    for one, other in zip(ours, plain, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-11, err_msg=op)
print(*ops)
"""


@pytest.mark.ci
def test_in_graphs_of_tensorflow_1():
    # A session of TensorFlow 1 takes all memory of a GPU.
    printed = fresh.run(
        *(_IN_A_GRAPH_OF_TENSORFLOW_1, fresh.ROOT / "tests"), CUDA_VISIBLE_DEVICES="-1"
    )
    assert printed.split() == [*OPS, "coefficients", "moments", "shares"]
