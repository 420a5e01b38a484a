# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""`info --op` says which kernels can run a call, and why the others cannot."""

import pytest

from tf_capsops import _library
from tf_capsops.__main__ import main

_CALLS = {
    "CapsulePrediction": "--shape 2x6x8 6x4x5x8",
    "CapsuleRouting": "--shape 2x6x8 6x4x5x8 --argument iterations=2",
    "CapsuleConv": "--shape 1x5x5x2x4x4 3x3x2x3x4x4 "
    "--argument strides=(2,1) padding=SAME",
    "CapsuleConvRouting": "--shape 1x5x5x2x4 3x3x4x3x8 --argument leaky=True",
    "CapsuleMoments": "--shape 1x4x4x2x4x4 none 3x3x2x3x4x4 "
    "--argument linear=1x2x2x3x4x4",
    "HighOrderConv": "--shape 1x5x5x2 1x5x5x9 --argument kernel_size=3",
    "InqConv": "--shape 1x5x5x4 3x3x4x8 --argument bits=4",
    "InqConvInt8": "--shape 1x5x5x4 3x3x4x8 --argument bits=4",
}


@pytest.mark.parametrize("op", _CALLS)
def test_every_op(op, capsys):
    status = main(["info", "--op", op, *_CALLS[op].split()])
    printed = capsys.readouterr()
    if not _library.build_info()["cuda"]:
        said = "this library is CPU-only, so it has no GPU kernels: `make build CUDA=1`"
        assert status == 2 and said in printed.err
        return
    assert status == 0
    lines = [line.split(maxsplit=2) for line in printed.out.splitlines()]
    assert {name for name, *_ in lines} > {op}  # also its gradient, or InqConv
    for name in {name for name, *_ in lines}:
        states = [state for each, _, state in lines if each == name]
        assert states.count("runs") == 1, printed.out
        before = states[: states.index("runs")]
        assert all(state.startswith("cannot, because ") for state in before)


def test_another_gpu_and_type(capsys):
    call = "--op CapsuleConv --shape 2x8x8x8x4x4 3x3x8x32x4x4 --dtype float64"
    has_cuda = bool(_library.build_info()["cuda"])
    assert main(["info", *call.split(), "--capability", "8.0"]) == 2 * (not has_cuda)
    runs = [line for line in capsys.readouterr().out.splitlines() if "runs" in line]
    assert {line.split()[1] for line in runs} == {"fma"} if has_cuda else not runs


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("--shape 2x3", "--shape needs --op"),
        ("--dtype float16", "--dtype needs --op"),
        ("--op CapsuleConv", "--op needs --shape"),
        (
            "--op CapsuleConv --shape 2,3",
            "expected sizes such as 128x14x14x32, got '2,3'",
        ),
        ("--op CapsuleConv --shape 99999999999x2", "expected sizes such as 128x14x14"),
        ("--op CapsuleConv --shape 99999999x99999999", "has more than 2^48 elements"),
        ("--op InqConv --shape 2 --argument bits", "expected NAME=VALUE, got 'bits'"),
        ("--op Conv --shape 2", "invalid choice: 'Conv'"),
    ],
)
def test_mistakes(arguments, text, capsys):
    assert main(["info", *arguments.split()]) == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("CapsulePrediction --shape 2x6x8 5x4x5x8", "error: CapsulePrediction: weig"),
        ("CapsuleRouting --shape 2x6x8 6x4x5x8 --argument rounds=2", "rounds"),
        ("HighOrderConv --shape 1x5x5x2 1x5x5x9", "kernel_size"),
        (
            "CapsuleConv --shape 1x5x5x2x4x4",
            "error: --shape: CapsuleConv needs the shapes of inputs, weights, in this "
            "order, and weights has none",
        ),
        (
            "InqConv --shape 1x5x5x4",
            "the shapes of inputs, codes, in this order, and c",
        ),
        (
            "CapsuleMoments --shape 1x4 none",
            "activations, weights, in this order, and w",
        ),
    ],
)
def test_calls_that_the_op_refuses(arguments, text, capsys):
    """Whether there are kernels for GPUs or not."""
    assert main(["info", "--op", *arguments.split()]) == 2
    assert text in capsys.readouterr().err


def test_without_a_library(monkeypatch, capsys):
    monkeypatch.setenv("TF_CAPSOPS_LIBRARY", "/no/such.so")
    _library.load.cache_clear()
    assert (
        main(["info", "--op", "CapsulePrediction", "--shape", "2x6x8", "6x4x5x8"]) == 2
    )
    assert "/no/such.so" in capsys.readouterr().err
    monkeypatch.undo()
    assert main(["info"]) == 0
