# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Every public name is documented with an example, and every example runs."""

import doctest
import importlib
import inspect
import pkgutil

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_capsops

# What an example may use without importing it.
_NAMES = {"keras": keras, "np": np, "tf": tf, "tf_capsops": tf_capsops}
_OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def _modules():
    """Names the package's Python modules, but for the one that runs when imported."""
    found = ["tf_capsops"]
    for module in pkgutil.walk_packages(tf_capsops.__path__, "tf_capsops."):
        origin = module.module_finder.find_spec(module.name).origin
        if origin.endswith(".py") and not module.name.endswith("__main__"):
            found.append(module.name)
    return found


def public_names():
    """Names the public functions and classes, with those of public modules."""
    for name in tf_capsops.__all__:
        member = getattr(tf_capsops, name)
        if callable(member):
            yield name
        elif inspect.ismodule(member):
            for inner, value in vars(member).items():
                ours = getattr(value, "__module__", "").startswith("tf_capsops")
                if callable(value) and ours and not inner.startswith("_"):
                    yield f"{name}.{inner}"


@pytest.mark.parametrize("name", _modules())
def test_examples_run(name):
    module = importlib.import_module(name)
    assert module.__doc__
    result = doctest.testmod(module, extraglobs=_NAMES, optionflags=_OPTIONS)
    assert result.failed == 0


@pytest.mark.parametrize("name", list(public_names()))
def test_public_names_have_a_runnable_example(name):
    member = tf_capsops
    for part in name.split("."):
        member = getattr(member, part)
    documentation = inspect.getdoc(member)
    assert documentation.partition("\n")[0].endswith(".")
    assert doctest.DocTestParser().get_examples(documentation)
