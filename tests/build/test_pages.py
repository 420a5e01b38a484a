# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The Python of each page runs as it stands, block after block in one session."""

import re

import fresh
import pytest

from tf_capsops.cli import networks, presets

_PAGES = [fresh.ROOT / "README.md", *sorted((fresh.ROOT / "docs").rglob("*.md"))]
_CODE = {
    str(page.relative_to(fresh.ROOT)): code
    for page in _PAGES
    if (code := fresh.code_of(page))
}
# What a page may use without having made it.
_READER = """
import keras, numpy as np, tensorflow as tf, tf_capsops
images = np.random.default_rng(0).uniform(size=(8, 28, 28, 1))
labels = keras.utils.to_categorical(np.arange(8), 10)
model = tf_capsops.models.p_capsnet((28, 28, 1), 10)
model.compile("adam", tf_capsops.losses.MarginLoss(), metrics=["accuracy"])
"""
_KERNELS = ["capsule_prediction", "routing", "moments", "capsule_conv", "conv2d"]
_KERNELS += ["high_order_conv", "inq_conv"]
# Their first block makes what the others use.
_ALONE = ("docs/inq.md", "docs/segmentation.md")
# They have tests of their own.
_ELSEWHERE = {"docs/migrating.md", "docs/my_pictures.md", "docs/serving.md"}


@pytest.mark.slow
def test_blocks_run_as_they_stand(tmp_path):
    # One process, since importing TensorFlow takes longer than most pages.
    pages = {page: _CODE[page] for page in _CODE.keys() - _ELSEWHERE}
    assert len(pages) > 5
    pages = {
        page: code if page in _ALONE else _READER + code for page, code in pages.items()
    }
    fresh.run(
        f"for page, code in {pages!r}.items():\n"
        "    exec(compile(code, page, 'exec'), {})",
        cwd=tmp_path,
    )


@pytest.mark.parametrize("op", _KERNELS)
def test_a_kernel_page_says_first_which_path_runs(op):
    page = (fresh.ROOT / f"docs/{op}.md").read_text()
    first, second, *_ = re.findall("^## (.*)$", page, re.MULTILINE)
    assert (first, second) == ("Which path runs", "How it works")
    assert f"(notebook/{op}.md)" in page and "What was tried" not in page
    assert (fresh.ROOT / f"docs/notebook/{op}.md").is_file()


def test_schedules_are_those_of_the_presets():
    page = (fresh.ROOT / "docs/which_network.md").read_text()
    rows = []
    for model, by_name in presets.PRESETS.items():
        cells = {
            name: f"{each.epochs}, {each.batch_size}, {each.learning_rate:g}"
            for name, each in by_name.items()
        }
        usual = [cells.pop(name) for name in ("small", "compact", "large")]
        others = "; ".join(f"`{name}`: {cell}" for name, cell in cells.items())
        rows.append(" | ".join([f"| `{model}`", *usual, f"{others} |\n"]))
    assert f"| -- | -- | -- | -- | -- |\n{''.join(rows)}\n- " in page


def test_distortions_are_those_of_the_presets():
    shifts = {"small": 0.5, "tiny": 1.0, "large": 4.0}
    for model, by_name in presets.PRESETS.items():
        for name, each in by_name.items():
            expected = {"shift": shifts.get(name, 2.0), "degrees": 0.0, "zoom": 0.0}
            if name == "small":
                expected |= {"degrees": 7.0, "zoom": 0.1}
            if model in presets.SEGMENTERS:
                expected = dict.fromkeys(expected, 0.0)
            assert each.distortion.entries == expected


def test_losses_are_those_of_the_commands():
    page = (fresh.ROOT / "docs/layers.md").read_text()
    rows = re.findall(r"^\| (`[a-z_0-9`, ]+`) \| .* \| (.*) \|$", page, re.MULTILINE)
    by_model = {name: cell for models, cell in rows for name in models.split("`")[1::2]}
    for model in presets.PRESETS:
        for rule in presets.RULES if model == "matrix_capsnet" else [None]:
            loss = networks.loss({"model": model, "routing": rule}, 10)
            name = f"`{type(loss).__name__}`"
            if rule or model in presets.SEGMENTERS:
                # The cell names the rules or networks after each loss.
                assert re.search(
                    f"{name} for [^A-Z]*`{rule or model}`", by_model[model]
                )
            else:
                assert by_model[model].startswith(name)


def test_the_first_page_asks_what_the_visitor_wants():
    page = (fresh.ROOT / "README.md").read_text()
    table = page[: page.index("## ")]
    targets = re.findall(r"^\| .* \| \[.*\]\((docs/.*\.md)\) \|$", table, re.MULTILINE)
    assert len(targets) == 5
    assert all((fresh.ROOT / target).is_file() for target in targets)
