# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Finds the CUDA toolkit, or none, and compiles CUDA sources with its nvcc."""

_ARCHS = "80 90 100 120"

_LIBRARY_DIRECTORIES = [
    "lib64",
    "lib",
    "targets/x86_64-linux/lib",
    "targets/sbsa-linux/lib",
]

_BUILD = """
package(default_visibility = ["//visibility:public"])

cc_library(
    name = "cudart",
    srcs = glob(["libcudart_static.a"], allow_empty = True),
)
"""

_CONFIG = """
WITH_CUDA = {with_cuda}
CUDA_VERSION = {version}
CUDA_ARCHS = {archs}
NVCC = {nvcc}
"""

def _find_nvcc(ctx):
    named = ctx.os.environ.get("NVCC")
    home = ctx.os.environ.get("CUDA_HOME")
    if named or home:
        path = ctx.path(named or home + "/bin/nvcc")
        return path if path.exists else None
    found = ctx.which("nvcc")
    usual = ctx.path("/usr/local/cuda/bin/nvcc")
    return found or (usual if usual.exists else None)

def _ask(ctx, nvcc, *arguments):
    result = ctx.execute([nvcc] + list(arguments))
    if result.return_code:
        fail("%s %s failed:\n%s" % (nvcc, " ".join(arguments), result.stderr))
    return result.stdout + result.stderr

def _find_cudart(ctx, nvcc):
    # A package's nvcc may be a wrapper, so nvcc itself says where its toolkit is.
    for line in _ask(ctx, nvcc, "--dryrun", "-x", "cu", "-c", "/dev/null").split("\n"):
        if line.startswith("#$ TOP="):
            top = line[len("#$ TOP="):]
            for directory in _LIBRARY_DIRECTORIES:
                path = ctx.path("%s/%s/libcudart_static.a" % (top, directory))
                if path.exists:
                    return path
    fail("%s has no libcudart_static.a: install the CUDA toolkit's cudart " % nvcc +
         "development files, or build with --config=cpu.")

def _cuda_configure_impl(ctx):
    wanted = ctx.os.environ.get("TF_CAPSOPS_CUDA", "auto")
    if wanted not in ["auto", "0", "1"]:
        fail("TF_CAPSOPS_CUDA must be auto, 0 or 1, got '%s'" % wanted)
    nvcc = None if wanted == "0" else _find_nvcc(ctx)
    version, archs = "", []
    if nvcc:
        version = _ask(ctx, nvcc, "--version").split("release ")[1].split(",")[0]
        known = _ask(ctx, nvcc, "--list-gpu-code").replace("\n", " ").split(" ")
        asked = ctx.os.environ.get("TF_CAPSOPS_CUDA_ARCHS", _ARCHS)
        archs = [arch for arch in asked.split(" ") if "sm_" + arch in known]
        if not archs:
            fail("TF_CAPSOPS_CUDA_ARCHS=\"%s\" holds nothing that %s %s knows: %s" %
                 (asked, nvcc, version, " ".join(known)))
        ctx.symlink(_find_cudart(ctx, nvcc), "libcudart_static.a")
    elif wanted == "1":
        fail("--config=cuda, but no nvcc was found: install the CUDA toolkit, or set " +
             "CUDA_HOME or NVCC.")
    ctx.file("BUILD", _BUILD)
    ctx.file("config.bzl", _CONFIG.format(
        archs = archs,
        nvcc = repr(str(nvcc) if nvcc else ""),
        version = repr(version),
        with_cuda = bool(nvcc),
    ))

cuda_configure = repository_rule(
    implementation = _cuda_configure_impl,
    doc = "The CUDA toolkit of NVCC, CUDA_HOME or PATH. TF_CAPSOPS_CUDA (auto, 0, 1) " +
          "says whether it is wanted, TF_CAPSOPS_CUDA_ARCHS for which GPUs.",
    environ = ["CUDA_HOME", "NVCC", "PATH", "TF_CAPSOPS_CUDA", "TF_CAPSOPS_CUDA_ARCHS"],
    local = True,
)
