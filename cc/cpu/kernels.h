// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Declares Kernels<T>(), through which the dispatch of an op gets the op's functions
// for each instruction set. An op must define its struct CpuKernels<T> before.
#pragma once

#include "cc/launch/exec.h"

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

// Goes after the definition of Kernels<T>() in the source of an op.
#define CAPSOPS_INSTANTIATE_KERNEL(T) template CpuKernels<T> Kernels();
#define CAPSOPS_INSTANTIATE_KERNELS CAPSOPS_FOR_EACH_TYPE(CAPSOPS_INSTANTIATE_KERNEL)
