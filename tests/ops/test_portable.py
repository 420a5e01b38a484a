# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The functions under `tf_capsops.portable`, where TensorFlow's own ops make them."""

import concurrent.futures
import contextvars
import functools
import re

import descriptions
import fresh
import numpy as np
import pytest
import tensorflow as tf
from descriptions import every_dtype, exact, half_types
from frames import traced
from tolerances import assert_rounded

import tf_capsops
from tf_capsops.bench import cases

_OPS = {op.name: op for op in descriptions.every()}
_MOST_ELEMENTS = 3000  # of a case whose values are looked at


def _portable(compute):
    """Returns a function that is called in a block."""

    @functools.wraps(compute)
    def called(*arguments, **attributes):
        with tf_capsops.portable():
            return compute(*arguments, **attributes)

    return called


def _small(op):
    for case in op.suite.select(cases.CORRECTNESS):
        shapes = [each.shape for each in op.suite.draw(case, np.random.default_rng(0))]
        if max(map(np.prod, (*shapes, op.suite.output_shape(case)))) <= _MOST_ELEMENTS:
            yield case


def _named(select):
    return pytest.mark.parametrize(
        "op, name",
        [
            pytest.param(op, name, id=f"{op.name}-{name}")
            for op in _OPS.values()
            for name in select(op)
        ],
    )


def _types(graph):
    """Returns the types of all operations of a graph and its functions."""
    definition = graph.as_graph_def()
    nodes = [*definition.node]
    for function in definition.library.function:
        nodes += function.node_def
    return {node.op for node in nodes}


def _has_ours(compute, *arguments):
    found = _types(tf.function(compute).get_concrete_function(*arguments).graph)
    return any(kind.startswith(("Capsule", "HighOrder", "Inq")) for kind in found)


@pytest.mark.parametrize("op", _OPS.values(), ids=_OPS)
def test_values_and_gradients_of_every_small_case(op, device):
    """Nothing else checks the definitions in float64, where plain ones differ least."""
    for case in _small(op):
        tensors = op.draw(case, tf.float64)
        results = op.results(case.bind(_portable(op.suite.ours)), *tensors)
        truths = case.bind(op.reference)(*exact(tensors))
        for result, truth in zip(results, truths, strict=True):
            np.testing.assert_allclose(
                result, truth, rtol=0, atol=1e-12, err_msg=case.name
            )


@every_dtype
@_named(lambda op: op.frames["unknown_shapes"])
def test_every_type(op, name, dtype, device):
    """Results have it, and are as exact as the ops'."""
    case = op.case(name)
    tensors = op.draw(case, dtype)
    results = op.results(case.bind(_portable(op.suite.ours)), *tensors)
    op.assert_close_to_reference(case, tensors, results=results)


@half_types
@_named(lambda op: [n for n in op.frames.get("long_sums", ()) if "NCHW" not in n])
def test_half_types_accumulate_in_float32(op, name, dtype, device):
    case = op.case(name)
    tensors = op.positive(op.draw(case, dtype))
    results = op.results(case.bind(_portable(op.suite.ours)), *tensors)
    truths = case.bind(op.reference)(*exact(tensors))
    for result, truth in zip(results, truths, strict=True):
        assert_rounded(result.numpy(), truth)


def _unknown(op):
    """Yields names of cases, and whether ranks are known: of one case they are."""
    first, *names = op.frames["unknown_shapes"]
    yield first, True
    # Ops that take several need to know a rank.
    needs_rank = op.name in ("capsule_conv", "capsule_conv_routing")
    yield from ((name, needs_rank) for name in names)
    if not names:
        yield first, False


@pytest.mark.parametrize(
    "op, name, is_rank_known",
    [
        pytest.param(op, *each, id="-".join(map(str, (op.name, *each))))
        for op in _OPS.values()
        for each in _unknown(op)
    ],
)
def test_unknown_shapes_change_nothing(op, name, is_rank_known, device):
    """But for rounding."""
    case = op.case(name)
    grad, inputs, *others = op.draw(case, tf.float64)
    compute = case.bind(_portable(op.suite.ours))

    def spec(tensor):
        shape = [None] * tensor.shape.rank if is_rank_known else None
        return tf.TensorSpec(shape, tensor.dtype)

    # Kernels are constants: windows are made of their pixels one by one.
    weights = [tf.TensorSpec(other.shape, other.dtype) for other in others]
    if op.name in ("capsule_prediction", "capsule_routing", "high_order_conv"):
        weights = [spec(other) for other in others]
    signature = [spec(grad), spec(inputs), *weights]
    unknown = traced(functools.partial(op.results, compute), signature)
    known = op.results(compute, grad, inputs, *others)
    for one, other in zip(unknown(grad, inputs, *others), known, strict=True):
        scale = max(1.0, np.abs(other).max(initial=0))  # moments are large sums
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-13 * scale)


@pytest.mark.parametrize("op", _OPS.values(), ids=_OPS)
def test_what_is_known_of_shapes_is_inferred(op):
    (case, *_) = op.suite.select(cases.SMOKE)
    _, inputs, *others = op.draw(case, tf.float32)
    batch = tf.TensorSpec([None, *inputs.shape[1:]], tf.float32)
    filters = [tf.TensorSpec(other.shape, other.dtype) for other in others]
    if op.name == "high_order_conv":
        filters = [tf.TensorSpec([None, *others[0].shape[1:]], tf.float32)]
    function = traced(case.bind(_portable(op.suite.ours)))
    output = function.get_concrete_function(batch, *filters).structured_outputs
    assert output.shape.as_list() == [None, *op.suite.output_shape(case)[1:]]


def _refused():
    """Yields a function, shapes of its operands, and attributes that do not fit."""
    predict, route = tf_capsops.capsule_prediction, tf_capsops.capsule_routing
    yield predict, [(2, 3), (3, 4, 5, 6)], {}
    yield predict, [(2, 3, 6), (1, 4, 5, 6)], {}
    yield predict, [(2, 3, 6), (3, 4, 5, 1)], {}
    for routing in (route, tf_capsops.routing_coefficients):
        yield routing, [(2, 3, 6), (3, 4, 5, 7)], {}
        yield routing, [(2, 3, 6), (3, 4, 5, 6), (1, 4)], {}
        yield routing, [(2, 3, 6), (3, 4, 5, 6), (4,)], {}
    image, kernel = (2, 5, 6, 3, 4, 4), (3, 2, 3, 8, 4, 4)
    for conv, more in (
        (tf_capsops.capsule_conv2d, []),
        (tf_capsops.capsule_conv2d_bias_relu, [(8, 4, 4)]),
    ):
        yield conv, [image[:5], kernel, *more], {}
        yield conv, [image, kernel[:5], *more], {}
        yield conv, [image, (3, 2, 1, 8, 4, 4), *more], {}
        yield conv, [image, (3, 2, 3, 8, 1, 4), *more], {}
        yield conv, [(*image, 4), (*kernel[:4], 3, 4, 4), *more], {}
        yield conv, [image, (0, 2, 3, 8, 4, 4), *more], {"padding": "SAME"}
        yield conv, [image, (6, 2, 3, 8, 4, 4), *more], {}
        yield conv, [image, kernel, *more], {"dilations": (1, 6)}
    for bias in ((8,), (1, 4, 4), (8, 1, 4)):
        yield tf_capsops.capsule_conv2d_bias_relu, [image, kernel, bias], {}
    high_order = tf_capsops.high_order_conv2d
    yield high_order, [(2, 5, 6), (2, 5, 6, 9)], {"kernel_size": 3}
    yield high_order, [(2, 5, 6, 4), (1, 5, 6, 9)], {"kernel_size": 3}
    yield high_order, [(2, 5, 6, 4), (2, 5, 6, 9)], {"kernel_size": (3, 5)}
    yield high_order, [(2, 5, 6, 4), (2, 5, 6, 27)], {"kernel_size": 3, "groups": 3}
    first = {"kernel_size": 3, "data_format": "NCHW"}
    yield high_order, [(2, 4, 5, 6), (2, 8, 5, 6)], first
    yield tf_capsops.inq_conv2d, [(2, 5, 6, 3), (3, 2, 1, 8), ()], {}
    yield tf_capsops.inq_conv2d, [(2, 5, 6, 3), (3, 2, 3, 8), (1,)], {}
    yield tf_capsops.inq_conv2d, [(2, 5, 6, 3), (6, 2, 3, 8), ()], {"padding": "VALID"}


@pytest.mark.parametrize("function, shapes, attributes", _refused())
def test_shapes_are_refused_with_the_ops_own_text(function, shapes, attributes, device):
    types = [tf.float32] * 3
    if function is tf_capsops.inq_conv2d:
        types = [tf.float32, tf.uint8, tf.int32]
    tensors = [tf.zeros(shape, dtype) for shape, dtype in zip(shapes, types)]
    with pytest.raises(tf.errors.InvalidArgumentError) as ours:
        function(*tensors, **attributes)
    text = re.search(r"\}\} (.*) \[Op:", str(ours.value))[1]
    # A caller of the functions knows no names of ops that are parts of them.
    text = re.sub(r"^CapsuleRouting\w+", "CapsuleRouting", text)
    portable = _portable(functools.partial(function, **attributes))
    with pytest.raises(tf.errors.InvalidArgumentError) as theirs:
        portable(*tensors)
    assert theirs.value.message == text
    with pytest.raises(ValueError, match=re.escape(text)):
        tf.function(portable)(*tensors)


def test_arguments_are_refused_as_ever():
    image, kernel = tf.zeros([1, 3, 3, 1, 2, 2]), tf.zeros([1, 1, 1, 1, 2, 2])
    with tf_capsops.portable():
        with pytest.raises(ValueError, match="capsule_conv2d: strides must be"):
            tf_capsops.capsule_conv2d(image, kernel, strides=0)
        with pytest.raises(TypeError, match="weights must have the type of inputs"):
            tf_capsops.capsule_conv2d(image, tf.cast(kernel, tf.float64))


def test_codes_past_the_book_are_refused():
    """On a CPU: a GPU reads them as zero, in either way."""
    image, codes = tf.ones([1, 1, 1, 1]), np.full([1, 1, 1, 1], 6, np.uint8)
    with tf_capsops.portable(), tf.device("CPU:0"):
        for compute in (
            lambda: tf_capsops.inq_conv2d(image, codes, 0, bits=3),
            lambda: tf_capsops.inq_conv2d_int8(image, codes, 0, 0.5, 0, bits=3),
            tf.function(lambda: tf_capsops.inq_conv2d(image, codes, 0, bits=3)),
        ):
            with pytest.raises(tf.errors.InvalidArgumentError, match="codes"):
                compute()


def _too_large():
    """Yields functions of images, of one size that is less than their kernels'."""
    valid, image, poses = {"padding": "VALID"}, (1, 5, 3, 2), (1, 5, 3, 2, 2, 2)
    codes, kernel = tf.ones([1, 4, 2, 3], tf.uint8), tf.ones([1, 4, 2, 3, 2, 2])
    yield lambda x: tf_capsops.capsule_conv2d(x, kernel), poses
    yield lambda x: tf_capsops.capsule_conv2d(x, kernel[:, :2], dilations=3), poses
    yield lambda x: tf_capsops.capsule_moments(x, None, kernel), poses
    yield lambda x: tf_capsops.inq_conv2d(x, codes, 0, **valid), image
    yield lambda x: tf_capsops.inq_conv2d_int8(x, codes, 0, 1.0, 0, **valid), image
    for axes in (1, 2, 3):
        slim = tf.ones([*[1] * (axes - 1), 4, 3, 2, 3])
        routed = functools.partial(tf_capsops.capsule_conv_routing, weights=slim)
        yield routed, (1, *[5] * (axes - 1), 3, 2, 3)


@pytest.mark.parametrize("function, image", _too_large())
def test_kernels_must_fit_into_images_of_unknown_size(function, image):
    """TensorFlow's ops may return nothing, or something of another size."""
    unknown = tf.TensorSpec([*[None] * (len(image) - 1), image[-1]])
    compute = traced(lambda images: _portable(function)(images), [unknown])
    with pytest.raises(tf.errors.InvalidArgumentError, match="at most in_width, got"):
        compute(tf.ones(image))


def test_ranks_of_a_capsule_convolution_must_be_known():
    compute = tf.function(_portable(tf_capsops.capsule_conv2d))
    with pytest.raises(ValueError, match=r"input must have rank 6 .* or 7 .*unknown"):
        compute.get_concrete_function(*[tf.TensorSpec(None, tf.float32)] * 2)


@pytest.mark.parametrize("image", [(0, 5, 7), (None, None, None)])
@pytest.mark.parametrize("kernel", [(2, 2), (None, None)])
@pytest.mark.parametrize("padding, size", [("SAME", (3, 4)), ("VALID", (2, 3))])
def test_an_empty_batch_of_images_of_unknown_size(padding, size, kernel, image):
    def convolve(inputs, weights):
        return tf_capsops.capsule_conv2d(inputs, weights, strides=2, padding=padding)

    unknown = tf.TensorSpec([*image, 2, 1, 4]), tf.TensorSpec([*kernel, 2, 3, 4, 5])
    convolved = tf.function(_portable(convolve), input_signature=unknown)
    for batch in (0,) if image[0] == 0 else (0, 1):
        operands = tf.ones([batch, 5, 7, 2, 1, 4]), tf.ones([2, 2, 2, 3, 4, 5])
        assert convolved(*operands).shape == (batch, *size, 3, 1, 5)


@pytest.mark.parametrize("size", [[1, 4, 4], [2, 1, 4], [2, 4, 1], [2, 1, 1]])
def test_filters_of_unknown_size_are_not_broadcast(size):
    unknown = [tf.TensorSpec([None, None, None, channels]) for channels in (2, 9)]
    compute = functools.partial(tf_capsops.high_order_conv2d, kernel_size=3)
    convolved = tf.function(_portable(compute), input_signature=unknown)
    image = tf.ones([2, 4, 4, 2])
    assert convolved(image, tf.ones([2, 4, 4, 9])).shape == image.shape
    with pytest.raises(tf.errors.InvalidArgumentError):
        convolved(image, tf.ones([*size, 9]))


def test_the_size_of_a_kernel_of_moments_must_be_known():
    poses = tf.TensorSpec([1, 3, 3, 1, 2, 2])
    weights = tf.TensorSpec([None, 2, 1, 2, 2, 2])

    def moments(poses, weights):
        return tf_capsops.capsule_moments(poses, None, weights)

    with pytest.raises(ValueError, match=r"kernel_height must be known under portable"):
        traced(_portable(moments)).get_concrete_function(poses, weights)


def test_coefficients_of_unknown_ranks():
    operands = tf.ones([2, 3, 4]), tf.ones([3, 5, 6, 4])
    compute = traced(
        _portable(tf_capsops.routing_coefficients), [tf.TensorSpec(None)] * 2
    )
    np.testing.assert_allclose(compute(*operands), np.full([2, 3, 5], 0.2), rtol=1e-6)


@pytest.mark.parametrize("iterations", [1, 3])
def test_coefficients_have_no_gradient(iterations, device):
    _, inputs, weights, logits = _OPS["capsule_routing"].draw(
        _OPS["capsule_routing"].case("primes"), tf.float32
    )
    given = inputs, weights, logits, iterations
    ours = tf_capsops.routing_coefficients(*given)
    with tf_capsops.portable(), tf.GradientTape() as tape:
        tape.watch(inputs)
        plain = tf_capsops.routing_coefficients(*given)
    assert tape.gradient(plain, inputs) is None
    np.testing.assert_allclose(plain, ours, rtol=0, atol=1e-6)


# The switch itself. Graphs show which way a call went.

_GIVEN = tf.TensorSpec([1, 2, 3]), tf.TensorSpec([2, 4, 5, 3])
_predict = tf_capsops.capsule_prediction


def test_blocks_nest_and_end():
    with tf_capsops.portable():
        with tf_capsops.portable():
            assert not _has_ours(_predict, *_GIVEN)
        assert not _has_ours(_predict, *_GIVEN)
    assert _has_ours(_predict, *_GIVEN)
    with pytest.raises(KeyError), tf_capsops.portable():
        raise KeyError
    assert _has_ours(_predict, *_GIVEN)


def test_a_block_inside_of_a_traced_function_holds_for_what_is_in_it():
    assert not _has_ours(_portable(_predict), *_GIVEN)


def test_graphs_stay_what_they_are():
    before, after = tf.function(_predict), tf.function(_predict)
    made = before.get_concrete_function(*_GIVEN)
    with tf_capsops.portable():
        assert before.get_concrete_function(*_GIVEN) is made
        inside = after.get_concrete_function(*_GIVEN)
    assert after.get_concrete_function(*_GIVEN) is inside
    assert "CapsulePrediction" in _types(made.graph) - _types(inside.graph)


def test_threads_know_nothing_of_each_others_blocks():
    with concurrent.futures.ThreadPoolExecutor(1) as pool, tf_capsops.portable():
        assert pool.submit(_has_ours, _predict, *_GIVEN).result()
        own = contextvars.copy_context()
        assert not pool.submit(own.run, _has_ours, _predict, *_GIVEN).result()


_WITHOUT_THE_LIBRARY = """
import numpy as np
import tensorflow as tf
import tf_capsops

arguments = tf.ones([1, 2, 3]), tf.ones([2, 4, 5, 3])
try:
    tf_capsops.capsule_prediction(*arguments)
except ImportError:
    print("missing")
with tf_capsops.portable():
    print(tf_capsops.capsule_prediction(*arguments).shape)
    model = tf_capsops.models.capsnet(
        (8, 8, 1), 10, filters=4, kernel_size=3, primary_channels=2,
        primary_kernel_size=3, decoder_units=(8,))
    model.compile("adam")
    history = model.fit(np.ones([4, 8, 8, 1]), np.arange(4), verbose=0)
    print(np.isfinite(history.history["loss"]))
    print(model.routing_coefficients(np.ones([4, 8, 8, 1], np.float32)).shape)
"""


@pytest.mark.ci
def test_everything_works_where_the_library_is_missing(tmp_path):
    missing = tmp_path / "libtf_capsops.so"
    printed = fresh.run(_WITHOUT_THE_LIBRARY, TF_CAPSOPS_LIBRARY=str(missing))
    expected = ["missing", "(1, 2, 4, 5)", "[ True]", "(4, 2, 2, 2, 10)"]
    assert printed.splitlines() == expected
