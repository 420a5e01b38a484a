// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Chooses the kernel path of convolutions of 8-bit activations. This file also has the
// path "float": it rounds activations to 8-bit integers, which are exact in TF32,
// convolves these with InqConv's kernel paths, and scales the sums.
#include <cstdint>

#include "cc/launch/inq_conv_int8.h"
#include "cuda/common/types.cuh"
#include "cuda/inq_conv/codes.cuh"
#include "cuda/inq_conv/paths.h"

namespace capsops::inq_conv_int8 {
namespace {

// Computes q - zero_point of one element per thread (cc/launch/inq_conv_int8.h).
template <typename S, typename A>
__global__ void QuantizeKernel(const S* from, const float* scale, int zero_point,
                               int64_t count, A* to) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const A least = -zero_point, most = 255 - zero_point;
  A x = rint(Widen(from[i]) / *scale);
  x = x > least ? x : least;  // also if x is NaN
  to[i] = x < most ? x : most;
}

// Multiplies one sum per thread by its channel's multiplier.
template <typename A, typename S>
__global__ void MultiplyKernel(const A* sums, const float* multipliers,
                               int64_t channels, int64_t count, S* to) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) Narrow(sums[i] * multipliers[i % channels], &to[i]);
}

template <typename T>
Int8Plan<GpuExec, T> PlanFloat(const GpuExec& exec, const Problem& p) {
  using A = Accumulator<T>;
  const auto plan = inq_conv::PlanForward<A>(exec, p);
  if (!plan.run) return Int8Plan<GpuExec, T>::Refuse(plan.error.text());
  const int64_t read = Inputs(p), written = Pixels(p) * p.out_channels;
  const int64_t read_bytes = RoundUp(read * sizeof(A), 64);
  const int64_t sums_bytes = RoundUp(written * sizeof(A), 64);
  return Int8Plan<GpuExec, T>::Make(
      read_bytes + sums_bytes + plan.workspace,
      [=](const GpuExec& exec, const T* input, const uint8_t* codes, const float* scale,
          int32_t zero_point, const float* multipliers, T* output,
          void* workspace) -> LaunchError {
        char* const bytes = static_cast<char*>(workspace);
        A* const image = reinterpret_cast<A*>(bytes);
        A* const sums = reinterpret_cast<A*>(bytes + read_bytes);
        CAPSOPS_RETURN_IF_ERROR(ForEach(exec, Forward::kName, read,
                                        QuantizeKernel<CudaType<T>, A>, Native(input),
                                        scale, zero_point, read, image));
        const int32_t top_exponent = (1 << (p.bits - 2)) - 1;
        CAPSOPS_RETURN_IF_ERROR(plan.run(exec, image, codes, top_exponent, sums,
                                         bytes + read_bytes + sums_bytes));
        return ForEach(exec, Forward::kName, written, MultiplyKernel<A, CudaType<T>>,
                       sums, multipliers, p.out_channels, written, Native(output));
      });
}

}  // namespace

template <typename T>
Int8Plan<GpuExec, T> PlanForward(const GpuExec& exec, const Problem& p) {
  return Choose<Int8Plan<GpuExec, T>>(
      Forward::kName, {{"int8", [&] { return int8::PlanForward<T>(exec, p); }},
                       {"float", [&] { return PlanFloat<T>(exec, p); }}});
}

CAPSOPS_INSTANTIATE_PLANNER(PlanForward, Int8Plan, GpuExec)

}  // namespace capsops::inq_conv_int8
