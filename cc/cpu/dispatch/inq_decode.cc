// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Divides the decoding of weights among threads.
#include "cc/cpu/inq_decode.h"

#include <atomic>

#include "cc/cpu/dispatch/inq_codes.h"
#include "cc/cpu/dispatch/isa.h"

namespace capsops::inq_decode {
namespace {

CAPSOPS_SELECTED_KERNELS

}  // namespace

template <typename T>
DecodePlan<CpuExec, T> PlanDecode(const CpuExec&, const Problem& p) {
  using A = Accumulator<T>;
  return CpuPlan<DecodePlan<CpuExec, T>>(
      p.columns * sizeof(A),
      [p](const CpuExec& exec, const uint8_t* codes, const int64_t* top_exponents,
          T* weights, void* workspace) -> LaunchError {
        const CpuKernels<T>& kernels = Selected<T>();
        A* const scales = static_cast<A*>(workspace);
        for (int64_t c = 0; c < p.columns; ++c) {
          scales[c] = PowerOfTwo<A>(top_exponents[c]);
        }
        std::atomic<bool> fit = true;
        exec.parallel_for(p.rows * p.columns, 1, [&](int64_t begin, int64_t end) {
          if (begin == end) return;
          if (!kernels.decode(p, begin, end, codes, scales, weights)) {
            fit = false;
          }
        });
        return fit ? LaunchError()
                   : BadCode(Decode::kName, {p.rows, p.columns}, p.bits, codes);
      });
}

CAPSOPS_INSTANTIATE_PLANNER(PlanDecode, DecodePlan, CpuExec)

}  // namespace capsops::inq_decode
