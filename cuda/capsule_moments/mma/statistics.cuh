// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// A parent's statistics in registers, and the logits and gradients of votes for it.
#pragma once

#include <cstdint>

#include "cuda/capsule_moments/mma/tile.cuh"

namespace capsops::capsule_moments::mma {

// Pointers to one parent's statistics and moment gradients; null if absent.
struct ParentAt {
  const float *center, *linear, *precision, *first_grad, *second_grad;

  ParentAt() = default;
  __device__ ParentAt(const Inputs& in, const Gradient& grad, int64_t parent)
      : center(Get(in.center, parent)),
        linear(Get(in.linear, parent)),
        precision(Get(in.precision, parent)),
        first_grad(Get(grad.first, parent)),
        second_grad(Get(grad.second, parent)) {}
  __device__ static const float* Get(const float* tensor, int64_t parent) {
    return tensor == nullptr ? nullptr : tensor + parent * kSize;
  }
};

// Factor that compensates on average for the tensor core's truncation of an operand to
// TF32, like Prepare(). Vote gradients include it, so that they need no rounding.
template <bool kSplit>
constexpr float kDebias = kSplit ? 1 : 1 + 0.71f * 0x1p-11f;

// The statistics of a thread's parent. kLogit is 0 without logits, when all shares of a
// child are equal, 1 for logits without `linear` and prior, and 2 for complete logits.
// kOnce: gradients come from Differentiate(), not from Sum() and MomentGradient().
template <bool kGradient, bool kSecond, int kLogit, bool kSplit, bool kOnce>
struct Statistics {
  float minus_center[kSize], precision[kSize], linear[kSize];
  float first_grad[kSize], second_grad[kSize];  // second_grad is doubled unless kOnce
  float bias, mass_grad;

  __device__ Statistics(const ParentAt& at, float bias, float mass_grad)
      : bias(bias), mass_grad(mass_grad) {
    LoadParent(at.center, -1, minus_center);
    if constexpr (kLogit > 0) LoadParent(at.precision, 1, precision);
    if constexpr (kLogit > 1) {
      LoadParent(at.linear, 1, linear);
      // <linear, vote> = <linear, u> + <linear, center>
#pragma unroll
      for (int h = 0; h < kSize; ++h) this->bias -= linear[h] * minus_center[h];
    }
    // With equal shares, kDebias is applied here and the share after SumOverParents().
    constexpr float kFactor = kLogit == 0 ? kDebias<kSplit> : 1;
    if constexpr (kGradient) LoadParent(at.first_grad, kFactor, first_grad);
    if constexpr (kGradient && kSecond) {
      LoadParent(at.second_grad, (kOnce ? 1 : 2) * kFactor, second_grad);
    }
  }

  // Computes the logit, without the prior, and the gradient dq of activation * share.
  __device__ void Sum(const float (&u)[kSize], float* z, float* dq) const {
    float logits[2] = {}, grads[2] = {}, seconds[2] = {};
#pragma unroll
    for (int h = 0; h < kSize; ++h) {
      const float square = u[h] * u[h];
      if constexpr (kLogit > 0) logits[h % 2] += precision[h] * square;
      if constexpr (kGradient) grads[h % 2] += first_grad[h] * u[h];
      if constexpr (kGradient && kSecond) seconds[h % 2] += second_grad[h] * square;
    }
    if constexpr (kLogit > 0) *z = bias - 0.5f * (logits[0] + logits[1]);
    if constexpr (kLogit > 1) {
      float lines[2] = {};
#pragma unroll
      for (int h = 0; h < kSize; ++h) lines[h % 2] += linear[h] * u[h];
      *z += lines[0] + lines[1];
    }
    if constexpr (kGradient) {
      constexpr float kFactor = kLogit == 0 ? 1 / kDebias<kSplit> : 1;
      float sum = grads[0] + grads[1];
      if constexpr (kSecond) sum += 0.5f * (seconds[0] + seconds[1]);
      *dq = mass_grad + kFactor * sum;
    }
  }

  // Returns the gradient of element h of a vote through the moments, without the factor
  // activation * share.
  __device__ float MomentGradient(int h, float u) const {
    if constexpr (kSecond) return first_grad[h] + second_grad[h] * u;
    return first_grad[h];
  }

  // Returns the share of a vote with logit z, times the child's activation.
  __device__ float Weigh(float z, Rule rule, const RowState& child) const {
    const float share =
        rule == Rule::kLogit ? z : ExpBelow(z, child.maximum) * child.scale;
    return child.activation * share;
  }

  // Returns the gradient dz of a vote's logit, and sets the gradient of the vote and
  // share dq.
  __device__ float Differentiate(const float (&u)[kSize], Rule rule,
                                 const RowState& child, float prior,
                                 float (&gradient)[kSize], float* share_dq) const {
    float weighted[kSize], logits[2] = {}, lines[2] = {}, grads[2] = {};
#pragma unroll
    for (int h = 0; h < kSize; ++h) {
      weighted[h] = precision[h] * u[h];
      logits[h % 2] += weighted[h] * u[h];
      if constexpr (kLogit > 1) lines[h % 2] += linear[h] * u[h];
      // Holds first_grad + second_grad u until the gradient of the vote replaces it.
      gradient[h] = first_grad[h];
      if constexpr (kSecond) gradient[h] += second_grad[h] * u[h];
      grads[h % 2] += gradient[h] * u[h];
    }
    float z = bias + prior - 0.5f * (logits[0] + logits[1]);
    if constexpr (kLogit > 1) z += lines[0] + lines[1];
    const float dq = mass_grad + (grads[0] + grads[1]);
    const float dr = child.activation * dq;
    float share = z, dz = dr;
    if (rule != Rule::kLogit) {
      share = ExpBelow(z, child.maximum) * child.scale;
      dz = share * (dr - child.dot);
    }
    // The child may be outside of the image.
    if (child.scale == 0) share = 0, dz = 0;
    *share_dq = share * dq;
    const float q = kDebias<kSplit> * child.activation * share;
    const float debiased = kDebias<kSplit> * dz;
#pragma unroll
    for (int h = 0; h < kSize; ++h) {
      // q (first_grad + 2 second_grad u) = 2 q gradient - q first_grad.
      float rest = debiased * weighted[h];
      if constexpr (kSecond) rest += q * first_grad[h];
      gradient[h] = (kSecond ? 2 * q : q) * gradient[h] - rest;
      if constexpr (kLogit > 1) gradient[h] += debiased * linear[h];
    }
    return dz;
  }
};

}  // namespace capsops::capsule_moments::mma
