// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// What a thread knows of its parent, and what it makes of a vote for it.
#ifndef CAPSOPS_CUDA_CAPSULE_MOMENTS_MMA_STATISTICS_CUH_
#define CAPSOPS_CUDA_CAPSULE_MOMENTS_MMA_STATISTICS_CUH_

#include <cstdint>

#include "cuda/capsule_moments/mma/tile.cuh"

namespace capsops::capsule_moments::mma {

// Where the numbers of one parent are; null what is absent.
struct ParentAt {
  const float *center, *linear, *precision, *first_grad, *second_grad;

  ParentAt() = default;
  __device__ ParentAt(const Inputs& in, const Gradient& grad, int64_t parent)
      : center(Of(in.center, parent)),
        linear(Of(in.linear, parent)),
        precision(Of(in.precision, parent)),
        first_grad(Of(grad.first, parent)),
        second_grad(Of(grad.second, parent)) {}
  __device__ static const float* Of(const float* tensor, int64_t parent) {
    return tensor == nullptr ? nullptr : tensor + parent * kSize;
  }
};

// The statistics of a thread's parent. Where gradients are made, all that multiplies in
// the gradient of a vote is as Prepare() would have it, so the gradient is, too.
//
// kLogit is 0 where logits have bias and prior at most, 1 where they have a precision,
// too, and 2 where they have both a precision and a linear part.
template <bool kGradient, bool kSecond, int kLogit>
struct Statistics {
  static constexpr float kLift = kGradient ? 1 + 0.71f * 0x1p-11f : 1;
  float minus_center[kSize], precision[kSize], linear[kSize];
  float first_grad[kSize], second_grad[kSize];
  float bias, mass_grad;

  __device__ Statistics(const ParentAt& at, float bias, float mass_grad)
      : bias(bias), mass_grad(mass_grad) {
    LoadParent(at.center, -1, minus_center);
    if constexpr (kLogit > 0) LoadParent(at.precision, -kLift, precision);
    if constexpr (kLogit > 1) {
      LoadParent(at.linear, 1, linear);
      // <linear, vote> = <linear, u> + <linear, center>
#pragma unroll
      for (int h = 0; h < kSize; ++h) this->bias -= linear[h] * minus_center[h];
#pragma unroll
      for (float& x : linear) x *= kLift;
    }
    if constexpr (kGradient) LoadParent(at.first_grad, 1, first_grad);
    if constexpr (kGradient && kSecond) LoadParent(at.second_grad, 2, second_grad);
  }

  // Makes the logit, without the prior, and the gradient of activation * share.
  __device__ void Sum(const float (&u)[kSize], float* z, float* dq) const {
    float squares[kSide] = {}, lines[kSide] = {}, firsts[kSide] = {},
          seconds[kSide] = {};
#pragma unroll
    for (int h = 0; h < kSize; ++h) {
      const float square = u[h] * u[h];
      if constexpr (kLogit > 0) squares[h % kSide] += precision[h] * square;
      if constexpr (kLogit > 1) lines[h % kSide] += linear[h] * u[h];
      if constexpr (kGradient) firsts[h % kSide] += first_grad[h] * u[h];
      if constexpr (kGradient && kSecond) seconds[h % kSide] += second_grad[h] * square;
    }
    const auto total = [](const float (&x)[kSide]) {
      return (x[0] + x[1]) + (x[2] + x[3]);
    };
    *z = bias;
    if constexpr (kLogit > 0) *z += (0.5f / kLift) * total(squares);
    if constexpr (kLogit > 1) *z += (1 / kLift) * total(lines);
    if constexpr (kGradient) *dq = mass_grad + total(firsts);
    if constexpr (kGradient && kSecond) *dq += 0.5f * total(seconds);
  }

  // Makes the gradient of a vote.
  __device__ void Differentiate(const float (&u)[kSize], float q, float dz,
                                float (&gradient)[kSize]) const {
    q *= kLift;
#pragma unroll
    for (int h = 0; h < kSize; ++h) {
      float x = first_grad[h];
      if constexpr (kSecond) x += second_grad[h] * u[h];
      x *= q;
      if constexpr (kLogit > 0) x += precision[h] * (dz * u[h]);
      if constexpr (kLogit > 1) x += linear[h] * dz;
      gradient[h] = x;
    }
  }
};

}  // namespace capsops::capsule_moments::mma

#endif  // CAPSOPS_CUDA_CAPSULE_MOMENTS_MMA_STATISTICS_CUH_
