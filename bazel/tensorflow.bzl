# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Finds the Python interpreter and, through it, the installed TensorFlow."""

_BUILD = """
load("@bazel_tools//tools/python:toolchain.bzl", "py_runtime_pair")

package(default_visibility = ["//visibility:public"])

cc_library(
    name = "headers",
    # Of include/external, `includes` are all that is used.
    hdrs = glob(["include/**"], exclude = ["include/external/**"]) +
           glob([below + "/**" for below in {includes}]),
    defines = {defines},
    includes = ["include"] + {includes},
)

[cc_import(
    name = library.split(".")[0],
    shared_library = library,
) for library in {libraries}]

cc_library(
    name = "libraries",
    deps = [library.split(".")[0] for library in {libraries}],
)

py_runtime(
    name = "python",
    interpreter_path = "{python}",
    python_version = "PY3",
    stub_shebang = "#!/usr/bin/env python3",
)

py_runtime_pair(
    name = "python_pair",
    py3_runtime = ":python",
)

toolchain(
    name = "python_toolchain",
    toolchain = ":python_pair",
    toolchain_type = "@bazel_tools//tools/python:toolchain_type",
)
"""

def _find_python(ctx):
    named = ctx.os.environ.get("PYTHON_BIN_PATH")
    if named:
        return named
    ours = ctx.path(Label("//:WORKSPACE")).dirname.get_child(".venv").get_child("bin").get_child("python")
    return str(ours if ours.exists else ctx.which("python3"))

def _tensorflow_configure_impl(ctx):
    python = _find_python(ctx)
    script = ctx.path(Label("//:tools/tensorflow_config.py"))
    result = ctx.execute([python, script, "--json"])
    if result.return_code:
        fail("\n%s\nPYTHON_BIN_PATH names the interpreter; it was %s." % (
            result.stderr,
            python,
        ))
    config = json.decode(result.stdout)
    version_file = ctx.read(Label("//:tf_capsops/_version.py"))
    version = version_file.split("__version__ = \"")[1].split("\"")[0]
    ctx.symlink(config["include"], "include")
    libraries = []
    for library in config["libraries"]:
        libraries.append(library.split("/")[-1])
        ctx.symlink(library, libraries[-1])
    ctx.file("config.bzl", "TENSORFLOW_VERSION = %r\nVERSION = %r\n" % (
        config["version"],
        version,
    ))
    ctx.file("BUILD", _BUILD.format(
        defines = config["defines"],
        includes = ["include/" + below for below in config["includes"]],
        libraries = libraries,
        python = python,
    ))

tensorflow_configure = repository_rule(
    implementation = _tensorflow_configure_impl,
    doc = "Headers and library of the TensorFlow of PYTHON_BIN_PATH, else of .venv, " +
          "else of python3; and that interpreter as Bazel's Python.",
    environ = ["PYTHON_BIN_PATH"],
    local = True,
)
