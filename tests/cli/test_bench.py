# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The benchmark: it runs, says what it measured, and measures what it says."""

import dataclasses
import datetime
import json
import re

import numpy as np
import pytest
import rich.console
import tensorflow as tf
from ceilings import CEILINGS

from tf_capsops.__main__ import main
from tf_capsops.bench import cases, command, measure, pytorch, report
from tf_capsops.bench.floor import Ceilings

CPU = "CPU:0"


@pytest.mark.parametrize("suite", cases.suites().values(), ids=lambda suite: suite.op)
def test_rivals_compute_the_same(suite, device):
    """A benchmark of methods that differ in their result compares nothing."""
    (case,) = suite.select(cases.SMOKE)
    inputs = [tf.constant(a) for a in suite.draw(case, np.random.default_rng(0))]
    ours = case.bind(suite.ours)(*inputs)
    assert ours.shape == suite.output_shape(case)
    prepared = case.bind(suite.prepare)(*inputs)
    for rival in suite.rivals.values():
        np.testing.assert_allclose(ours.numpy(), case.bind(rival)(*prepared).numpy())


@pytest.mark.parametrize("suite", cases.suites().values(), ids=lambda suite: suite.op)
def test_parts_of_rivals_give_the_shape_of_the_output(suite, device):
    (case,) = suite.select(cases.SMOKE)
    inputs = [tf.constant(a) for a in suite.draw(case, np.random.default_rng(0))]
    prepared = case.bind(suite.prepare)(*inputs)
    for part in suite.parts.values():
        assert case.bind(part)(*prepared).shape == suite.output_shape(case)


@pytest.mark.parametrize("suite", cases.suites().values(), ids=lambda suite: suite.op)
def test_every_suite_has_cases_of_every_kind(suite):
    for use in (cases.CORRECTNESS, cases.GRADIENT, cases.SMOKE, cases.ANCHORS):
        assert suite.select(use)
    benched = {d for case in suite.select(cases.ANCHORS) for d in case.devices}
    assert benched == {"CPU", "GPU"}


@pytest.fixture(autouse=True)
def _samples_are_short(monkeypatch):
    monkeypatch.setitem(measure._SAMPLE_SECONDS, "CPU", 0.01)


@pytest.mark.ci
@pytest.mark.parametrize(
    "ops, dtypes, xla",
    [
        (["CapsulePrediction", "InqConv"], ["float32", "float64"], False),
        (["InqConv"], ["float32"], True),
    ]
    + [
        pytest.param([op], ["float32"], True, marks=pytest.mark.slow)
        for op in cases.suites()
        if op != "InqConv"
    ],
    ids=str,
)
def test_report(ops, dtypes, xla, tmp_path, capsys, monkeypatch):
    """XLA compiles the rivals of one op, and ceilings are measured once.

    Both take seconds each.
    """
    if not xla:
        monkeypatch.setattr(measure, "compiled", lambda step: step)
        monkeypatch.setattr(command, "measure_ceilings", lambda *_: CEILINGS)
    arguments = ["--suite", "smoke", "--device", "CPU", "--repeat", "2"]
    arguments += ["--op", *ops, "--dtype", *dtypes, "--output", str(tmp_path)]
    assert main(["bench", *arguments]) == 0
    printed = capsys.readouterr().out
    made = json.loads((tmp_path / "bench.json").read_text())
    for result in made["results"]:
        assert result["methods"][report.OURS]["kernel"]
    assert made["command"].split()[:2] == ["tf-capsops", "bench"]
    assert made["versions"]["tensorflow"] == tf.__version__
    assert re.fullmatch("unknown|[0-9a-f]{40}", made["commit"])
    assert datetime.date.fromisoformat(made["date"]) and made["cpu"]
    assert len(made["ceilings"]) == len(dtypes)
    assert len(made["results"]) == 2 * len(dtypes) * len(ops)
    for result in made["results"]:
        assert result["case"] in printed
        assert result["bytes"] > 0 and result["flops"] > 0 and result["floor_us"] > 0
        suite = cases.suites()[result["op"]]
        assert len(result["methods"]) == 1 + 2 * len({**suite.rivals, **suite.parts})
        for method in result["methods"].values():
            lower, upper = method["quartiles_us"]
            assert 0 < lower <= method["median_us"] <= upper
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")


def test_pytorch_is_measured_where_it_is_installed(tmp_path, undrawn, monkeypatch):
    """By a script of its own, which is given the case."""
    script = tmp_path / "torch_moments.py"
    script.write_text(
        "import json, sys\n"
        "case = json.loads(sys.argv[sys.argv.index('--case') + 1])\n"
        "taken = case['sizes']['batch'] * case['attributes']['order']\n"
        "row = {'samples': [taken, taken], 'peak_bytes': None}\n"
        "for name in 'forward', 'forward+backward':\n"
        "    print(json.dumps({'method': 'PyTorch', 'direction': name, **row}))\n"
        "failed = {'method': 'PyTorch, torch.compile', 'error': 'no compiler'}\n"
        "print(json.dumps({'direction': 'forward', **failed}))\n"
    )
    monkeypatch.setattr(pytorch, "SCRIPTS", tmp_path)
    alone = dataclasses.replace(cases.suites()["CapsuleMoments"], rivals={}, parts={})
    monkeypatch.setattr(cases, "suites", lambda: {"CapsuleMoments": alone})
    monkeypatch.setattr(command, "measure_ceilings", lambda *_: CEILINGS)
    arguments = ["--suite", "smoke", "--op", "CapsuleMoments", "--device", "CPU"]
    arguments += ["--repeat", "2", "--output", str(tmp_path)]
    (smoke,) = cases.suites()["CapsuleMoments"].select(cases.SMOKE)
    for installed in (False, True):
        monkeypatch.setattr(pytorch, "is_installed", lambda found=installed: found)
        assert main(["bench", *arguments]) == 0
        made = json.loads((tmp_path / "bench.json").read_text())
        forward, both = [result["methods"] for result in made["results"]]
        assert ("PyTorch" in forward, "PyTorch" in both) == (installed, installed)
    seconds = smoke.sizes["batch"] * smoke.attributes["order"]
    assert forward["PyTorch"]["median_us"] == both["PyTorch"]["median_us"]
    assert forward["PyTorch"]["median_us"] == pytest.approx(1e6 * seconds)
    assert forward["PyTorch, torch.compile"] == {"error": "no compiler"}
    assert "PyTorch, torch.compile" not in both
    with script.open("a") as more:
        more.write("raise SystemExit('no memory')\n")
    assert main(["bench", *arguments]) == 0
    made = json.loads((tmp_path / "bench.json").read_text())
    for result in made["results"]:
        assert "median_us" in result["methods"]["PyTorch"]
        assert result["methods"]["PyTorch, the rest"] == {"error": "no memory"}


def test_the_kernel_that_ran_has_a_column():
    suite = cases.suites()["CapsuleRouting"]
    (case,) = suite.select(cases.SMOKE)
    timing = measure.Timing(2e-6, 1e-6, 3e-6, 1e-6, 3e-6, 2, None)
    ceilings = {"device": "GPU:0", "dtype": "float32"}
    timings = {report.OURS: timing, "TF einsum": timing}
    for kernel in (None, "mma"):
        entry = report.result_entry(
            suite, case, "forward", cases.Cost(1, 1), ceilings, 1e-6, timings, kernel
        )
        console = rich.console.Console(width=120)
        with console.capture() as captured:
            console.print(report.table(entry))
        assert ("kernel" in captured.get()) == ("mma" in captured.get()) == bool(kernel)


def test_repeat_must_leave_a_spread(capsys):
    assert main(["bench", "--repeat", "1"]) == 2
    assert "--repeat: must be an integer >= 2, got '1'" in capsys.readouterr().err


def test_devices_must_be_there(monkeypatch, tmp_path, capsys):
    (cpu,) = tf.config.list_physical_devices("CPU")
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda *_: [cpu])
    output = tmp_path / "made"
    assert main(["bench", "--device", "CPU", "GPU", "--output", str(output)]) == 2
    said = "tf-capsops bench: error: --device GPU: TensorFlow sees none\n"
    assert capsys.readouterr().err == said and not output.exists()
    assert command.devices(None) == ["CPU"]


def test_unread_results_are_computed():
    """Pure ops whose results nothing reads are computed, every one of the chain."""

    def step(index):
        return (tf.gather(tf.range(8), index),)

    numbers = [(tf.constant(index),) for index in range(9)]
    outcome = measure.compare(
        {
            "works": measure.Chain(step, numbers[:8], CPU),
            "first fails": measure.Chain(step, numbers[::-1][:8], CPU),
            "last fails": measure.Chain(step, numbers[1:], CPU),
        },
        repeat=2,
    )
    assert outcome["works"].samples == 2
    assert outcome["first fails"] == "indices = 8 is not in [0, 8)"
    assert outcome["last fails"] == "indices = 8 is not in [0, 8)"


def test_a_method_that_cannot_be_traced_says_why():
    reshape = measure.forward_step(lambda values: tf.reshape(values, [5]))
    chains = {"ours": measure.Chain(reshape, [(tf.ones(3),)], CPU)}
    reason = measure.compare(chains, repeat=2)["ours"]
    assert reason.startswith("Cannot reshape a tensor with 3 elements to shape [5]")
    assert "node" not in reason


def test_optimizer_is_left_as_it_was():
    chains = {
        "ours": measure.Chain(measure.forward_step(tf.negative), [(tf.ones(3),)], CPU)
    }
    measure.compare(chains, repeat=2)
    before = tf.config.optimizer.get_experimental_options()
    measure.compare(chains, repeat=2)
    assert tf.config.optimizer.get_experimental_options() == before
    assert before["dependency_optimization"]


def test_floor_is_the_slower_of_memory_and_arithmetic():
    ceilings = Ceilings(bytes_per_second=100, flops_per_second=10, seconds_per_call=0.5)
    assert ceilings.seconds(cases.Cost(elements=50, flops=1), itemsize=4) == 2
    assert ceilings.seconds(cases.Cost(elements=50, flops=40), itemsize=4) == 4


def test_many_chains_are_no_reason_to_warn(monkeypatch):
    """TensorFlow warns of a function that it traces again and again, twice at most."""
    warned = []
    monkeypatch.setattr(tf.get_logger(), "warning", lambda *text: warned.append(text))
    negate = measure.forward_step(tf.negative)
    for size in range(1, 7):
        chain = measure.Chain(negate, [(tf.ones(size),)], CPU, seconds=1e-9)
        chain.warm_up()
        assert chain.sample() > 0
    assert not warned
