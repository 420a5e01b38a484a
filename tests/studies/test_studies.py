# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Other papers' kernels: as right as ours, refusing what they cannot, kept apart."""

import fresh
import numpy as np
import pytest
import tensorflow as tf
from cuda_studies import on_gpus, with_library
from reference import capsule_conv as reference
from tensorflow.python.framework import op_def_registry
from tolerances import assert_close

from benchmarks.papers import counts, studies, vaidya
from tf_capsops.bench import cases

SUITE = cases.suites()["CapsuleConv"]
_VALID = {"strides": (1, 1), "padding": "VALID", "dilations": (1, 1)}

# The cases of CapsuleConv that Chen et al. cover (strides and rank 3), those with
# padding and dilations, and those without any element.
CHEN_CASES = [
    case
    for case in SUITE.select(cases.CORRECTNESS)
    if case.name in ("ones", "all_ones_48", "primes", "in_channels_8", "gaps")
    or case.name.startswith(("strides_", "dilations_", "pose_", "small_image_"))
    or 0 in case.sizes.values()
]
# Input and weights of what Vaidya's kernels compute.
VAIDYA_SHAPES = [
    ((1, 1, 1, 1, 4, 4), (1, 1, 1, 1, 4, 4)),
    ((1, 9, 11, 3, 4, 4), (5, 5, 3, 1, 4, 4)),
    ((1, 5, 37, 7, 4, 4), (2, 3, 7, 1, 4, 4)),
    ((1, 3, 1026, 2, 4, 4), (3, 3, 2, 1, 4, 4)),
    ((1, 20, 20, 100, 4, 4), (5, 5, 100, 1, 4, 4)),  # more than 48 KB of filter
    ((1, 128, 128, 16, 4, 4), (5, 5, 16, 1, 4, 4)),
    ((1, 4, 4, 0, 4, 4), (2, 2, 0, 1, 4, 4)),
    ((1, 0, 4, 2, 4, 4), (2, 2, 2, 1, 4, 4)),
]
_IMAGE, _FILTER = (1, 9, 9, 3, 4, 4), (5, 5, 3, 1, 4, 4)
# Input, weights, attributes, and the text after "CapsuleConvStudy: kernel I2: ".
REFUSED = [
    ((2, 9, 9, 3, 4, 4), _FILTER, {}, "batch must be 1, got 2"),
    (_IMAGE, (5, 5, 3, 2, 4, 4), {}, "out_channels must be 1, got 2"),
    ((1, 9, 9, 3, 3, 4), _FILTER, {}, "pose_rows must be 4, got 3"),
    ((1, 9, 9, 3, 4, 5), (5, 5, 3, 1, 5, 4), {}, "pose_inner must be 4, got 5"),
    (_IMAGE, (5, 5, 3, 1, 4, 6), {}, "pose_columns must be 4, got 6"),
    ((1, 9, 9, 3, 2, 4, 4), (5, 5, 3, 1, 2, 4, 4), {}, "pose_depth must be 1, got 2"),
    (_IMAGE, _FILTER, {"strides": (1, 2)}, "strides and dilations must be 1, got 2"),
    (_IMAGE, _FILTER, {"dilations": (2, 1)}, "strides and dilations must be 1, got 2"),
    (_IMAGE, _FILTER, {"padding": "SAME"}, "padding must be VALID"),
    (
        (1, 1, 1025, 1, 4, 4),
        (1, 1, 1, 1, 4, 4),
        {},
        "out_width must be at most 1024 (a thread each), got 1025",
    ),
]


def _draw(*shapes):
    rng = np.random.default_rng(0)
    return [tf.constant(rng.uniform(-1, 1, shape), tf.float32) for shape in shapes]


def _plain(inputs, weights, **attributes):
    return SUITE.rivals["patches"](inputs, weights, **{**_VALID, **attributes})


def _exact(tensors):
    return [tensor.numpy().astype(np.float64) for tensor in tensors]


def _assert_forward_close(output, inputs, weights, **attributes):
    exact = _exact([inputs, weights])
    truth = reference.forward(*exact, **attributes)
    magnitude = reference.forward(*map(np.abs, exact), **attributes)
    plain = _plain(inputs, weights, **attributes)
    assert_close(output.numpy(), truth, plain.numpy(), magnitude)


def _gradients(compute, grad, *inputs):
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        output = compute(*inputs)
    return output, *tape.gradient(output, inputs, grad)


def _assert_all_close(kernel, grad, inputs, weights, **attributes):
    """Compares output and gradients, and that nothing else than a GPU made them."""
    ours = _gradients(
        lambda *tensors: studies.capsule_conv2d(*tensors, kernel, **attributes),
        *(grad, inputs, weights),
    )
    assert all("GPU" in result.device for result in ours)
    plain = _gradients(
        lambda *tensors: _plain(*tensors, **attributes), grad, inputs, weights
    )
    exact = _exact([grad, inputs, weights])
    truths = []
    for d, i, w in (exact, map(np.abs, exact)):
        truths.append(
            (
                reference.forward(i, w, **attributes),
                reference.backprop_input(i.shape, w, d, **attributes),
                reference.backprop_weights(i, w.shape, d, **attributes),
            )
        )
    for one in zip(ours, *truths, plain, strict=True):
        result, truth, magnitude, yardstick = one
        assert_close(result.numpy(), truth, yardstick.numpy(), magnitude)


@on_gpus
@pytest.mark.parametrize("shapes", VAIDYA_SHAPES, ids=str)
@pytest.mark.parametrize("kernel", studies.VAIDYA)
def test_vaidya(kernel, shapes, gpu):
    with tf.device(gpu):
        inputs, weights = _draw(*shapes)
        output = studies.capsule_conv2d(inputs, weights, kernel)
        assert output.device.endswith(gpu)
        _assert_forward_close(output, inputs, weights)


@on_gpus
@pytest.mark.parametrize("shapes", VAIDYA_SHAPES, ids=str)
@pytest.mark.parametrize("order", studies.LAYOUTS)
def test_layouts(order, shapes, gpu):
    with tf.device(gpu):
        inputs, weights = _draw(*shapes)
        output = vaidya.in_layout(order)(vaidya._in_memory(order, inputs), weights)
        output = vaidya._out_of_memory(order, output)
        _assert_forward_close(output, inputs, weights)


@on_gpus
@pytest.mark.parametrize("case", CHEN_CASES, ids=str)
@pytest.mark.parametrize("kernel", studies.CHEN)
def test_chen(kernel, case, gpu):
    with tf.device(gpu):
        rng = np.random.default_rng(0)
        arrays = [rng.uniform(-1, 1, SUITE.output_shape(case)), *SUITE.draw(case, rng)]
        tensors = [tf.constant(array, tf.float32) for array in arrays]
        _assert_all_close(kernel, *tensors, **case.attributes)


@on_gpus
def test_official_in_groups_of_samples(gpu):
    """All five samples at once would take more memory than the scheme allows itself."""
    with tf.device(gpu):
        grad, *tensors = _draw(
            (5, 32, 32, 16, 4, 4), (5, 34, 34, 8, 4, 4), (3, 3, 8, 16, 4, 4)
        )
        _assert_all_close("official", grad, *tensors)


@on_gpus
def test_filter_beyond_shared_memory(gpu):
    with tf.device(gpu), pytest.raises(tf.errors.InternalError) as caught:
        inputs, weights = _draw((1, 5, 5, 400, 4, 4), (5, 5, 400, 1, 4, 4))
        studies.capsule_conv2d(inputs, weights, "B")
    text = "CapsuleConvStudy: the filter takes 640000 bytes of shared memory, and this"
    assert text in str(caught.value)


@with_library
@pytest.mark.parametrize("refused", REFUSED, ids=lambda refused: refused[-1])
def test_vaidya_refuses(refused):
    """The shape function, which needs no GPU."""
    inputs, weights, attributes, text = refused
    with tf.Graph().as_default():
        tensors = [tf.compat.v1.placeholder(tf.float32, s) for s in (inputs, weights)]
        with pytest.raises(ValueError) as caught:
            studies.load().capsule_conv_study(*tensors, kernel="I2", **attributes)
    assert str(caught.value).startswith(f"CapsuleConvStudy: kernel I2: {text} for ")


@with_library
@pytest.mark.parametrize("kernel", studies.CHEN)
def test_shapes_are_inferred_and_checked(kernel):
    ops = studies.load()
    with tf.Graph().as_default():
        image = tf.compat.v1.placeholder(tf.float32, (None, 5, 7, 2, 4, 3))
        weights = tf.compat.v1.placeholder(tf.float32, (3, 2, 2, 5, 3, 6))
        moved = {"kernel": kernel, "strides": (2, 1)}
        output = ops.capsule_conv_study(image, weights, **moved)
        assert output.shape.as_list() == [None, 2, 6, 5, 4, 6]
        grads = ops.capsule_conv_study_grad(output, image, weights, **moved)
        assert [g.shape.as_list() for g in grads] == [
            [None, 5, 7, 2, 4, 3],
            [3, 2, 2, 5, 3, 6],
        ]
        with pytest.raises(ValueError, match=r"weights dim 2 \(in_channels\)"):
            ops.capsule_conv_study(image, tf.zeros((3, 2, 9, 5, 3, 6)), **moved)


@with_library
@pytest.mark.parametrize("kernel", studies.VAIDYA)
def test_vaidya_has_no_gradient(kernel):
    tensors = [tf.zeros((1, 1, 1, 1, 4, 4))] * 3
    with pytest.raises(tf.errors.InvalidArgumentError, match="not in"):
        studies.load().capsule_conv_study_grad(*tensors, kernel=kernel)


@with_library
def test_library_holds_what_the_benchmark_names():
    studies.load()
    for op, names in (
        (
            "CapsuleConvStudy",
            {*studies.VAIDYA, *studies.CHEN}
            | {f"layout_{order}" for order in studies.LAYOUTS},
        ),
        ("CapsuleConvStudyGrad", {*studies.CHEN}),
    ):
        (kernel,) = (a for a in op_def_registry.get(op).attr if a.name == "kernel")
        assert {name.decode() for name in kernel.allowed_values.list.s} == names


def test_product_never_loads_the_studies():
    """Not even where an op was used and the benchmark's cases were looked at."""
    printed = fresh.run(
        "import pathlib, numpy as np, tf_capsops\n"
        "from tf_capsops.bench import cases\n"
        "cases.suites()\n"
        "tf_capsops.capsule_conv2d(np.ones((1, 1, 1, 1, 1, 1)), np.ones((1,) * 6))\n"
        "maps = pathlib.Path('/proc/self/maps').read_text()\n"
        "print('libtf_capsops' in maps, 'libtf_capsops_studies' in maps)"
    )
    assert printed.split() == ["True", "False"]


def test_missing_library_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setattr(studies, "_ROOT", tmp_path)
    with pytest.raises(ImportError, match="make studies"):
        studies.library_path()


def test_published_stores_are_those_of_16_input_channels():
    """docs/notebook/papers.md: one for each thread, position, channel and element."""
    products = 124 * 124 * 5 * 5 * 16
    stores = {name: published[1] for name, published in vaidya.PUBLISHED.items()}
    assert stores == {name: products * 16 for name in studies.VAIDYA} | {
        "B": products * 64
    }
    loads = [published[2] / products for published in vaidya.PUBLISHED.values()]
    np.testing.assert_allclose(loads, [80, 80, 64, 16], rtol=0.01)


def test_counts_are_read_from_the_profiler():
    """Two kernels of ours after each of the papers' four, thousands with commas."""
    lines = ["==PROF== Connected", '"ID","Kernel Name","Metric Name","Metric Value"']
    kernels = [f"void x>::RowKernel<x>::{n}>(int)" for n in studies.VAIDYA]
    names = [*kernels, "void capsops::One(int)", "Two(int)"] * len(counts.CHANNELS)
    for number, name in enumerate(names):
        for metric, value in (
            ("l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum", f"{number},000"),
            ("l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum", "7"),
            (
                "l1tex__t_sectors_pipe_lsu_mem_global_op_ldgsts_cache_access.sum",
                "n/a" if name in kernels else "100",
            ),
        ):
            lines.append(f'"{number}","{name}","{metric}","{value}"')
    found = counts.read(lines)
    few, many = counts.CHANNELS
    assert found[few, "B"] == {"stores": 0, "loads": 7}
    assert found[few, counts.OURS] == {"stores": 9000, "loads": 214}
    assert found[many, "I3"] == {"stores": 9000, "loads": 7}
    assert found[many, counts.OURS] == {"stores": 21000, "loads": 214}


def test_layouts_are_transposes():
    """Their axes, as the kernel's names say: p is two axes, y and x."""
    letters = {"p": (0, 1), "c": (2,), "r": (3,), "k": (4,)}
    for order, (axes, _) in vaidya.LAYOUTS.items():
        assert axes == sum((letters[letter] for letter in order), ())
        image = tf.random.uniform((1, 3, 5, 2, 4, 4))
        there = vaidya._in_memory(order, image)
        np.testing.assert_array_equal(vaidya._out_of_memory(order, there), image)
    assert tuple(vaidya.LAYOUTS) == studies.LAYOUTS


@pytest.mark.parametrize("order", ["rpck", "rckp"])
def test_convolution_in_its_own_layout(order, monkeypatch):
    convolve = tf.nn.conv2d

    def in_any_format(images, filters, strides, padding, data_format="NHWC"):
        """A CPU has no NCHW."""
        if data_format == "NHWC":
            return convolve(images, filters, strides, padding)
        images = tf.transpose(images, [0, 2, 3, 1])
        return tf.transpose(convolve(images, filters, strides, padding), [0, 3, 1, 2])

    monkeypatch.setattr(tf.nn, "conv2d", in_any_format)
    inputs, weights = _draw((1, 6, 7, 3, 4, 4), (2, 3, 3, 1, 4, 4))
    output = vaidya._conv2d(order)(vaidya._in_memory(order, inputs), weights)
    sizes = (5, 5, 1, 4, 4)
    output = tf.reshape(output, [sizes[axis] for axis in vaidya.LAYOUTS[order][0]])
    output = vaidya._out_of_memory(order, output)
    monkeypatch.undo()
    _assert_forward_close(output, inputs, weights)
