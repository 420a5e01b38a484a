# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The compiler flags of the Makefile, and the CPU kernels for each instruction set."""

COPTS = [
    "-std=c++17",
    "-O3",
    "-DNDEBUG",
    "-fvisibility=hidden",
    "-ffunction-sections",
    "-fdata-sections",
    "-Wall",
    "-Wextra",
]

CPU_COPTS = COPTS + ["-ffp-contract=fast", "-Wno-psabi"]

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
