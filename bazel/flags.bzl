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

# The translation units that are several folders of cc/.
_UNITS = ["ops+kernels", "framework+shapes"]

def unity_folders():
    """Returns patterns of the sources that `unity_sources` include."""
    return ["cc/%s/*.cc" % folder for unit in _UNITS for folder in unit.split("+")]

def unity_sources():
    """Returns generated sources, each of which includes all sources of its folders."""
    for unit in _UNITS:
        native.genrule(
            name = unit + "_unity",
            srcs = native.glob(["cc/%s/*.cc" % folder for folder in unit.split("+")]),
            outs = ["unity/%s.cc" % unit],
            cmd = "printf '#include \"%s\"\n' $(SRCS) >$@",
        )
    return ["unity/%s.cc" % unit for unit in _UNITS]

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
