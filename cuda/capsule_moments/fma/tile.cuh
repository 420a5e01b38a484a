// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Shared parts of the fma kernels. A thread has one parent of one window, and `lanes`
// threads of a warp are the parents of that window. All arithmetic is in float; 16-bit
// elements are widened when they are copied to shared memory.
#pragma once

#include <cuda_pipeline.h>

#include <cstdint>

#include "cuda/capsule_moments/inputs.cuh"
#include "cuda/common/warp.cuh"

namespace capsops::capsule_moments::fma {

// Stride in floats between matrices of weights or poses in shared memory: an odd number
// of 16-byte words, so that eight threads have no bank conflicts.
template <int Q>
constexpr int kWeightStep = kSide * (Q | 1);
// Pose rows are aligned to 16 bytes.
template <int Q>
constexpr int kPoseRow = (Q + 3) / 4 * 4;
template <int Q>
constexpr int kPoseStep = kSide * kPoseRow<Q> + 4;

// Starts the copy of row `row`, of Q elements, to shared memory.
template <int Q>
__device__ void StageRow(Element element, const void* tensor, int64_t row, float* to) {
  if (element == Element::kFloat) {
    const float* const from = static_cast<const float*>(tensor) + row * Q;
    constexpr int kStep = Q % 4 == 0 ? 4 : 1;
#pragma unroll
    for (int q = 0; q < Q; q += kStep) {
      __pipeline_memcpy_async(to + q, from + q, kStep * sizeof(float));
    }
  } else {
    WithElements(element, [&](auto zero) {
      const auto* const from = static_cast<const decltype(zero)*>(tensor) + row * Q;
#pragma unroll
      for (int q = 0; q < Q; ++q) to[q] = Widen(from[q]);
    });
  }
}

// Starts to write the state of a child's row; `capsule` is -1 outside of the image.
__device__ inline void StageState(const Inputs& in, int64_t capsule, RowState* to) {
  if (capsule < 0) {
    *to = {0, 0, 0, 0};
    return;
  }
  float2 scale{0, 1};
  if (in.rule == Rule::kGiven && in.scales != nullptr) {
    scale = in.scales[capsule];
  } else if (in.rule == Rule::kGiven) {
    const int windows = in.p.normalize == kAll ? WindowsOf(in.p, capsule) : 1;
    scale.y = 1.0f / (static_cast<float>(windows) * in.p.out_channels);
  }
  to->maximum = scale.x;
  to->scale = scale.y;
  to->dot = in.dots != nullptr ? in.dots[capsule] : 0;
  if (in.activations != nullptr) {
    StageRow<1>(in.element, in.activations, capsule, &to->activation);
  } else {
    to->activation = 1;
  }
}

// Starts the copy of a row of a child's pose; `capsule` is -1 outside of the image.
template <int Q>
__device__ void StagePoseRow(const Inputs& in, int64_t capsule, int row, float* to) {
  if (capsule >= 0) {
    StageRow<Q>(in.element, in.poses, capsule * kSide + row, to);
  } else {
#pragma unroll
    for (int q = 0; q < Q; ++q) to[q] = 0;
  }
}

// u += pose @ weights
template <int Q>
__device__ void AddVote(const float* pose, const float (&weights)[Q * kSide],
                        float (&u)[kSize]) {
#pragma unroll
  for (int row = 0; row < kSide; ++row) {
    float left[kPoseRow<Q>];
    LoadWords(pose + row * kPoseRow<Q>, left);
#pragma unroll
    for (int q = 0; q < Q; ++q) {
#pragma unroll
      for (int r = 0; r < kSide; ++r) {
        u[row * kSide + r] += left[q] * weights[q * kSide + r];
      }
    }
  }
}

// Sums over the 16 or 32 threads of a window.
__device__ inline float SumOverGroup(float value, int lanes) {
#pragma unroll
  for (int offset = kLanes / 4; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(~0u, value, offset);
  }
  if (lanes == kLanes) value += __shfl_xor_sync(~0u, value, kLanes / 2);
  return value;
}

// Maximum over the threads of a window. No value is NaN.
__device__ inline float MaxOverGroup(float value, int lanes) {
#if __CUDA_ARCH__ >= 800
  if (lanes == kLanes) {
    // Floats compare like integers once negative ones' lower bits are flipped.
    const auto turned = [](int bits) { return bits ^ (bits >> 31 & 0x7fffffff); };
    const int maximum = __reduce_max_sync(~0u, turned(__float_as_int(value)));
    return __int_as_float(turned(maximum));
  }
#endif
#pragma unroll
  for (int offset = kLanes / 4; offset > 0; offset /= 2) {
    value = fmaxf(value, __shfl_xor_sync(~0u, value, offset));
  }
  if (lanes < kLanes) return value;
  return fmaxf(value, __shfl_xor_sync(~0u, value, kLanes / 2));
}

// Returns 1 / the sum of a window's values, which are in [0, 1] with a maximum of 1.
__device__ inline float ScaleOfGroup(float value, int lanes) {
#if __CUDA_ARCH__ >= 800
  if (lanes == kLanes) {
    // Fixed-point sums in units of 2^-26 fit in 32 bits, and are exact.
    constexpr float kUnits = 1 << 26;
    const unsigned sum = __reduce_add_sync(~0u, __float2uint_rn(value * kUnits));
    return __fdividef(kUnits, __uint2float_rn(sum));
  }
#endif
  return __fdividef(1.0f, SumOverGroup(value, lanes));
}

// Returns the share of a logit, or 0 without a child or `parent`. For kSoftmax it sets
// the row's `maximum` and `scale`.
__device__ inline float ShareOf(Rule rule, int lanes, float z, bool parent,
                                RowState* child) {
  const bool any = parent && child->scale != 0;
  if (rule == Rule::kLogit) return any ? z : 0;
  if (rule == Rule::kSoftmax) {
    const float maximum = MaxOverGroup(parent ? z : -INFINITY, lanes);
    const float e = parent ? ExpBelow(z, maximum) : 0;
    const float scale = ScaleOfGroup(e, lanes);
    if (child->scale != 0) child->maximum = maximum, child->scale = scale;
    return any ? e * scale : 0;
  }
  return any ? ExpBelow(z, child->maximum) * child->scale : 0;
}

}  // namespace capsops::capsule_moments::fma
