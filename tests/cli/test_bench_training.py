# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The benchmark of training steps: what it compares, what it says, what it counts."""

import dataclasses
import json
import os
import time
import types
import warnings

import keras
import numpy as np
import pytest
import quick
import rich.console
import tensorflow as tf
from benching import training_options
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from tf_capsops.__main__ import main
from tf_capsops.bench import (
    cases,
    fitting,
    pytorch,
    report,
    start_up,
    trace,
    training,
)
from tf_capsops.bench.networks import CASES, NETWORKS
from tf_capsops.errors import CommandError

_TINY = [case for case in CASES if cases.TRAINING_SMOKE in case.uses]
_HAVE_PLAIN = [case for case in _TINY if NETWORKS[case.name].plain]


@pytest.mark.parametrize("case", _HAVE_PLAIN, ids=str)
def test_both_networks_compute_the_same(case, device):
    """Losses after two steps of training agree, so gradients do as well."""
    keras.utils.set_random_seed(1)
    network = NETWORKS[case.name]
    inputs, targets = network.draw(case, case.sizes["batch"], np.random.default_rng(3))
    losses, weights = [], None
    for build in (network.ours, network.plain):
        trainee = build(case)
        variables = trainee.model.trainable_variables
        if weights is None:
            weights = [variable.numpy() for variable in variables]
        assert [variable.shape for variable in variables] == [w.shape for w in weights]
        for variable, value in zip(variables, weights, strict=True):
            variable.assign(value)
        trainee.model.compile(
            keras.optimizers.SGD(0.1),
            jit_compile=False,
            run_eagerly=True,
            **trainee.compiling,
        )
        batch = trainee.arrange(tf.constant(inputs), tf.constant(targets))
        steps = [trainee.model.train_on_batch(*batch, return_dict=True)["loss"]]
        steps.append(trainee.model.train_on_batch(*batch, return_dict=True)["loss"])
        losses.append(steps)
    np.testing.assert_allclose(*losses, rtol=1e-4)
    assert losses[0][0] != losses[0][1]


def test_every_network_has_a_case_on_every_device():
    for name in NETWORKS:
        for use in (cases.TRAINING, cases.TRAINING_SMOKE):
            devices = [
                device
                for case in CASES
                if case.name == name and use in case.uses
                for device in case.devices
            ]
            assert sorted(devices) == ["CPU", "GPU"]


@pytest.fixture(autouse=True)
def _samples_are_short(monkeypatch):
    monkeypatch.setitem(training._SAMPLE_SECONDS, "CPU", 0.01)


@pytest.mark.slow
def test_report(tmp_path, capsys):
    arguments = ["--suite", "training-smoke", "--device", "CPU", "--repeat", "2"]
    arguments += ["--model", "p_capsnet", "--steps-per-execution", "3"]
    assert main(["bench", *arguments, "--output", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    made = json.loads((tmp_path / "bench.json").read_text())
    (result,) = made["results"]
    assert made["ceilings"] == []
    assert (result["op"], result["case"]) == ("training", "p_capsnet")
    names = [
        f"{who}{xla}, 3 steps"
        for who in (report.OURS, fitting.PLAIN)
        for xla in ("", ", XLA")
    ]
    assert list(result["methods"]) == names
    for name, method in result["methods"].items():
        assert name in printed
        if "left_out" in method:
            assert name.startswith(report.OURS) and "XLA" in name
            continue
        lower, upper = method["quartiles_us"]
        assert 0 < lower <= method["median_us"] <= upper
        batch = result["sizes"]["batch"]
        images = method["images_per_second"] * method["median_us"]
        assert images == pytest.approx(1e6 * batch)
        assert method["extra_bytes"] is None and "launches" not in method
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.ci
@pytest.mark.parametrize(
    "case", [case for case in _TINY if case not in _HAVE_PLAIN], ids=str
)
def test_a_network_without_a_plain_one_is_measured_alone(case, monkeypatch):
    monkeypatch.setattr(pytorch, "is_installed", lambda: False)
    options = training_options(model=[case.name], steps_per_execution=[1])
    with quick.eager():
        (result,) = training.run(options)
    ((name, entry),) = result["methods"].items()
    assert name == report.OURS and entry["median_us"] > 0
    with fitting.scope("float32", "CPU"):
        model = NETWORKS[case.name].ours(case).model
    assert entry["parameters"] == training._trained_numbers(model)


@pytest.mark.parametrize(
    "model, given, label, sizes",
    [
        ("segcaps", [24], "segcaps, 24x24", (24, 24)),
        ("segcaps", [16, 24], "segcaps, 16x24", (16, 24)),
        ("ucaps3d", [8], "ucaps3d, 8x8x8", (8, 8, 8)),
        ("ucaps3d", [8, 8, 16], "ucaps3d, 8x8x16", (8, 8, 16)),
    ],
)
def test_images_have_the_sizes_asked_for(model, given, label, sizes, monkeypatch):
    monkeypatch.setattr(training, "attempt", lambda *_: {"left_out": "a test"})
    (result,) = training.run(training_options(model=[model], image_size=given))
    assert result["case"] == label
    axes = [name for name in result["sizes"] if name.startswith("in_")]
    assert tuple(result["sizes"][name] for name in axes) == sizes


def test_images_have_a_side_for_each_axis():
    with pytest.raises(CommandError, match="segcaps takes 1 or 2, got 3"):
        list(training.run(training_options(model=["segcaps"], image_size=[8, 8, 8])))


def test_a_network_that_keras_does_not_compile_is_left_out(monkeypatch):
    network = NETWORKS["p_capsnet"]

    def refusing(case):
        trainee = network.plain(case)
        trainee.model.layers[-1].supports_jit = False
        return trainee

    def measure(case, method, *rest):
        if method.who == fitting.PLAIN:  # which would be compiled
            rates = {"images_per_second": 1.0, "extra_bytes": None}
            return {"median_us": 1.0, "quartiles_us": [1.0, 1.0], **rates}
        return measured(case, method, *rest)

    refused = dataclasses.replace(network, ours=refusing)
    monkeypatch.setitem(NETWORKS, "p_capsnet", refused)
    measured = training._measure
    monkeypatch.setattr(training, "_measure", measure)
    options = training_options(model=["p_capsnet"], jit=["on"], steps_per_execution=[1])
    (result,) = training.run(options)
    reason = "it has layers that Keras does not compile with XLA"
    assert result["methods"]["tf_capsops, XLA"] == {"left_out": reason}
    assert "median_us" in result["methods"]["plain Keras, XLA"]
    console = rich.console.Console(width=200)
    with console.capture() as captured:
        console.print(report.training_table(result))
    printed = " ".join(captured.get().split())
    assert f"tf_capsops, XLA: left out: {reason}" in printed


def test_what_cannot_differ_is_left_out(monkeypatch):
    measured = []

    def slow(case, method, *_):
        measured.append(str(method))
        return {"median_us": 5e5}

    monkeypatch.setattr(training, "_measure", slow)
    (result,) = training.run(training_options())
    assert measured == ["tf_capsops", "plain Keras"]
    for name in measured:
        reason = result["methods"][f"{name}, 20 steps"]["left_out"]
        assert reason.startswith("a step takes 0.5 s")


def test_batches_gpus_and_what_compile_is_told(monkeypatch):
    seen = []

    def measure(case, method, kind, repeat, network):
        if method.gpus > 1:
            fitting.Fit(case, method, kind)
        seen.append((case.sizes["batch"], str(method), method.compiling))
        return {"median_us": 1.0}

    monkeypatch.setattr(training, "_measure", measure)
    more = {"untuned": True, "batch_size": [3, 5], "gpus": [1, 99], "rivals": False}
    found = list(training.run(training_options(steps_per_execution=[4], **more)))
    assert [each["case"] for each in found] == [
        "capsnet, batch 3",
        "capsnet, batch 5",
    ]
    tuned = {"jit_compile": False, "steps_per_execution": 4}
    told = (
        ("tf_capsops, 4 steps", tuned),
        ("tf_capsops, untuned", {}),
        ("tf_capsops, untuned, arrays", {}),
    )
    assert seen == [(batch, *each) for batch in (3, 5) for each in told]
    lacking = found[0]["methods"]["tf_capsops, untuned, arrays, 99 GPUs"]
    assert lacking == {"left_out": "CPUs do not share batches"}
    several = fitting.Method(report.OURS, gpus=99)
    with pytest.raises(fitting.LeftOut, match=r"TensorFlow sees \d of 99 GPUs"):
        fitting.Fit(_TINY[0], several, "GPU")


@pytest.mark.parametrize("arrays", [False, True])
def test_fit_trains_as_many_steps_as_it_is_asked_for(arrays):
    (case,) = [case for case in _TINY if case.name == "efficient_capsnet"]
    with fitting.scope("float32", "CPU"):
        fit = fitting.Fit(case, fitting.Method(report.OURS, arrays=arrays), "CPU")
        assert len(fit.seconds(30, epochs=2)) == 2
        assert int(fit.model.optimizer.iterations) == 60


def test_a_network_that_fails_says_why_and_leaves_the_policy(monkeypatch, capsys):
    def fail(*_):
        assert keras.config.dtype_policy().name == "mixed_bfloat16"
        raise tf.errors.ResourceExhaustedError(None, None, "there is no memory")

    monkeypatch.setattr(training, "_measure", fail)
    (result,) = training.run(training_options(dtype=["bfloat16"]))
    assert result["methods"]["tf_capsops"] == {"error": "there is no memory"}
    assert keras.config.dtype_policy().name == "float32"


@pytest.mark.parametrize(
    "dtype", [pytest.param("float16", marks=pytest.mark.slow), "bfloat16"]
)
def test_half_precision_is_mixed_precision(dtype):
    options = training_options(
        dtype=[dtype], model=["p_capsnet"], steps_per_execution=[1]
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (result,) = training.run(options)
    assert all("median_us" in method for method in result["methods"].values())


def test_our_network_has_as_many_trained_numbers():
    (case,) = [case for case in _TINY if case.name == "efficient_capsnet"]
    with fitting.scope("float32", "CPU"):
        model = NETWORKS[case.name].plain(case).model
    counted = sum(int(tf.size(each.value)) for each in model.trainable_variables)
    assert training._expected_numbers(case) == counted > 0


def test_the_first_step_of_a_process_has_parts(monkeypatch):
    """Ours is taken, in this process, and plain Keras' is not."""
    started, taken = [], {"median_us": 1.0}
    given = dict.fromkeys(start_up.PARTS, 0.0)

    def here(command, env, **_):
        started.append((command, env))
        task = json.loads(command[-1])
        ours = task["method"]["who"] == report.OURS
        parts = start_up.first_step(time.time(), task) if ours else given
        return types.SimpleNamespace(returncode=0, stdout=f"word\n{json.dumps(parts)}")

    monkeypatch.setattr(training, "attempt", lambda *_: dict(taken))
    monkeypatch.setattr(start_up.subprocess, "run", here)
    options = training_options(
        model=["p_capsnet"], steps_per_execution=[1], start_up=True
    )
    (result,) = training.run(options)
    assert len(result["methods"]) == len(started) == 2
    for (command, environment), package in zip(started, ("tf_capsops", "keras")):
        assert f"import {package}\n" in command[2]
        for name in ("TORCHINDUCTOR_CACHE_DIR", "CUDA_CACHE_PATH"):
            assert environment[name] != os.environ.get(name)
    for method in result["methods"].values():
        assert [*method] == [*taken, *start_up.PARTS]
    assert result["methods"]["tf_capsops"]["first_s"] > 0
    console = rich.console.Console(width=200)
    with console.capture() as captured:
        console.print(report.start_up_table(result, start_up.PARTS))
    assert "first step" in captured.get() and "plain Keras" in captured.get()


def test_a_first_step_that_fails_says_why(monkeypatch):
    failed = types.SimpleNamespace(returncode=1, stdout="", stderr="a\nno memory\n")
    monkeypatch.setattr(start_up.subprocess, "run", lambda *_, **__: failed)
    (case,) = [case for case in _TINY if case.name == "p_capsnet"]
    method = fitting.Method(report.OURS, steps=1)
    found = start_up.of_fit(case, method, "float32", "CPU", True)
    assert found == {"start_up_error": "no memory"}
    result = {"op": "training", "direction": "step", "case": "a", "sizes": {}}
    result |= {"attributes": {}, "dtype": "float32", "device": "CPU:0"}
    shown = report.start_up_table({**result, "methods": {"b": found}}, start_up.PARTS)
    assert shown.caption == "b: no memory"


def test_what_a_gpu_did_is_read_from_the_profile():
    space = xplane_pb2.XSpace()
    gpu, host = space.planes.add(), space.planes.add()
    gpu.name, host.name = "/device:GPU:0", "/host:CPU"
    for plane, name, start_ns, events in (
        (gpu, "Stream #13(Compute)", 1, [(0, 2000), (3000, 1000)]),
        (gpu, "Stream #14(Compute)", 2, [(500, 1500)]),
        (gpu, "Stream #15(MemcpyH2D)", 0, [(0, 9000)]),
        (gpu, "XLA Ops", 0, [(0, 9000)]),
        (host, "Stream of Compute", 0, [(0, 9000)]),
    ):
        line = plane.lines.add(name=name, timestamp_ns=start_ns)
        for offset, duration in events:
            line.events.add(offset_ps=offset, duration_ps=duration)
    kernels = list(trace.kernels(space))
    assert len(kernels) == 3
    # From 1 to 3 ns, 2.5 to 4 ns and 4 to 5 ns.
    assert trace.busy_seconds(kernels) == pytest.approx(4e-9)


def test_a_processor_has_no_gpu_work():
    ran = []
    assert trace.gpu_work(lambda: ran.append(tf.reduce_sum(tf.ones(9)).numpy()))[1] == 0
    assert ran == [9]
