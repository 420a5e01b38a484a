# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Stands in for what Bazel 4 would download, so that it builds without a network.

Bazel 4 fetches rules_cc and rules_java to configure its toolchains, and coverage tools
to run any test, though its own native rules do all that this repository needs. Newer
Bazels get the real ones.
"""

_CC = ["cc_binary", "cc_library", "cc_test", "cc_toolchain", "cc_toolchain_suite"]

_JAVA = ["java_import", "java_runtime", "java_toolchain"]

_COVERAGE = """
package(default_visibility = ["//visibility:public"])

filegroup(name = "coverage_report_generator")

filegroup(name = "lcov_merger")
"""

def _stub_impl(ctx):
    for path, content in ctx.attr.files.items():
        ctx.file(path, content)

_stub = repository_rule(
    implementation = _stub_impl,
    attrs = {"files": attr.string_dict()},
    doc = "A repository of the files it is given.",
)

def _native(rules):
    return "".join(["%s = native.%s\n" % (rule, rule) for rule in rules])

def offline_repositories():
    """Declares the stand-ins; with Bazel 5 or newer it does nothing."""

    # Debian's Bazel 4.2.3 does not tell its version.
    version = native.bazel_version
    if version and int(version.split(".")[0]) >= 5:
        return
    _stub(
        name = "rules_cc",
        files = {"BUILD": "", "cc/BUILD": "", "cc/defs.bzl": _native(_CC)},
    )
    _stub(
        name = "rules_java",
        files = {"BUILD": "", "java/BUILD": "", "java/defs.bzl": _native(_JAVA)},
    )
    _stub(name = "remote_coverage_tools", files = {"BUILD": _COVERAGE})
