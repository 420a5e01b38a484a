// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The CPU kernel of InqDecode, compiled once per instruction set. A call runs on one
// thread, as in cc/cpu/capsule_prediction.h.
#pragma once

#include <cstdint>

#include "cc/cpu/kernels.h"
#include "cc/launch/inq_decode.h"

namespace capsops::inq_decode {

template <typename T>
struct CpuKernels {
  // Decodes weights `begin` to `end`, in the order of the codes. `scales` are the
  // largest weights of the columns. Returns whether all of the codes are in the code
  // book.
  bool (*decode)(const Problem& p, int64_t begin, int64_t end, const uint8_t* codes,
                 const Accumulator<T>* scales, T* weights);
};

CAPSOPS_DECLARE_KERNELS

}  // namespace capsops::inq_decode
