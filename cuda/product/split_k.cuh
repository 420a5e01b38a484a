// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Split-K: blocks write partial sums, which a second kernel adds in a fixed order.
#pragma once

#include <cstdint>

#include "cc/launch/exec.h"

namespace capsops {

constexpr int kReduceElements = 32;  // elements per block

// Writes the sum of `parts` arrays of `elements` elements to `out`. S is CudaType<T>
// and A is Accumulator<T> of some T.
template <typename S, typename A>
LaunchError ReduceSplits(const GpuExec& exec, const char* op, int64_t elements,
                         int parts, const A* partial, S* out);

}  // namespace capsops
