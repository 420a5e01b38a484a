# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The compiler flags of the Makefile, and its translation units."""

_COPTS = [
    "-std=c++17",
    "-DNDEBUG",
    "-fvisibility=hidden",
    "-ffunction-sections",
    "-fdata-sections",
    "-Wall",
    "-Wextra",
]

COPTS = _COPTS + ["-O1"]

CPU_COPTS = _COPTS + ["-O3", "-ffp-contract=fast", "-Wno-psabi"]

LINKOPTS = [
    "-Wl,--gc-sections",
    "-Wl,--exclude-libs,libcudart_static.a",
    "-Wl,--no-undefined",
    "-s",
    "-ldl",
    "-lpthread",
    "-lrt",
]

_ISA_COPTS = {
    "baseline": [],
    "v2": ["-march=x86-64-v2"],
    "v3": ["-march=x86-64-v3"],
    "v4": ["-march=x86-64-v4", "-mprefer-vector-width=512"],
}

# Each of these folders of cc/ is one translation unit.
UNITY_FOLDERS = ["framework", "shapes", "ops"]

def unity_sources():
    """Returns generated sources, each of which includes all sources of a folder."""
    for folder in UNITY_FOLDERS:
        sources = native.glob(["cc/%s/*.cc" % folder])
        native.genrule(
            name = folder + "_unity",
            srcs = sources,
            outs = ["unity/%s.cc" % folder],
            cmd = "printf '#include \"%s\"\n' $(SRCS) >$@",
        )
    return ["unity/%s.cc" % folder for folder in UNITY_FOLDERS]

def isa_libraries(srcs, deps):
    """Declares a library of `srcs` for each instruction set, cpu_v2 and so on.

    Args:
      srcs: C++ sources that read the macro CAPSOPS_ISA.
      deps: What they include.

    Returns:
      Labels to link, the most modest instruction set first.
    """
    for isa, copts in _ISA_COPTS.items():
        native.cc_library(
            name = "cpu_" + isa,
            srcs = srcs,
            copts = CPU_COPTS + copts,
            local_defines = ["CAPSOPS_ISA=" + isa],
            deps = deps,
        )
    return select({
        "@platforms//cpu:x86_64": [":cpu_v2", ":cpu_v3", ":cpu_v4"],
        "//conditions:default": [":cpu_baseline"],
    })
