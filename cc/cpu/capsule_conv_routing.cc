// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

#include "cc/cpu/capsule_conv_routing.h"

#include "cc/cpu/capsule_conv_routing_copies.h"
#include "cc/cpu/capsule_conv_routing_pixels.h"

namespace capsops::capsule_conv_routing::CAPSOPS_ISA {

template <typename T>
CpuKernels<T> Kernels() {
  return {kLanes<Accumulator<T>>,
          ScratchBytes<T>,
          Route<T>,
          RouteBackward<T>,
          AddParts<T>,
          CopyMatrix<T>,
          AddMatrix<T>,
          NarrowAll<T>,
          CopyRow<T>,
          AddRow<T>};
}
CAPSOPS_INSTANTIATE_KERNELS

}  // namespace capsops::capsule_conv_routing::CAPSOPS_ISA
