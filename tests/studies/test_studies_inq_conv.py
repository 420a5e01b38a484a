# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The report on INQ convolution: its programs, its measurement."""

import json

import numpy as np
import pytest
import tensorflow as tf
from cuda_studies import on_gpus, with_library
from reference import inq_conv as reference
from tolerances import assert_close

from benchmarks.papers import __main__ as papers
from benchmarks.papers import chart, khandwawala, outcome, studies
from tf_capsops.bench.report import OURS

# Height, width; channels in, out; kernel; strides.
CASES = [
    ((1, 1), (1, 1), 1, (1, 1)),
    ((17, 15), (1, 2), 3, (1, 1)),  # channels and kernels that are constants
    ((17, 15), (2, 3), 3, (1, 1)),
    ((19, 21), (3, 4), 3, (1, 1)),
    ((21, 18), (5, 6), 3, (1, 1)),
    ((16, 23), (6, 7), 3, (1, 1)),
    ((18, 19), (3, 5), 5, (1, 1)),
    ((22, 17), (3, 4), 7, (1, 1)),
    ((3, 3), (4, 5), 3, (1, 1)),
    ((7, 9), (4, 8), 3, (1, 1)),
    ((16, 17), (4, 4), 3, (1, 1)),  # tiles of the paper's sizes, and one beyond
    ((31, 30), (4, 6), 3, (2, 2)),
    ((20, 23), (4, 9), 5, (1, 1)),
    ((23, 20), (4, 3), 5, (3, 2)),
    ((19, 27), (4, 5), 7, (1, 1)),
    ((26, 25), (4, 5), 9, (1, 1)),
    ((37, 34), (4, 4), 9, (2, 1)),
    ((23, 36), (4, 6), 11, (1, 1)),
    ((11, 40), (4, 3), 11, (5, 4)),
    ((9, 8), (1, 3), 1, (1, 1)),
    ((18, 33), (3, 7), 2, (1, 1)),
    ((29, 13), (2, 1), 8, (2, 3)),
    ((41, 27), (1, 2), 16, (1, 1)),
    ((19, 18), (9, 20), 3, (1, 1)),
    ((12, 21), (5, 12), 4, (4, 3)),
    ((6, 5), (3, 0), 3, (1, 1)),
    ((0, 5), (3, 2), 3, (1, 1)),
]
every_case = pytest.mark.parametrize("case", CASES, ids=str)


def _draw(case, powers, top_exponent):
    """Codes of these powers, and of 0."""
    image, (channels, out_channels), kernel, _ = case
    rng = np.random.default_rng(0)
    codes = rng.integers(
        0, 2 * powers, (kernel, kernel, channels, out_channels), np.uint8, endpoint=True
    )
    inputs = rng.uniform(-1, 1, (1, *image, channels)).astype(np.float32)
    return inputs, codes, np.int32(top_exponent)


def _assert_close(case, kernel, powers=3, top_exponent=3, bits=4):
    strides = case[-1]
    inputs, codes, top = _draw(case, powers, top_exponent)
    attributes = {"bits": bits, "strides": strides}
    result = studies.inq_conv2d(
        inputs, codes, top, kernel, powers=powers, **attributes
    ).numpy()
    attributes["padding"] = "VALID"
    weights = reference.inq.decode(codes, bits, top_exponent).astype(np.float32)
    if result.size:
        plain = tf.nn.conv2d(inputs, weights, strides, "VALID").numpy()
    else:
        plain = np.moveaxis(result, 1, 3)
    inputs = inputs.astype(np.float64)
    truth = reference.forward(inputs, codes, top_exponent, **attributes)
    magnitude = reference.forward(
        np.abs(inputs), reference.absolute(codes), top_exponent, **attributes
    )
    assert_close(np.moveaxis(result, 1, 3), truth, plain, magnitude)


@with_library
@every_case
def test_serial(case):
    with tf.device("CPU"):
        _assert_close(case, "serial")


@on_gpus
@pytest.mark.parametrize("kernel", studies.KHANDWAWALA)
@every_case
def test_programs(case, kernel, gpu):
    with tf.device(gpu):
        _assert_close(case, kernel)


@on_gpus
@pytest.mark.parametrize("kernel", khandwawala.WITHOUT[1:])
@every_case
def test_programs_without_multiplication(case, kernel, gpu):
    """They add up the pixels under each kernel, whatever its weights."""
    _, (channels, out_channels), size, strides = case
    inputs, codes, top = _draw(case, 3, 3)
    with tf.device(gpu):
        result = studies.inq_conv2d(inputs, codes, top, kernel, strides=strides).numpy()
    exact = inputs.astype(np.float64)
    ones = np.ones((size, size, channels, out_channels))
    if not result.size:
        assert result.shape[1] == out_channels
        return
    expected = tf.nn.conv2d(exact, ones, strides, "VALID").numpy()
    np.testing.assert_allclose(np.moveaxis(result, 1, 3), expected, atol=1e-4)


@on_gpus
@pytest.mark.parametrize("kernel", studies.KHANDWAWALA)
@pytest.mark.parametrize("powers", range(1, 5))
def test_powers(powers, kernel, gpu):
    """Any number of sums, with constants of the paper's sizes and without."""
    for channels in (4, 3):
        case = (14, 19), (channels, 5), 3, (1, 2)
        for top_exponent in (0, -20, 100, powers - 127):
            with tf.device(gpu):
                _assert_close(case, kernel, powers, top_exponent, bits=5)


def _assert_exact(kernel):
    codes = np.array([0, 1, 2, 3, 4, 5, 6, 255], np.uint8).reshape(1, 1, 1, -1)
    image = tf.fill((1, 1, 1, 1), 3.0)
    output = studies.inq_conv2d(image, codes, 3, kernel, powers=2)
    np.testing.assert_array_equal(output[0, :, 0, 0], [0, 24, -24, 12, -12, 0, 0, 0])


@with_library
def test_codes_past_the_powers_are_zero_serially():
    with tf.device("CPU"):
        _assert_exact("serial")


@on_gpus
@pytest.mark.parametrize("kernel", studies.KHANDWAWALA)
def test_codes_past_the_powers_are_zero(kernel, gpu):
    with tf.device(gpu):
        _assert_exact(kernel)


def _symbols(image, codes):
    placeholder = tf.compat.v1.placeholder
    return (
        placeholder(tf.float32, image),
        placeholder(tf.uint8, codes),
        placeholder(tf.int32, ()),
    )


@with_library
def test_shapes_are_inferred():
    with tf.Graph().as_default():
        tensors = _symbols((None, 20, 9, None), (3, 3, 2, None))
        output = studies.inq_conv2d(*tensors, "input_2", strides=(4, 2))
        assert output.shape.as_list() == [None, None, 5, 4]


@with_library
@pytest.mark.parametrize(
    "kernel, image, codes, attributes, text",
    [
        ("serial", (2, 5, 5, 1), (3, 3, 1, 1), {}, "kernel serial: batch must be 1, "),
        ("output_3", (2, 5, 5, 1), (3, 3, 1, 1), {}, "kernel output_3: batch must be "),
        (
            *("output_6", (1, 5, 5, 1), (3, 2, 1, 1), {}),
            "kernel output_6: kernel_width must be kernel_height, 3, got 2",
        ),
        (
            *("output_basic", (1, 99, 99, 48), (3, 3, 48, 8), {}),
            "kernel output_basic: in_channels must be at most 46 (48 KB of shared mem",
        ),
        (
            *("output_5", (1, 99, 99, 43), (3, 3, 43, 8), {}),
            "kernel output_5: in_channels must be at most 42 (48 KB of shared memory)",
        ),
        (
            *("output_3", (1, 99, 99, 4), (17, 17, 4, 8), {}),
            "kernel output_3: kernel_height must be at most 16 (threads for a tile of ",
        ),
        (
            *("input_1", (1, 99, 99, 4), (14, 14, 4, 8), {}),
            "kernel input_1: in_channels must be at most 3 (a thread for each number ",
        ),
        (
            *("input_2", (1, 99, 99, 4), (7, 7, 4, 128), {}),
            "kernel input_2: weights must be at most 16384 (64 KB of constant memory)",
        ),
        (
            *("input_basic", (1, 9, 99, 4), (3, 3, 4, 65536), {}),
            "kernel input_basic: out_channels must be at most 65535 (a dimension of ",
        ),
        (
            *("output_3", (1, 5, 5, 1), (3, 3, 1, 1), {"powers": 5}),
            "powers must be from 1 to 4 with 4 bits, got 5",
        ),
        (
            *("output_3", (1, 5, 5, 1), (3, 3, 1, 1), {"bits": 3}),
            "powers must be from 1 to 2 with 3 bits, got 3",
        ),
    ],
)
def test_programs_refuse(kernel, image, codes, attributes, text):
    """The shape function, which needs no GPU; kernels call the same rule."""
    with tf.Graph().as_default(), pytest.raises(ValueError) as caught:
        studies.inq_conv2d(*_symbols(image, codes), kernel, **attributes)
    assert str(caught.value).startswith(f"InqConvStudy: {text}")


@with_library
@pytest.mark.parametrize("top_exponent", [128, -125, 2**31 - 1, -(2**31)])
def test_weights_that_are_not_normal_are_refused(top_exponent):
    inputs, codes, _ = _draw(CASES[1], 3, 0)
    with tf.device("CPU"), pytest.raises(tf.errors.InvalidArgumentError) as caught:
        studies.inq_conv2d(inputs, codes, top_exponent, "serial")
    assert "top_exponent must be from -124 to 127, got" in str(caught.value)


@with_library
def test_a_program_has_its_device():
    inputs, codes, top_exponent = _draw(CASES[1], 3, 0)
    with tf.device("CPU"), pytest.raises(tf.errors.InvalidArgumentError) as caught:
        studies.inq_conv2d(inputs, codes, top_exponent, "output_3")
    assert "kernel output_3 is not for a CPU" in str(caught.value)


def test_weights_are_those_of_the_codes():
    """And of the code book just the report's powers, without 0."""
    sizes = {"channels": 4, "image": 8, "kernel": 3}
    image, codes, weights = khandwawala.tensors(sizes, np.random.default_rng(0))
    assert image.shape == (1, 8, 8, 4) and codes.shape == (3, 3, 4, 128)
    decoded = reference.inq.decode(
        codes.numpy(), khandwawala.BITS, khandwawala.TOP_EXPONENT
    )
    np.testing.assert_array_equal(weights, decoded)
    assert {*np.unique(weights)} == {-8, -4, -2, 2, 4, 8}


def test_work_of_the_setup():
    """The numbers of docs/notebook/papers.md."""
    work = khandwawala.work(channels=4, image=1024, kernel=3)
    assert work["outputs"] == 128 * 1022**2 == 133693952
    assert work["products"] == 36 * 133693952 == 4812982272
    assert work["saved"] == 33 * 133693952
    assert work["bytes"] == 534775808 + 16777216 + 4608


def test_bench_without_a_gpu(tmp_path, capsys, monkeypatch):
    """The serial program, or that it was not built."""
    monkeypatch.setattr(
        khandwawala, "SIZES", {**khandwawala.SIZES, "CPU": {"image": (8, 9)}}
    )
    monkeypatch.setattr(khandwawala, "_SAMPLE_SECONDS", {"CPU": 0.001})
    arguments = ["--paper", "khandwawala", "--device", "CPU"]
    arguments += ["--repeat", "2", "--output", str(tmp_path)]
    assert papers.main(arguments) == 0
    printed = capsys.readouterr().out
    report = json.loads((tmp_path / "papers.json").read_text())
    (result,) = report["papers"]["khandwawala"]
    assert result["part"] == "image"
    assert result["varied"] == "image" and result["sizes"] == [8, 9]
    assert list(result["methods"]) == ["serial", OURS, "conv2d"]
    for name, row in result["methods"].items():
        assert name.replace(OURS, "InqConv") in printed
        if "make studies" in row.get("error", ""):
            assert name == "serial"
            continue
        assert [cell["samples"] for cell in row["cells"]] == [2, 2]
        assert min(cell["ms"] for cell in row["cells"]) > 0
    assert (tmp_path / "papers_khandwawala.png").read_bytes().startswith(b"\x89PNG")


def test_tf32_is_as_it_was():
    for before in (True, False):
        tf.config.experimental.enable_tensor_float_32_execution(before)
        with khandwawala._tf32(not before):
            found = tf.config.experimental.tensor_float_32_execution_enabled()
            assert found is not before
        found = tf.config.experimental.tensor_float_32_execution_enabled()
        assert found is before


def _results():
    """Yields made-up results of a GPU: a number for each method and size."""
    shared = {"device": "GPU:0", "run": {"command": "any"}}
    for varied, sizes in khandwawala.SIZES["GPU"].items():
        names = [*khandwawala.methods("GPU"), f"{OURS}, float32", "conv2d, float32"]
        rows = {
            name: outcome.row(varied, [{"ms": place + 0.25}] * len(sizes), sizes)
            for place, name in enumerate(names)
        }
        cells = [*rows["input_2"]["cells"][1:], {"error": "too many for constants"}]
        rows["input_2"] = outcome.row(varied, cells, sizes)
        yield {"part": varied, "methods": rows, **shared}
    times = zip(khandwawala.WITHOUT, (2.0, 1.5, 2.2), strict=True)
    rows = {name: {"cells": [{"ms": ms}] * 4} for name, ms in times}
    yield {"part": "without", "methods": rows, **shared}


def test_tables_show_all():
    results = list(_results())
    tables = dict(khandwawala.tables(results))
    rows = {r[0]: r[1:] for r in tables["papers_khandwawala_channels"]["rows"]}
    assert rows["`output_5`"][4] == "2.250 (1,584)"
    assert rows["`input_2`"][0] == "6.250 (593)"
    assert rows["`input_2`"][-1] == "cannot run (18,690)"
    assert rows["InqConv, TF32"] == ["7.250"] * 6 and rows["`conv2d`"] == ["10.2"] * 6
    rows = {r[0]: r[1:] for r in tables["papers_khandwawala_image"]["rows"]}
    assert rows["`output_6`"] == ["3.250"] * 3 + ["3.250 (153)", "3.250 (576)"]
    rows = {r[0]: r[1:] for r in tables["papers_khandwawala_without"]["rows"]}
    assert rows["`output_unread`"][0] == "**1.500** (-25%)"
    assert rows["`output_unused`"][0] == "2.200 (+10%)"


def test_each_chart_has_our_line_and_theirs(tmp_path, monkeypatch):
    figure, panels = chart.figure(2, 3)
    monkeypatch.setattr(chart, "figure", lambda *size: (figure, panels))
    khandwawala.draw(list(_results()), tmp_path / "chart.png")
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")
    for tiling, line in zip(("output", "input"), panels, strict=True):
        for panel in line:
            labels = {one.get_label() for one in panel.get_lines()}
            assert {
                OURS,
                "conv2d",
                f"{tiling}_basic",
                f"{tiling}_basic, 940MX",
            } <= labels
            assert all(one.startswith((tiling, OURS, "conv2d")) for one in labels)


def test_published_charts_have_a_number_for_each_size():
    for tiling in khandwawala.PUBLISHED.values():
        for varied, lines in tiling.items():
            sizes = len(khandwawala.SIZES["GPU"][varied])
            assert {len(line) for line in lines.values()} == {sizes}
