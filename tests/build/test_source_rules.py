# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rules that all sources keep; CONTRIBUTING.md has the reasons.

Each rule is a function from a file's path and text to what it finds wrong there. Each
is also shown a planted violation, so that no rule passes because it sees nothing.
"""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
CPP = (".h", ".cc", ".cuh")
CODE = (*CPP, ".py", ".bzl")
PLACES = ("bazel", "benchmarks", "cc", "cuda", "tests", "tf_capsops", "tools")
LONGEST = 400


def _framework_include(path, text):
    free = path.startswith(("cc/launch/", "cc/cpu/", "cuda/"))
    framework = r"#include\s*[<\"](tensorflow|absl|tsl|xla|Eigen|unsupported)/"
    return re.findall(framework, text) if free else []


def _missing_license(path, text):
    mark = "//" if path.endswith(CPP) else "#"
    header = f"{mark} Copyright 2026 The tf_capsops Authors.\n"
    header += f"{mark} SPDX-License-Identifier: Apache-2.0\n"
    return [] if text.startswith(header) else ["header"]


def _too_long(path, text):
    lines = text.count("\n")
    return [f"{lines} lines"] if lines > LONGEST else []


def _floating_point_atomic(path, text):
    product = path.startswith("cuda/") and not path.startswith("cuda/studies/")
    return re.findall(r"\batomicAdd\w*\s*\(", text) if product else []


def _unchecked_launch(path, text):
    """An error that nobody takes is reported by whatever is launched next."""
    product = path.startswith("cuda/") and not path.startswith("cuda/studies/")
    checked = r"\s*(?:return |(?:const )?(?:LaunchError )?\w+ = )CheckLaunch\("
    return re.findall(rf"<<<[^;]*;(?!{checked})", text) if product else []


def _templates_of_the_standard_library(path, text):
    """The linker would merge their copies across instruction sets."""
    per_isa = path.startswith("cc/cpu/") and not path.startswith("cc/cpu/dispatch/")
    containers = r"\bstd::(vector|function|string|unique_ptr|min|max|map|sort)\b"
    return re.findall(containers, text) if per_isa else []


def _private_keras(path, text):
    """Keras may move what is private from one release to the next."""
    private = r"^\s*(?:from|import) keras\.src\b|^[^\"]*\._flatten_layers\b"
    return re.findall(private, text, re.MULTILINE)


_OPENING = r"(?:Of|What|Where|How|By|The same)\b"


def _fragment(path, text):
    """The first line of a comment must name a thing or an action."""
    ours = path.startswith(("cc/", "cuda/", "tests/")) and path.endswith(CPP)
    first = rf"^(?![ \t]*//).*\n[ \t]*(// {_OPENING}.*)"
    return re.findall(first, text, re.MULTILINE) if ours else []


def _fragment_after_code(path, text):
    """A comment must name a thing or an action also where it begins in lower case."""
    ours = path.startswith(("cc/", "cuda/", "tests/")) and path.endswith(CPP)
    after = rf"^[ \t]*(?!//)\S.*[ \t](// (?i:{_OPENING}).*)"
    return re.findall(after, text, re.MULTILINE) if ours else []


RULES = {
    _framework_include: ("cuda/a.cu.cc", '#include "absl/status/status.h"'),
    _missing_license: ("cc/ops/a.cc", "#include <cstdint>\n"),
    _too_long: ("tests/test_a.py", "pass\n" * (LONGEST + 1)),
    _floating_point_atomic: ("cuda/a.cu.cc", "atomicAdd(&sum, x);"),
    _unchecked_launch: ("cuda/a.cu.cc", "Kernel<<<1, 32>>>(x);\n}"),
    _templates_of_the_standard_library: ("cc/cpu/a.cc", "std::vector<float> row;"),
    _fragment: ("cuda/a.cuh", "int i;\n  // Of a tile, the rows.\nint rows;\n"),
    _fragment_after_code: ("tests/a.h", "  int rows;  // of a tile\n"),
    _private_keras: ("tests/test_a.py", "model._flatten_layers()\n"),
}
every_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__[1:])


def _sources():
    for place in PLACES:
        for path in sorted((ROOT / place).rglob("*")):
            if path.suffix in CODE:
                yield path.relative_to(ROOT).as_posix(), path.read_text()


@every_rule
def test_sources_keep(rule):
    sources = list(_sources())
    assert len(sources) > len(PLACES)
    found = {path: rule(path, text) for path, text in sources}
    assert {path: wrong for path, wrong in found.items() if wrong} == {}


@every_rule
def test_a_violation_is_seen(rule):
    assert rule(*RULES[rule])


@pytest.mark.parametrize("path", ["Makefile", "BUILD", "bazel/flags.bzl"])
def test_libraries_run_on_other_machines_than_they_were_built_on(path):
    assert "native" not in re.findall(r"-m(?:arch|tune|cpu)=(\w+)", _text(path))


def _text(path):
    return (ROOT / path).read_text()


def _ops():
    return sorted(path.stem for path in (ROOT / "cc" / "ops").glob("*.cc"))


def test_there_are_ops():
    assert "capsule_prediction" in _ops()


@pytest.mark.parametrize("op", _ops())
@pytest.mark.parametrize(
    "place",
    [
        "cc/launch/{}.h",
        "cc/shapes/{}.h",
        "cc/shapes/{}.cc",
        "cc/cpu/{}.h",
        "cc/cpu/{}.cc",
        "cc/cpu/dispatch/{}.cc",
        "cuda/{}/launch.cu.cc",
        "cuda/{}/paths.h",
        "tf_capsops/ops/{}.py",
        "tf_capsops/bench/suites/{}.py",
        "tests/reference/{}.py",
        "tests/ops/test_{}.py",
    ],
)
def test_every_op_lives_in_every_room(op, place):
    assert (ROOT / place.format(op)).is_file()


def _reached(path, seen=()):
    """Returns a CUDA source and what it includes, as paths."""
    reached = {path, *seen}
    for name in re.findall(r'#include "(cuda/.+)"', _text(path)):
        if name not in reached:
            reached |= _reached(name, reached)
    return reached


def _kernel_folders(path):
    """Returns where the kernels are that a CUDA source sees, itself left out."""
    seen = _reached(path) - {path}
    return {str(pathlib.Path(each).parent) for each in seen if _has_kernels(each)}


def _has_kernels(path):
    return "__global__" in _text(path)


def _units():
    units = [path.relative_to(ROOT).as_posix() for path in ROOT.glob("cuda/**/*.cu.cc")]
    return [unit for unit in units if not unit.startswith("cuda/studies/")]


@pytest.mark.parametrize("op", _ops())
def test_an_edit_of_a_kernel_path_recompiles_that_path_alone(op):
    assert not any(map(_has_kernels, _reached(f"cuda/{op}/launch.cu.cc")))
    paths = [unit for unit in _units() if unit.startswith(f"cuda/{op}/")]
    assert len(paths) > 2
    for path in paths:
        assert len(_kernel_folders(path) - {f"cuda/{op}"}) < 2, path


def test_no_two_units_compile_the_same_kernel():
    """Those that are no templates are compiled wherever their header is included."""
    plain = re.compile(r"(?<!>\n)^(?:static )?__global__", re.MULTILINE)
    headers = [each for unit in _units() for each in _reached(unit) - {unit}]
    twice = {each for each in headers if headers.count(each) > 1}
    assert "cuda/common/launch.cuh" in twice
    assert [each for each in sorted(twice) if plain.search(_text(each))] == []
    assert plain.search(_text("cuda/capsule_conv/tma/pack_grad.cuh"))


def test_make_and_bazel_compile_the_same_units():
    (make,) = re.findall(r"^UNITS := (.+)$", _text("Makefile"), re.M)
    (bazel,) = re.findall(r"^_UNITS = \[(.+)\]$", _text("bazel/flags.bzl"), re.M)
    assert make.split() == re.findall(r"[\w+]+", bazel)
    folders = {folder for unit in make.split() for folder in unit.split("+")}
    assert {path.name for path in ROOT.glob("cc/*/")} >= folders


@pytest.mark.parametrize("op", _ops())
def test_an_op_has_one_name_everywhere(op):
    assert f"namespace capsops::{op}" in _text(f"cc/launch/{op}.h")
    # Python adds the "2d" of its field, as in tf.nn.conv2d.
    assert re.search(rf"^def {op}(2d)?\(", _text(f"tf_capsops/ops/{op}.py"), re.M)


def test_deprecations_that_our_own_code_causes_are_errors():
    warn = "import warnings; warnings.warn('old', DeprecationWarning)"
    exec(warn, {"__name__": "tensorflow.python.somewhere"})
    with pytest.raises(DeprecationWarning, match="old"):
        exec(warn, {"__name__": "tf_capsops.somewhere"})
