# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Draws calls of raw ops that are valid, or nearly so.

A call begins as a valid one of small sizes. Then up to three mutations change a
dimension everywhere, one tensor's shape, an attribute, a type, or numbers. A mutation
that would need much memory or time, as any program would for it, is left out.
"""

import dataclasses
import itertools
import math

import signatures
import tensorflow as tf
from descriptions import DTYPES
from hypothesis import strategies as st
from reference import capsule_routing

HUGE = (2**31 - 1, 2**31, 2**40, 2**62)
_SIZES = {"t": (1, 3), "y": (1, 3), "x": (1, 3), "h": (1, 7), "w": (1, 7), "f": (1, 1)}
_SIZES |= {"a": (1, 3), "z": (1, 5)}
_MOST_GIVEN = 2**16  # elements of an input
_MOST_COUNTED = 2**24  # products of numbers of one call
_MOST_RETURNED = 2**20  # elements of a result that can be computed,
NO_MEMORY = 2**48  # and of one that no machine can hold

_PAIRS = ([1, 2], [3, 1], [2**31 - 1, 1], [2**31 - 1] * 2, [2**31, 1], [0, 1], [-1, 1])
_PAIRS += ([], [1], [1, 1, 1], [1, -(2**31)], [2**40, 2**40], ["1", 1], 1)
_STRANGE = {
    "strides": _PAIRS,
    "dilations": _PAIRS,
    "kernel_size": (*_PAIRS, [3, 3], [2, 2], [5, 1], [2**31 - 1, 2**31 - 3]),
    "padding": ("SAME", "VALID", "same", "FULL", "", "EXPLICIT", 3, "\0"),
    "data_format": ("NHWC", "NCHW", "NHWC ", "", "NCDHW", 3),
    "groups": (2, 3, 0, -1, 2**31, 2**40, 2**62, 2**63 - 1),
    "bits": (2, 4, 8, 1, 9, 0, -5, 2**31, 2**40, "5"),
    "order": (0, 1, 2, 3, -1, 2**31, 2**40, "1"),
    "normalize": ("parents", "all", "none", "both", "", 3),
    "transposed": (True, False, "both", 3),
    "leaky": (True, False, "", 3),
    "iterations": (2, 0, -1, 2**31 - 1, 2**31, 2**40, 2**63 - 1),
    "epsilon": (2**-10, 0.0, -1.0, 1e-46, 1e-40, 1e38, 1e39, math.inf, math.nan, "0"),
}
_ONES = {
    **{name: [1, 1] for name in ("strides", "dilations", "kernel_size")},
    **{"padding": "VALID", "data_format": "NHWC", "groups": 1, "bits": 3, "order": 2},
    **{"normalize": "parents", "iterations": 2, "epsilon": 2**-7},
    **{"transposed": False, "leaky": False},
}
# The ops that have a result whose type no input has, and the attribute that names it.
TYPED_RESULTS = {
    "CapsuleRoutingWithSums": "U",
    "InqCapsuleRouting": "U",
    "InqDecode": "T",
}
_NUMBERS = (0, -1, 1, 2, 5, 127, -150, 2**31 - 1, -(2**31))
_TYPES = (*DTYPES, tf.int32, tf.int64, tf.uint8, tf.bool, tf.complex64, tf.string)


@dataclasses.dataclass
class Call:
    """A call of one op.

    Attributes:
        shapes: Of all inputs, by name; of sizes what they hold.
        types: The dtypes of all inputs, by name.
        attributes: All but those that are types.
        sums_type: The type of sums that are a result, or of decoded weights.
        top_exponent: What the input of this name holds, or `zero_point`.
        code: The number that one of the codes is, or None.
        ranks: Those of sizes that are no vectors, by name.
        form: As `signatures.accepts` has it, and
        dims: the dimensions, which are None where the call is not valid.
    """

    op: str
    shapes: dict
    types: dict
    attributes: dict
    sums_type: tf.DType
    top_exponent: int = 0
    code: int | None = None
    form: str | None = None
    dims: dict | None = None
    ranks: dict = dataclasses.field(default_factory=dict)

    @property
    def names(self):
        return list(self.shapes)

    def judge(self):
        """Sets form and dimensions by the rules of the op."""
        shapes = [
            None if self.ranks.get(name, 1) != 1 else shape
            for name, shape in self.shapes.items()
        ]
        try:
            found = signatures.accepts(self.op, shapes, self.attributes)
        except TypeError:  # an attribute of another type
            found = None
        self.form, self.dims = found or (None, None)

    def is_sizes(self, name):
        return signatures.INPUTS[self.op][name].startswith("sizes:")

    @property
    def results(self):
        return signatures.result_shapes(
            self.op, self.form, self.dims, self.shapes, self.attributes
        )

    def feasible(self):
        """Tells whether inputs can exist, and results can or cannot beyond doubt."""
        given = [s for name, s in self.shapes.items() if not self.is_sizes(name)]
        sizes = [s for name, s in self.shapes.items() if self.is_sizes(name)]
        if any(size >= 2**31 for shape in sizes for size in shape):
            return False
        if not all(exists(s) and math.prod(s) <= _MOST_GIVEN for s in given):
            return False
        if self.dims is None:
            return True
        counts = [math.prod(shape) for shape in self.results]
        if signatures.is_routing(self.op):
            iterations = self.dims["t"]
            counts.append(math.prod(self.dims[a] for a in "tbjd"))
            if iterations > 2**16 and 0 < max(counts) < NO_MEMORY:
                return False
        if signatures.is_slim(self.op) and max(counts) < NO_MEMORY:
            taken = [axis for axis in self.dims if axis not in "zhw"]
            if math.prod(self.dims[axis] for axis in taken) > _MOST_COUNTED:
                return False
        return max(counts) <= _MOST_RETURNED or max(counts) >= NO_MEMORY


def exists(shape):
    """Tells whether TensorFlow has tensors of a shape: their elements are counted."""
    count = 1
    for size in shape:
        count *= size
        if count >= 2**63:
            return False
    return True


@st.composite
def calls(draw, op):
    """Draws calls of an op.

    Hypothesis draws one number, from which all else follows. To draw each part takes it
    longer than the calls do, and would only make smaller examples of failures, of which
    all are small.
    """
    random = draw(st.randoms(use_true_random=True))
    call = _valid(random, op)
    for _ in range(random.choice((0, 1, 1, 1, 2, 3))):
        before = dataclasses.replace(
            call,
            shapes=dict(call.shapes),
            types=dict(call.types),
            attributes=dict(call.attributes),
            ranks=dict(call.ranks),
        )
        _mutate(random, call)
        call.judge()
        if not call.feasible():
            call = before
    return call


def _picker(random):
    """Returns a function that draws one of its arguments."""
    return lambda *values: random.choice(values)


def _valid(random, op):
    pick = _picker(random)
    attributes = _attributes(op, pick)
    form = pick(*signatures.forms_of(op, attributes))
    texts = (*signatures.INPUTS[op].values(), *signatures.RESULTS[op])
    forms = signatures.forms_of(op, attributes)
    axes = {
        axis
        for text, each in itertools.product(texts, forms)
        for axis in signatures.axes_of(text, each)
    }
    dims = {
        axis: random.randint(*_SIZES.get(axis, (1, 4)))
        for axis in sorted(axes - {*"ZHW"})
    }
    if "groups" in attributes:
        dims["c"] = attributes["groups"] * pick(1, 2, 3)
    if attributes.get("padding") == "VALID":
        dilations = attributes["dilations"]
        axes = zip(*(axes[-len(dilations) :] for axes in ("zhw", "ayx")), dilations)
        for size, kernel, dilation in axes:
            dims[size] += (dims[kernel] - 1) * dilation
    if "iterations" in attributes:
        dims["t"] = attributes["iterations"]
    if not signatures.follow(op, dims, attributes):
        raise AssertionError((op, dims, attributes))
    call = _call(op, form, dims, attributes, pick(*DTYPES), pick(0, 1, -3))
    for name in call.names:
        optional = signatures.is_optional(op, name) and pick(True, False)
        if optional or signatures.is_left_out(name, attributes):
            call.shapes[name] = (0,)
    return call


def _call(op, form, dims, attributes, dtype, top_exponent=0):
    """Returns the valid call of these dimensions, with all inputs."""
    shapes, types = {}, {}
    for name, text in signatures.INPUTS[op].items():
        shapes[name] = tuple(dims[a] for a in signatures.axes_of(text, form))
        types[name] = dtype
        if text.startswith("sizes:"):
            types[name] = tf.int32
        elif name in signatures.fixed_types(op):
            types[name] = signatures.fixed_types(op)[name]
        elif signatures.is_wide(op, name):
            types[name] = sums_type(dtype)
    result = dtype if op == "InqDecode" else sums_type(dtype)
    call = Call(op, shapes, types, attributes, result, top_exponent)
    call.form, call.dims = form, dims
    return call


# How many dimensions are 0, how many others are huge, and how large these are.
_ZEROS_BESIDE_HUGE = (
    *((1, 1, HUGE[0]), (1, 2, HUGE[0]), (1, 1, HUGE[-1])),
    *((2, 1, HUGE[0]), (2, 1, HUGE[-1])),
)


def zero_beside_huge(op):
    """Yields valid calls of which one or two dimensions are 0, and one or two are huge.

    Two are 2^31 - 1 beside one 0, or one is that or 2^62. All others are 1. So there is
    nothing to compute, but maybe much to loop over, and products of dimensions
    overflow. Results that do not fit into memory are left out: TensorFlow tries for ten
    seconds to get memory before it says so.
    """
    attributes = {n: _ONES[n] for n in _attributes(op, lambda *values: values[0])}
    dtypes = itertools.cycle((tf.float32, tf.bfloat16))
    for change in (
        {},
        {"padding": "SAME"},
        {"normalize": "all"},
        {"normalize": "none"},
        {"transposed": True},
    ):
        if not change.keys() <= attributes.keys():
            continue
        changed = attributes | change
        for form in signatures.forms_of(op, changed):
            inputs = signatures.INPUTS[op].values()
            axes = {a for text in inputs for a in signatures.axes_of(text, form)}
            axes = sorted(axes - set("ZHWf"))
            for zeros, count, size in _ZEROS_BESIDE_HUGE:
                for zero, huge in _two_choices(axes, zeros, count):
                    dims = dict.fromkeys((*axes, "p"), 1)
                    dims |= dict.fromkeys(zero, 0) | dict.fromkeys(huge, size)
                    if not signatures.follow(op, dims, changed):
                        continue
                    call = _call(op, form, dims, dict(changed), next(dtypes))
                    counts = map(math.prod, call.results)
                    if call.feasible() and max(counts) < NO_MEMORY:
                        yield call


def _two_choices(axes, first, second):
    """Yields every choice of so many axes, each with every one of so many others."""
    for some in itertools.combinations(axes, first):
        others = [axis for axis in axes if axis not in some]
        for more in itertools.combinations(others, second):
            yield some, more


def sums_type(dtype):
    """Returns the type of the sums of routing, and of statistics."""
    return tf.float64 if dtype == tf.float64 else tf.float32


def _attributes(op, pick):
    window = {
        "strides": [pick(1, 2, 3), pick(1, 2)],
        "padding": pick("VALID", "SAME"),
        "dilations": [pick(1, 2), pick(1, 3)],
    }
    if signatures.is_slim(op):
        count = pick(1, 2, 3)
        moved = {
            n: [pick(1, 2, 3) for _ in range(count)] for n in ("strides", "dilations")
        }
        transposed = pick(False, True)
        if transposed:
            moved["dilations"] = [1] * count
        return {
            "iterations": pick(1, 2, 3, 4),
            "epsilon": pick(capsule_routing.EPSILON, 2**-7),
            **moved,
            "padding": window["padding"],
            "transposed": transposed,
            "leaky": pick(False, True),
        }
    if op.startswith("CapsuleConv"):
        return window
    if op.startswith("InqConv"):
        return {"bits": pick(2, 3, 5), **window}
    if op == "InqDecode":
        return {"bits": pick(2, 3, 5)}
    if op.startswith("HighOrderConv"):
        return {
            "kernel_size": [pick(1, 3, 5), pick(1, 3)],
            "dilations": [pick(1, 2), pick(1, 3)],
            "groups": pick(1, 2, 3),
            "data_format": pick("NHWC", "NCHW"),
        }
    if signatures.is_moments(op):
        normalize = {"normalize": pick("parents", "all", "none")}
        order = {} if op == "CapsuleMomentShares" else {"order": pick(0, 1, 2)}
        return {**order, **normalize, **window}
    if op in ("CapsuleRouting", "CapsuleRoutingWithSums", "InqCapsuleRouting"):
        return {
            **({"bits": pick(2, 3, 5)} if op == "InqCapsuleRouting" else {}),
            "iterations": pick(1, 2, 3, 4),
            "epsilon": pick(capsule_routing.EPSILON, 2**-7),
        }
    return {"epsilon": capsule_routing.EPSILON} if signatures.is_routing(op) else {}


def _mutate(random, call):
    """Changes a call, maybe to what it was."""
    pick = _picker(random)
    kinds = ["everywhere", "everywhere", "tensor", "tensor", "type"]
    kinds += ["attribute", "attribute"] if call.attributes else []
    kinds += ["numbers"] if "codes" in call.shapes else []
    kind, name = pick(*kinds), pick(*call.names)
    if kind == "everywhere" and call.dims:
        axis = pick(*sorted(call.dims))
        size = pick(0, 0, 1, 2, 5, *HUGE)
        for other, text in signatures.INPUTS[call.op].items():
            if call.shapes[other] == (0,):
                continue
            axes = signatures.axes_of(text, call.form)
            call.shapes[other] = tuple(
                size if axis == each else old
                for each, old in zip(axes, call.shapes[other])
            )
    elif kind == "attribute":
        name = pick(*call.attributes)
        call.attributes[name] = pick(*_STRANGE[name])
    elif kind == "numbers":
        call.top_exponent = pick(*_NUMBERS)
        call.code = pick(None, 0, 255, 2 ** (bits(call) - 1), 2 ** (bits(call) - 1) + 1)
    elif kind == "type" and call.op in TYPED_RESULTS and pick(True, False):
        call.sums_type = pick(*_TYPES)
    elif kind == "type":
        call.types[name] = pick(*_TYPES)
    elif call.is_sizes(name) and pick(True, False, False):
        call.ranks[name] = pick(0, 2)
    else:
        call.shapes[name] = _reshaped(call.shapes[name], call.is_sizes(name), pick)


def bits(call):
    bits = call.attributes["bits"]
    return bits if bits in range(2, 9) else 5


def _reshaped(shape, is_sizes, pick):
    shape = list(shape)
    strange = [0, 1, 2, *HUGE]
    if is_sizes:
        strange = [0, 1, 2, -1, 2**31 - 1, -(2**31)]
    how = pick("size", "size", "off by one", "shorter", "longer", "none")
    place = pick(*range(max(1, len(shape))))
    if how == "none":
        return ()
    if how == "longer":
        shape.insert(place, pick(*strange))
    elif shape and how == "shorter":
        del shape[place]
    elif shape and how == "size":
        shape[place] = pick(*strange)
    elif shape:
        shape[place] = max(0, shape[place] + pick(-1, 1))
    return tuple(shape)
