// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Declares Kernels<T>() for every instruction set. It returns an op's functions for
// cc/cpu/dispatch to call. An op must first define its struct CpuKernels<T>.
#pragma once

#include "cc/launch/exec.h"

namespace capsops {

// Items begin to end - 1 of a list.
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
