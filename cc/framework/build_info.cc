// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The versions that this library was built for, as bytes that a loader can find in the
// file before it loads it: with mismatched versions, loading itself fails.

#define CAPSOPS_ENTRY(key, value) "\"" key "\": \"" value "\""

// clang-format off
extern "C" __attribute__((used, visibility("default")))
const char tf_capsops_build_info[] =
    "tf_capsops-build-info:{"
    CAPSOPS_ENTRY("version", TF_CAPSOPS_VERSION) ", "
    CAPSOPS_ENTRY("tensorflow", TF_CAPSOPS_TENSORFLOW_VERSION) ", "
    CAPSOPS_ENTRY("cuda", TF_CAPSOPS_CUDA_VERSION) ", "
    CAPSOPS_ENTRY("cuda_archs", TF_CAPSOPS_CUDA_ARCHS) ", "
    CAPSOPS_ENTRY("compiler", __VERSION__) "}";
// clang-format on
