// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Divides the decoding of weights among threads.
#include "cc/cpu/inq_decode.h"

#include <atomic>
#include <cstring>
#include <string>

#include "cc/cpu/dispatch/isa.h"
#include "cc/cpu/dispatch/tasks.h"

namespace capsops::inq_decode {
namespace {

CAPSOPS_SELECTED_KERNELS

// Returns an error that names the first code outside the code book. There must be one.
LaunchError BadCode(const Problem& p, const uint8_t* codes) {
  const int64_t last = int64_t{1} << (p.bits - 1);
  int64_t place = 0;
  while (codes[place] <= last) ++place;
  return {"InqDecode: codes[" + std::to_string(place / p.columns) + "," +
              std::to_string(place % p.columns) + "] must be at most " +
              std::to_string(last) + " (bits " + std::to_string(p.bits) + "), got " +
              std::to_string(codes[place]),
          Fault::kInvalidArgument};
}

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
          const int64_t bits = PowerOfTwoBits(top_exponents[c]);
          double power;
          std::memcpy(&power, &bits, sizeof(power));
          scales[c] = static_cast<A>(power);
        }
        std::atomic<bool> fit = true;
        exec.parallel_for(p.rows * p.columns, 1, [&](int64_t begin, int64_t end) {
          if (begin == end) return;
          if (!kernels.decode(p, begin, end, codes, scales, weights)) {
            fit = false;
          }
        });
        return fit ? LaunchError() : BadCode(p, codes);
      });
}

CAPSOPS_INSTANTIATE_PLANNER(PlanDecode, DecodePlan, CpuExec)

}  // namespace capsops::inq_decode
