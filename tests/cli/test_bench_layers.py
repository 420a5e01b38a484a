# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The benchmark of layers in several types, and its comparison with float32."""

import json

import keras
import pytest
import rich.console

import tf_capsops
from tf_capsops.__main__ import main
from tf_capsops.bench import cases, dtypes, layers, measure
from tf_capsops.bench.fitting import scope

_DTYPES = ["float32", "bfloat16", "float16"]


def _is_layer(name):
    found = getattr(tf_capsops.layers, name)
    return isinstance(found, type) and issubclass(found, keras.layers.Layer)


def test_every_public_layer_is_measured_on_every_device():
    public = {name for name in tf_capsops.layers.__all__ if _is_layer(name)}
    for use in (cases.LAYERS, cases.LAYERS_SMOKE):
        for kind in ("CPU", "GPU"):
            chosen = [c for c in layers.CASES if use in c.uses and kind in c.devices]
            assert {case.attributes["layer"] for case in chosen} == public
            assert len({case.name for case in chosen}) == len(chosen)


def test_every_case_is_one_that_its_layer_takes():
    with scope("bfloat16", "CPU"):  # one for all: its end collects garbage
        for case in layers.CASES:
            shapes = [(None, *shape) for shape in case.attributes["inputs"]]
            layer = layers.made(case)
            assert layer.compute_dtype == "bfloat16", case
            made = layer.compute_output_shape(shapes if len(shapes) > 1 else shapes[0])
            assert made, case


def test_report(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(measure._SAMPLE_SECONDS, "CPU", 0.001)
    monkeypatch.setattr(layers, "_LENGTH", 1)
    arguments = ["--suite", "layers-smoke", "--device", "CPU", "--repeat", "2"]
    arguments += ["--jit", "off", "--layer", "Mask", "Conv2D", "--dtype", *_DTYPES]
    assert main(["bench", *arguments, "--output", str(tmp_path)]) == 0
    made = json.loads((tmp_path / "bench.json").read_text())
    found = [(e["case"], e["direction"], e["dtype"]) for e in made["results"]]
    assert found == [
        (layer, direction, dtype)
        for layer in ("Conv2D", "Mask")
        for direction in ("forward", "forward+backward")
        for dtype in _DTYPES
    ]
    for result in made["results"]:
        assert result["methods"]["tf_capsops"]["median_us"] > 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "float32 bfloat16 float16" in printed
    assert "layers Conv2D forward+backward" in printed
    assert keras.config.dtype_policy().name == "float32"


@pytest.mark.parametrize(
    "options, batches, directions, bits",
    [
        (["--bits", "3"], [""], ["forward", "forward+backward"], 3),
        (["--direction", "forward"], [""], ["forward"], None),
        (
            [
                "--bits",
                "5",
                "--direction",
                "forward+backward",
                "--batch-size",
                "1",
                "2",
            ],
            [", batch 1", ", batch 2"],
            ["forward+backward"],
            5,
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_codes_directions_and_batches(
    tmp_path, monkeypatch, options, batches, directions, bits
):
    monkeypatch.setitem(measure._SAMPLE_SECONDS, "CPU", 0.001)
    monkeypatch.setattr(layers, "_LENGTH", 1)
    coded, copies = layers.coded, []
    monkeypatch.setattr(
        layers, "coded", lambda *args: copies.append(coded(*args)) or copies[-1]
    )
    arguments = ["--suite", "layers-smoke", "--device", "CPU", "--repeat", "2"]
    arguments += ["--jit", "off", "--layer", "Mask", "DigitCaps", *options]
    assert main(["bench", *arguments, "--output", str(tmp_path)]) == 0
    made = json.loads((tmp_path / "bench.json").read_text())["results"]
    kinds = ["DigitCaps", "Mask"]
    assert [(each["case"], each["direction"]) for each in made] == [
        (kind + batch, direction)
        for kind in kinds
        for batch in batches
        for direction in directions
    ]
    for each in made:
        has_codes = bits and each["case"].startswith("DigitCaps")
        names = ["tf_capsops", "tf_capsops, codes"][: 2 if has_codes else 1]
        assert list(each["methods"]) == names
        assert all(method["median_us"] > 0 for method in each["methods"].values())
    expected = [bits, None] * bool(bits)
    found = [getattr(each, "bits", None) for each in copies]
    assert found == [each for each in expected for _ in batches]


@pytest.mark.parametrize("options", [["--bits", "9"], ["--direction", "backward"]])
def test_other_codes_and_directions_are_refused(options, capsys):
    assert main(["bench", "--suite", "layers-smoke", *options]) == 2
    assert f"argument {options[0]}: invalid choice" in capsys.readouterr().err


def _result(dtype, median, spread=1.0, **more):
    quartiles = [median - spread, median + spread]
    methods = {"tf_capsops": {"median_us": median, "quartiles_us": quartiles, **more}}
    methods["a rival"] = {"median_us": 1.0, "quartiles_us": [1.0, 1.0]}
    result = {"op": "layers", "case": "a", "direction": "forward", "device": "GPU:0"}
    return {**result, "dtype": dtype, "methods": methods}


@pytest.mark.parametrize(
    "median, expected", [(50.0, "(0.50)"), (101.0, "(1.01)"), (150.0, "(1.50) slower")]
)
def test_a_type_that_is_slower_than_float32_is_marked(median, expected):
    found = [_result("bfloat16", median), _result("float32", 100.0)]
    console = rich.console.Console(width=200)
    with console.capture() as captured:
        console.print(dtypes.table(found))
    assert f"100.0 {median:.1f} {expected}" in " ".join(captured.get().split())
    assert ("slower" in expected) == ("slower" in captured.get())
    assert "rival" not in captured.get()


def test_a_type_that_cannot_run_says_why():
    broken = {**_result("float16", 1.0), "methods": {"tf_capsops": {"error": "no"}}}
    shown = dtypes.table([_result("float32", 100.0), broken])
    assert shown.caption == "layers a forward, float16: no"
