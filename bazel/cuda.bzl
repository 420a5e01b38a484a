# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Finds the CUDA toolkit, or none, and says for which GPUs to compile, as the Makefile."""

_EVERY_ARCH = ["80", "90", "100", "120"]

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

def _visible_gpus(ctx):
    """Returns the architectures of the GPUs that nvidia-smi sees, such as ["90"]."""
    command = ctx.which("nvidia-smi")
    if not command:
        return []
    result = ctx.execute([command, "--query-gpu=compute_cap", "--format=csv,noheader"])
    words = [] if result.return_code else result.stdout.split("\n")
    found = [word.strip().replace(".", "") for word in words]
    return {arch: None for arch in sorted(found) if arch.isdigit()}.keys()

def _wanted(ctx):
    """Returns auto, 0 or 1, and the architectures that are named."""
    wanted = ctx.os.environ.get("TF_CAPSOPS_CUDA", "auto")
    if wanted not in ["auto", "0", "1"]:
        fail("TF_CAPSOPS_CUDA must be auto, 0 or 1, got '%s'" % wanted)
    named = [arch for arch in ctx.os.environ.get("TF_CAPSOPS_CUDA_ARCHS", "").split(" ") if arch]
    return "1" if wanted == "auto" and named else wanted, named

def _find_archs(ctx, nvcc, named, gpus):
    known = _ask(ctx, nvcc, "--list-gpu-code").replace("\n", " ").split(" ")
    archs = [arch for arch in named or gpus if "sm_" + arch in known]
    if not archs and not named:
        # Where nvcc is older than the GPU, PTX of the newest that it knows serves.
        archs = [arch for arch in _EVERY_ARCH if "sm_" + arch in known]
    if not archs:
        fail("TF_CAPSOPS_CUDA_ARCHS=\"%s\" holds nothing that %s knows: %s" %
             (" ".join(named or _EVERY_ARCH), nvcc, " ".join(known)))
    return archs

def _cuda_configure_impl(ctx):
    wanted, named = _wanted(ctx)
    gpus = _visible_gpus(ctx) if wanted == "auto" else []
    nvcc = _find_nvcc(ctx) if wanted == "1" or gpus else None
    version, archs = "", []
    if nvcc:
        version = _ask(ctx, nvcc, "--version").split("release ")[1].split(",")[0]
        archs = _find_archs(ctx, nvcc, named, gpus)
        ctx.symlink(_find_cudart(ctx, nvcc), "libcudart_static.a")
    elif wanted == "1":
        fail("No nvcc was found: install the CUDA toolkit, set CUDA_HOME or NVCC, or " +
             "build for the CPU only with --config=cpu.")
    elif wanted == "auto":
        why = "there is a GPU but no nvcc" if gpus else "no GPU is visible"
        print("Building for the CPU only: %s (--config=cuda builds for all GPUs)." % why)
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
          "says whether it is wanted: auto for the GPUs that nvidia-smi sees, 1 for all. " +
          "TF_CAPSOPS_CUDA_ARCHS names others, and stands for 1.",
    environ = ["CUDA_HOME", "NVCC", "PATH", "TF_CAPSOPS_CUDA", "TF_CAPSOPS_CUDA_ARCHS"],
    local = True,
)
