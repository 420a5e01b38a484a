# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Every public name is documented with an example, and every example runs."""

import doctest
import importlib
import inspect
import pkgutil

import pytest

import tf_capsops
from tf_capsops import layers
from tf_capsops.layers.coded import Coded
from tf_capsops.layers.convolving import Convolving
from tf_capsops.layers.routing_bits import RoundedRouting

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
    # Without the module's own names, so that a reader can run them, too.
    result = doctest.testmod(module, globs={}, optionflags=_OPTIONS)
    assert result.failed == 0


@pytest.mark.parametrize("name", list(public_names()))
def test_public_names_have_a_runnable_example(name):
    member = tf_capsops
    for part in name.split("."):
        member = getattr(member, part)
    documentation = inspect.getdoc(member)
    assert documentation.partition("\n")[0].endswith(".")
    assert doctest.DocTestParser().get_examples(documentation)


_CAPSULE_LAYERS = [
    each
    for each in vars(layers).values()
    if inspect.isclass(each) and issubclass(each, (Coded, Convolving))
]


@pytest.mark.parametrize("layer", _CAPSULE_LAYERS)
def test_layers_say_what_goes_in_and_comes_out(layer):
    text = " ".join(layer.__doc__.split())
    for end in ("Input", "Output"):
        assert f"{end} shape: " in text or "Input and output shape: " in text


@pytest.mark.parametrize("layer", _CAPSULE_LAYERS)
def test_layers_show_the_bits_that_they_take(layer):
    parameters = inspect.signature(layer).parameters
    assert {"bits", "per_channel"} <= {*parameters}
    if issubclass(layer, RoundedRouting):
        assert parameters["routing_bits"].kind is inspect.Parameter.KEYWORD_ONLY
