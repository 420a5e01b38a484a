# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""How Sphinx makes the documentation's site of docs/ and of the docstrings."""

import importlib
import os
import pathlib
import re
import sys

# Autodoc imports the package; its log lines are not the site's.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

project = "tf_capsops"
copyright = "2026 The tf_capsops Authors"
release = importlib.import_module("tf_capsops").__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
extensions += ["sphinx_copybutton"]
exclude_patterns = ["measured"]
html_theme = "furo"
html_show_sourcelink = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
# A long signature has an argument on each line.
maximum_signature_line_length = 70
myst_heading_anchors = 3
# Do not guess the language of a block.
highlight_language = "text"
autodoc_default_options = {"exclude-members": "__init__, __new__"}
napoleon_use_rtype = False
default_role = "code"

# The files at the top of the source tree that have a page, which includes them. Links
# are written for those who read the files where they lie.
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "THIRD_PARTY_LICENSES.md": "licenses.md",
    "LICENSE": "license.md",
}
# Words that people search for, and that the page with the answer does not use.
SEARCHED = {
    "my_pictures": "predict images, classify images, image folder, own images, "
    "explain, which pixels decide, saliency, heatmap, csv labels",
    "layers": "pretrained network, transfer learning, custom model",
    "export": "deploy, tflite, onnx, savedmodel, without library",
    "serving": "serve, http, rest api, docker",
    "faster": "faster, slow, speed up",
    "installing": "pip install, wheel, cuda, gpu",
    "migrating": "pytorch, port weights",
}
_LINK = re.compile(r"\]\((docs/|(?:\.\./)*)([^)#:]+)")


def _link(match):
    folder, target = match.groups()
    if target in PAGES:  # from docs/ it is one folder up
        return f"]({folder.removeprefix('docs/').removeprefix('../')}{PAGES[target]}"
    return f"]({folder.removeprefix('docs/')}{target}"


def _as_on_the_site(text):
    return _LINK.sub(_link, text)


def _read(app, docname, content):
    content[0] = _as_on_the_site(content[0])
    if words := SEARCHED.get(docname):
        entries = "\n".join(f"   ! single: {each}" for each in words.split(", "))
        content[0] += f"\n```{{eval-rst}}\n.. index::\n{entries}\n```\n"


def _included(app, path, docname, content):
    if path.suffix == ".md":
        content[0] = _as_on_the_site(content[0])


def _with_literal_blocks(app, what, name, obj, options, lines):
    """Marks what is indented after a colon and an empty line as a block of text."""
    for number, line in enumerate(lines[:-2]):
        indented = lines[number + 2].startswith(" ")
        if line.endswith(":") and not lines[number + 1] and indented:
            lines[number] += ":"


def setup(app):
    """Connects what rewrites links and docstrings; Sphinx calls it."""
    app.connect("source-read", _read)
    app.connect("include-read", _included)
    # Before Napoleon, for which an indented block means something else.
    app.connect("autodoc-process-docstring", _with_literal_blocks, priority=400)
