# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Makes the tensors of a drawn call, and judges what the op does with them."""

import functools
import math

import calls
import moments
import numpy as np
import signatures
import tensorflow as tf
from descriptions import DTYPES, Description
from descriptions.capsule_conv_routing import OP as SLIM
from descriptions.capsule_routing import OP as ROUTING
from descriptions.capsule_routing import plain_coefficients
from reference import capsule_conv_routing, capsule_routing, inq
from registrations import bare, snake_case

ERRORS = (
    tf.errors.InvalidArgumentError,
    tf.errors.NotFoundError,  # there is no kernel of such types
    tf.errors.ResourceExhaustedError,
    tf.errors.UnimplementedError,
    TypeError,
    ValueError,
)
_LARGEST_COMPARED = 64  # of all dimensions


def tensors(call):
    """Returns the inputs of a call by name, the same each time."""
    rng = np.random.default_rng(0)
    found = {}
    for name, shape in call.shapes.items():
        if call.is_sizes(name):
            array = np.array(shape, np.int32)
            array = np.array(array[:1].sum()) if call.ranks.get(name) == 0 else array
            array = array[None] if call.ranks.get(name) == 2 else array
        elif 0 in shape:
            array = None
        elif name in ("top_exponent", "zero_point"):
            array = np.full(shape, call.top_exponent)
        elif name == "codes":
            array = rng.integers(0, min(2 ** (calls.bits(call) - 1), 16) + 1, shape)
            if call.code is not None:
                array.flat[-1] = call.code
        elif signatures.is_routed(call.op):
            # Sums over windows are longer, and a clear decision amplifies rounding.
            array = rng.integers(-4, 5, shape) / (
                16 if signatures.is_slim(call.op) else 4
            )
        else:
            array = rng.integers(-2, 3, shape)
        found[name] = _tensor(array, shape, call.types[name])
    if call.dims and "sums" in found and 0 not in call.shapes["sums"]:
        found["sums"] = _sums(call, found)
    if call.dims and call.op == "CapsuleMomentsGrad":
        belonging = moments.belonging(call, found)
        found |= {n: tf.cast(t, call.types[n]) for n, t in belonging.items()}
    return found


def _tensor(array, shape, dtype):
    if dtype == tf.string:
        shape = shape if array is None else array.shape
        return tf.fill(tf.constant(shape, tf.int64), "")
    if array is None:
        return tf.fill(tf.constant(shape, tf.int64), tf.zeros([], dtype))
    return tf.cast(tf.constant(array), dtype)


def _sums(call, found):
    """Returns the sums that belong to the other inputs, where they are numbers."""
    operands = [found[name] for name in ("input", "weights", "logits")]
    if max(call.dims.values()) > _LARGEST_COMPARED:  # NumPy may have no such array
        return found["sums"]
    if not all(each.dtype in DTYPES for each in (*operands, found["sums"])):
        return found["sums"]
    arrays = [each.numpy().astype(np.float64) for each in operands]
    sums = capsule_routing.sums(*arrays, call.dims["t"], _epsilon(call))
    return tf.cast(sums, found["sums"].dtype)


def _epsilon(call):
    return float(np.float32(call.attributes["epsilon"]))


def compute(call, **inputs):
    """Calls the op, and returns the list of its results."""
    name = calls.TYPED_RESULTS.get(call.op)
    types = {name: call.sums_type} if name else {}
    op = getattr(bare(), snake_case(call.op))
    results = op(**inputs, **call.attributes, **types)
    return list(results) if isinstance(results, tuple) else [results]


def must_succeed(call, on_gpu):
    """Tells whether a call is valid and its results fit into memory."""
    if not _well_typed(call) or call.dims is None:
        return False
    if not on_gpu and _is_code_wrong(call):  # which a GPU reads as zero
        return False
    if "zero_point" in call.shapes and not 0 <= call.top_exponent <= 255:
        return False
    return max(map(math.prod, call.results)) < calls.NO_MEMORY and not _too_large(call)


def may_succeed(call, on_gpu):
    """Tells the same of a call that the op may also refuse.

    It may where sizes are too large to be multiplied though there are no elements, and
    where nobody looks at a code that is not in the book.
    """
    if must_succeed(call, on_gpu):
        return True
    if not _well_typed(call) or call.dims is None:
        return False
    results = call.results
    if max(map(math.prod, results)) >= calls.NO_MEMORY:
        return False
    empty = 0 in [
        math.prod(shape) for shape in (*results, *call.shapes.values()) if shape
    ]
    return empty or _too_large(call)


def _too_large(call):
    if not all(map(calls.exists, call.results)):
        return True
    if signatures.is_slim(call.op):
        votes = math.prod(max(1, call.dims[a]) for a in "tijd")
        return votes > 2**48 or max(call.dims.values()) > 2**61
    if not signatures.is_routing(call.op):
        return False
    sums = math.prod(max(1, call.dims[a]) for a in "tbjd")
    return sums > 2**48 or call.dims["t"] >= 2**31  # an attribute's largest iterations


def _is_code_wrong(call):
    if call.code is None or 0 in call.shapes["codes"]:
        return False
    return call.code > 2 ** (call.attributes["bits"] - 1)


def fixed_types_hold(call):
    """Tells whether inputs whose types no attribute chooses have them."""
    fixed = {name: tf.int32 for name in call.names if call.is_sizes(name)}
    fixed |= signatures.fixed_types(call.op)
    return all(
        call.types[name] == fixed.get(name, call.types[name]) for name in call.names
    )


def _well_typed(call):
    wide = {name for name in call.names if signatures.is_wide(call.op, name)}
    others = (*signatures.fixed_types(call.op), *wide)
    numbers = {
        dtype
        for name, dtype in call.types.items()
        if name not in others and not call.is_sizes(name)
    }
    if call.op == "InqDecode":
        numbers = {call.sums_type}
    if len(numbers) != 1 or not fixed_types_hold(call):
        return False
    (dtype,) = numbers
    sums = {call.types[name] for name in wide}
    if calls.TYPED_RESULTS.get(call.op) == "U":
        sums = {call.sums_type}
    return dtype in DTYPES and sums <= {calls.sums_type(dtype)}


def have_same_bits(one, other):
    """Compares tensors, also empty ones of so large shapes that NumPy has none such."""
    if one.shape != other.shape or not one.shape.num_elements():
        return one.shape == other.shape
    return one.numpy().tobytes() == other.numpy().tobytes()


def assert_right(call, found, results):
    """Asserts that results are those of the reference, as far as that can compute."""
    assert [tuple(result.shape) for result in results] == call.results
    if (
        max(map(math.prod, call.results)) == 0
        or max(call.dims.values()) > _LARGEST_COMPARED
    ):
        # All sums are empty, but for shares of votes that have no numbers.
        routed = signatures.is_routed(call.op)
        # Else all sums are empty, to which one op adds a bias.
        if not routed and "bias" not in call.shapes:
            filled = [r for r in results if r.shape.num_elements()]
            assert not any(result.numpy().any() for result in filled)
        return
    arrays = [
        np.asarray(call.shapes[name]) if call.is_sizes(name) else tensor.numpy()
        for name, tensor in found.items()
    ]
    arrays = [a if a.dtype.kind in "iu" else a.astype(np.float64) for a in arrays]
    if "codes" in found:  # those past the book, which got here, are read as zero
        codes = arrays[list(found).index("codes")]
        codes[codes > 2 ** (call.attributes["bits"] - 1)] = 0
    if signatures.is_moments(call.op):
        moments.assert_right(call, found, results)
    elif signatures.is_slim(call.op):
        _assert_slim(call, list(found.values()), arrays, results)
    elif call.op == "InqCapsuleRouting":
        if abs(call.top_exponent) <= 5:
            inputs, codes, top, logits = arrays
            arrays = [
                inputs,
                inq.decode(codes, call.attributes["bits"], int(top)),
                logits,
            ]
            given = [tf.cast(array, call.types["input"]) for array in arrays]
            _assert_routed(call, given, arrays, results)
    elif signatures.is_routing(call.op):
        _assert_routed(call, list(found.values()), arrays, results)
    elif abs(call.top_exponent) <= 5:
        # Sums of small whole numbers, or of these and powers of two, are exact.
        arrays = [tuple(a) if a.ndim == 1 else a for a in arrays]
        truths = signatures.answers(call.op, call.form, arrays, call.attributes)
        for result, truth in zip(results, truths, strict=True):
            result = result.numpy()
            np.testing.assert_array_equal(result, truth.astype(result.dtype))


def _assert_routed(call, given, arrays, results):
    steps = {"iterations": call.dims["t"], "epsilon": _epsilon(call)}
    plain = functools.partial(ROUTING.plain, **steps)
    if call.op == "CapsuleRoutingGrad":
        given, arrays = given[:4], arrays[:4]
        truths = capsule_routing.backward(*arrays, **steps)
        sizes = capsule_routing.backward_magnitude(*arrays, **steps)
        plain_results = lambda: Description.results(ROUTING, plain, *given)[1:]  # noqa: E731
    elif call.op == "CapsuleRoutingCoefficients":
        steps["iterations"] += 1
        truths = [capsule_routing.coefficients(*arrays[:3], **steps)]
        plain_results = lambda: [plain_coefficients(*given[:3], **steps)]  # noqa: E731
        sizes = [np.ones(())]
    else:
        truths, sizes = [capsule_routing.forward(*arrays, **steps)], [np.ones(())]
        plain_results, results = lambda: [plain(*given)], results[:1]
    moments.assert_mixed_close(results, truths, plain_results, sizes)


def _assert_slim(call, given, arrays, results):
    attributes = {**call.attributes, "epsilon": _epsilon(call)}
    sizes = ("strides", "dilations")
    as_tuples = {name: tuple(attributes[name]) for name in sizes}
    plain = functools.partial(SLIM.plain, **{**attributes, **as_tuples})
    if call.op == "CapsuleConvRouting":
        truths = [capsule_conv_routing.forward(*arrays, **attributes)]
        magnitudes, plain_results = [np.ones(())], lambda: [plain(*given)]
    else:
        truths = capsule_conv_routing.backward(*arrays, **attributes)
        magnitudes = capsule_conv_routing.backward_magnitude(*arrays, **attributes)
        plain_results = lambda: Description.results(SLIM, plain, *given)[1:]  # noqa: E731
    moments.assert_mixed_close(results, truths, plain_results, magnitudes)
