// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Decodes weights in global memory. A thread decodes four adjacent weights, with one
// load of codes and one store, or a single weight unless their number is a multiple of
// four.
#include <cstdint>

#include "cc/launch/inq_decode.h"
#include "cuda/common/launch.cuh"
#include "cuda/common/types.cuh"

namespace capsops::inq_decode {
namespace {

// Decodes one pack per thread. Codes past the code book are zero.
template <typename S, int kCount>
__global__ void DecodeKernel(const Pack<uint8_t, kCount>* codes,
                             const int64_t* top_exponents, int64_t packs,
                             int64_t columns, int levels, Pack<S, kCount>* weights) {
  using Wide = std::conditional_t<std::is_same_v<S, double>, double, float>;
  const int64_t n = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (n >= packs) return;
  const Pack<uint8_t, kCount> from = codes[n];
  Pack<S, kCount> to;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int64_t column = columns == 1 ? 0 : (n * kCount + i) % columns;
    const int code = from.at[i] - 1, level = code >> 1;
    Wide weight = 0;
    if (code >= 0 && level < levels) {
      const int64_t top = PowerOfTwoBits(top_exponents[column]);
      weight = ldexp(code % 2 == 0 ? Wide{1} : Wide{-1}, -level) *
               static_cast<Wide>(__longlong_as_double(top));
    }
    Narrow(weight, &to.at[i]);
  }
  weights[n] = to;
}

template <typename S, int kCount>
LaunchError Run(const GpuExec& exec, const Problem& p, const uint8_t* codes,
                const int64_t* top_exponents, S* weights) {
  const int64_t packs = p.rows * p.columns / kCount;
  return ForEach(exec, "InqDecode", packs, DecodeKernel<S, kCount>,
                 reinterpret_cast<const Pack<uint8_t, kCount>*>(codes), top_exponents,
                 packs, p.columns, 1 << (p.bits - 2),
                 reinterpret_cast<Pack<S, kCount>*>(weights));
}

}  // namespace

template <typename T>
DecodePlan<GpuExec, T> PlanDecode(const GpuExec&, const Problem& p) {
  using Plan = DecodePlan<GpuExec, T>;
  return Choose<Plan>(
      "InqDecode",
      {{"elementwise", [&] {
          return Plan::Make(0, [p](const GpuExec& exec, const uint8_t* codes,
                                   const int64_t* top_exponents, T* weights, void*) {
            const auto run =
                p.rows * p.columns % 4 == 0 ? Run<CudaType<T>, 4> : Run<CudaType<T>, 1>;
            return run(exec, p, codes, top_exponents, Native(weights));
          });
        }}});
}

CAPSOPS_INSTANTIATE_PLANNER(PlanDecode, DecodePlan, GpuExec)

}  // namespace capsops::inq_decode
