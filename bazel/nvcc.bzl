# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The rule that calls nvcc, for the toolkit that cuda_configure found."""

load("@cuda//:config.bzl", "CUDA_ARCHS", "NVCC")

_FLAGS = [
    "-x",
    "cu",
    "-std=c++17",
    "-O1",  # Of the host's side; kernels are optimized in any case.
    "-DNDEBUG",
    "--expt-relaxed-constexpr",
    "-lineinfo",
    "-Xcompiler",
    "-fPIC,-fvisibility=hidden",
    "-Xfatbin",
    "-compress-all",
    "-I.",
]

def _gencode():
    """Machine code for every architecture, and PTX of the newest for GPUs to come."""
    flags = []
    for arch in CUDA_ARCHS:
        # With the warpgroup instructions that only 9.0 has.
        code = "90a" if arch == "90" else arch
        flags += ["-gencode", "arch=compute_%s,code=sm_%s" % (code, code)]
    newest = max([int(arch) for arch in CUDA_ARCHS])
    return flags + ["-gencode", "arch=compute_%d,code=compute_%d" % (newest, newest)]

def _cuda_objects_impl(ctx):
    objects = []
    for source in ctx.files.srcs:
        name = source.short_path[:-len(".cu.cc")].replace("/", "_")
        output = ctx.actions.declare_file("%s/%s.pic.o" % (ctx.label.name, name))
        ctx.actions.run(
            executable = NVCC,
            arguments = _FLAGS + _gencode() + ["-c", source.path, "-o", output.path],
            inputs = [source] + ctx.files.hdrs,
            mnemonic = "Nvcc",
            outputs = [output],
            progress_message = "Compiling %s with nvcc" % source.short_path,
            use_default_shell_env = True,
        )
        objects.append(output)
    return [DefaultInfo(files = depset(objects))]

cuda_objects = rule(
    implementation = _cuda_objects_impl,
    doc = "Position-independent objects of CUDA sources; none of none.",
    attrs = {
        "hdrs": attr.label_list(allow_files = [".h", ".cuh"]),
        "srcs": attr.label_list(allow_files = [".cu.cc"]),
    },
)
