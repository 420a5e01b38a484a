# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The site's reference has every public name, and shows what its arguments are."""

import inspect
import operator
import re

import fresh
import pytest
from sphinx.application import Sphinx
from sphinx.util.docutils import docutils_namespace
from test_docstrings import public_names

import tf_capsops

_DIRECTIVES = [
    line
    for page in sorted((fresh.ROOT / "docs/reference").glob("*.md"))
    for line in page.read_text().splitlines()
    if line.startswith(".. auto")
]
_OURS = list(public_names())


@pytest.fixture(scope="module")
def signatures(tmp_path_factory):
    """Returns the line that Sphinx writes for each name of the reference."""
    folder = tmp_path_factory.mktemp("reference")
    (folder / "index.rst").write_text(
        "\n".join(["Reference", "=========", *_DIRECTIVES])
    )
    settings = {"extensions": ["sphinx.ext.autodoc"], "text_secnumbers": False}
    settings["autodoc_docstring_signature"] = False
    settings["suppress_warnings"] = ["docutils"]
    with docutils_namespace():
        app = Sphinx(
            folder,
            None,
            folder / "out",
            folder / "trees",
            "text",
            settings,
            status=None,
            warning=None,
        )
        app.build()
    text = (folder / "out/index.txt").read_text()
    found = re.findall(
        r"^(?:class )?tf_capsops\.([\w.]+)(\((?:.|\n)*?\))?$", text, re.M
    )
    return {_member(name): " ".join(signature.split()) for name, signature in found}


def _member(name):
    return operator.attrgetter(name)(tf_capsops)


@pytest.mark.parametrize("name", _OURS)
def test_arguments_and_defaults_are_shown(name, signatures):
    member = _member(name)
    shown = signatures[member]
    assert "*args" not in shown
    for argument, parameter in inspect.signature(member).parameters.items():
        assert argument in shown
        if parameter.default is not inspect.Parameter.empty:
            assert f"{argument}=" in shown
