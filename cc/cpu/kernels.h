// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Declares Kernels<T>() for every instruction set. It returns the struct of function
// pointers through which cc/cpu/dispatch calls an op's kernels. An op must first define
// this struct, CpuKernels<T>.
#pragma once

#include "cc/launch/exec.h"

namespace capsops {

// The integers from begin to end - 1.
struct Range {
  int64_t begin, end;
};

}  // namespace capsops

#define CAPSOPS_DECLARE_KERNELS_OF(isa) \
  namespace isa {                       \
  template <typename T>                 \
  CpuKernels<T> Kernels();              \
  }
#define CAPSOPS_DECLARE_KERNELS  \
  CAPSOPS_DECLARE_KERNELS_OF(v2) \
  CAPSOPS_DECLARE_KERNELS_OF(v3) \
  CAPSOPS_DECLARE_KERNELS_OF(v4) \
  CAPSOPS_DECLARE_KERNELS_OF(baseline)

// Instantiates Kernels<T>() for all types, after its definition in an op's source.
#define CAPSOPS_INSTANTIATE_KERNEL(T) template CpuKernels<T> Kernels();
#define CAPSOPS_INSTANTIATE_KERNELS CAPSOPS_FOR_EACH_TYPE(CAPSOPS_INSTANTIATE_KERNEL)
